"""The forms of records that `varve produce` reads and `varve consume` writes, a line each."""

import io
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click
import pytest

from varve.cli import record_format
from varve.cli.produce import RecordInput
from varve.cli.record_format import (
    JsonWriter,
    LineReader,
    LineWriter,
    TemplateReader,
    TemplateWriter,
    choose_reader,
    choose_writer,
    format_headers,
    parse_template,
    read_chunks,
)
from varve.foundation.errors import InvalidRecord
from varve.foundation.topic_records import RecordHeaders, StoredRecord

RECORD = StoredRecord(2, 7, 1000, b"alice", b"3", (("by", b"shell"), ("no", None)))

NOTHING = StoredRecord(0, 1, 5, None, None)


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("%v", b"3"),
        ("%s", b"3"),
        (r"%k=%v\n", b"alice=3\n"),
        (r"%t-%p@%o %T\t%h", b"orders-2@7 1000\tby=shell,no"),
        (r"%S %K %%\x00\0\\", b"1 5 %\x00\x00\\"),
        ("é%v", "é3".encode()),
        ("", b""),
    ],
)
def test_a_template_writes_what_it_names(template: str, line: bytes) -> None:
    assert TemplateWriter("orders", template).write(RECORD) == line


def test_null_is_written_as_null_and_its_size_is_minus_one() -> None:
    assert TemplateWriter("orders", "%k %v %K %S").write(NOTHING) == b"null null -1 -1"


@pytest.mark.parametrize("template", ["%x", "%", "100%", r"\q", "\\", r"\x1"])
def test_an_unknown_token_is_wrong_usage(template: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_template(template)


@pytest.mark.parametrize("template", [r"%k|%h|%T|%p|%v\n", "[%t:%o] %p;%T;%h;%k=%s"])
def test_a_template_reads_what_it_has_written(template: str) -> None:
    line = TemplateWriter("orders", template).write(RECORD).removesuffix(b"\n")
    record = TemplateReader(template).read(line)
    assert record == replace(RECORD, offset=-1)


@pytest.mark.parametrize("template", ["%k", "%v%k", "%S %v", "%v %v", "%v %s"])
def test_a_template_that_cannot_be_read_is_wrong_usage(template: str) -> None:
    with pytest.raises(click.BadParameter):
        TemplateReader(template)


@pytest.mark.parametrize(
    ("template", "line"),
    [("%k=%v", b"alice"), ("> %v", b"x"), ("%p %v", b"one x"), ("%T %v", b" x")],
)
def test_a_line_that_does_not_fit_is_refused(template: str, line: bytes) -> None:
    with pytest.raises(InvalidRecord):
        TemplateReader(template).read(line)


@pytest.mark.parametrize("headers", [RECORD.headers, ()])
def test_headers_are_read_as_they_are_written(headers: RecordHeaders) -> None:
    line = format_headers(headers) + b"|x"
    assert TemplateReader("%h|%v").read(line).headers == headers


def _writer(**options: Any) -> LineWriter:
    return choose_writer("orders", **{"is_json": False, "is_terminal": False, **options})


def test_options_of_consume_choose_the_form() -> None:
    assert _writer().write(RECORD) == b"3\n"
    assert _writer(key_separator="%").write(RECORD) == b"alice%3\n"
    both = _writer(key_separator="\\t", has_headers=True)
    assert both.write(RECORD) == b"by=shell,no\talice\t3\n"
    binary = replace(NOTHING, value=b"\xff")
    assert _writer().write(binary) == b"\xff\n"
    assert _writer(is_terminal=True).write(binary) == b"\\xff\n"


@pytest.mark.parametrize(
    "options",
    [
        {"template": "%v", "is_json": True},
        {"template": "%v", "key_separator": "="},
        {"is_json": True, "has_headers": True},
        {"key_separator": ""},
    ],
)
def test_options_of_consume_that_exclude_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(click.UsageError):
        _writer(**options)


def _reader(**options: Any) -> LineReader:
    defaults: dict[str, Any] = {
        "input": "lines",
        "key_separator": None,
        "headers": [],
        "partition": None,
        "is_empty_null": False,
    }
    return choose_reader(**{**defaults, **options})


def _records(reader: LineReader, data: bytes, *, is_whole: bool = False) -> Iterator[StoredRecord]:
    for chunk in RecordInput("input", io.BytesIO(data), reader, is_whole).chunks():
        yield from chunk
        if chunk.error is not None:
            raise chunk.error


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(NOTHING, value=b"\xff\x00"),
        StoredRecord(0, 1, 5, b"k", None, (("a", b"1"), ("a", b"2"))),
    ],
)
def test_json_that_consume_writes_is_what_produce_reads(record: StoredRecord) -> None:
    line = JsonWriter("orders").write(record)
    assert json.loads(line)["topic"] == "orders"
    [read] = _records(_reader(input="json"), line)
    assert (read.key, read.value) == (record.key, record.value)
    assert read.headers == record.headers
    assert read.timestamp == record.timestamp


def test_every_record_gets_what_the_options_say() -> None:
    options = {"headers": ["by=me", "flag"], "partition": 4, "is_empty_null": True}
    first, second = _records(_reader(key_separator="=", **options), b"a=1\n=\n")
    assert (first.key, first.value, first.partition) == (b"a", b"1", 4)
    assert first.headers == (("by", b"me"), ("flag", None))
    assert (second.key, second.value) == (None, None)


def test_a_whole_file_is_one_record() -> None:
    [record] = _records(_reader(input="files"), b"one\ntwo\n", is_whole=True)
    assert record.value == b"one\ntwo\n"


def test_a_bad_line_is_named_by_input_and_number() -> None:
    with pytest.raises(InvalidRecord, match="input, line 2: no key separator"):
        list(_records(_reader(key_separator="="), b"a=1\nb\n"))


@pytest.mark.parametrize(
    "options",
    [
        {"key_separator": "=", "input": "%v"},
        {"key_separator": "=", "input": "json"},
        {"key_separator": "=", "input": "files"},
        {"key_separator": ""},
        {"headers": ["=x"]},
        {"input": "lines "},
    ],
)
def test_options_of_produce_that_are_wrong_usage(options: dict[str, Any]) -> None:
    with pytest.raises(click.UsageError):
        _reader(**options)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{nonsense", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"3", "not a JSON object"),
        (b'{"velue": "x"}', "unknown field 'velue'"),
        (b'{"value": 3}', "value must be text"),
        (b'{"value": {"a": 1}}', "value must be text"),
        (b'{"key": {"base64": "no base64!"}}', "key is not base64"),
        (b'{"headers": 3}', "headers must be"),
        (b'{"headers": [["only"]]}', "is not a pair of name and value"),
        (b'{"headers": {"h": 3}}', "header 'h' must be text"),
        (b'{"timestamp": "now"}', "milliseconds since 1970"),
        (b'{"timestamp": true}', "milliseconds since 1970"),
        (b'{"timestamp": 1.5}', "milliseconds since 1970"),
        (b'{"timestamp": -2}', "milliseconds since 1970"),
        (b'{"timestamp": 9223372036854775808}', "milliseconds since 1970"),
        (b'{"value": "\\ud800"}', "UTF-8"),
        (b'{"headers": {"\\ud800": "x"}}', "UTF-8"),
    ],
)
def test_a_bad_json_line_is_named_and_what_came_before_is_kept(line: bytes, message: str) -> None:
    good = b'{"value": "good"}\n'
    data = good + b"\n" + good + line + b"\n" + good
    [chunk] = RecordInput("input", io.BytesIO(data), _reader(input="json"), False).chunks()
    assert len(list(chunk)) == 2
    assert "line 4: " in str(chunk.error)
    assert message in str(chunk.error)


# Lines, whatever pieces the bytes come in


def _lines(stream: io.BufferedIOBase) -> list[tuple[int, bytes]]:
    return [
        (chunk.first + index, line)
        for chunk in read_chunks(stream)  # type: ignore[arg-type]  # any binary stream will do
        for index, line in enumerate(chunk.lines)
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 1 << 20])
def test_lines_are_numbered_and_whole(monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(record_format, "_CHUNK_BYTES", chunk_bytes)
    found = _lines(io.BytesIO(b"one\n\ntwo\r\nthree"))
    assert found == [(1, b"one"), (2, b""), (3, b"two"), (4, b"three")]


def test_a_pipe_gives_what_has_arrived_without_waiting_for_more() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        chunks = read_chunks(stream)
        os.write(writing, b"first\nhalf ")
        assert next(chunks).lines == [b"first"]
        threading.Timer(0.05, os.write, (writing, b"line\n")).start()
        chunk = next(chunks)
        assert (chunk.first, chunk.lines) == (2, [b"half line"])
        os.close(writing)
        assert list(chunks) == []


def test_a_line_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_format, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(record_format, "_CHUNK_BYTES", 10)
    with pytest.raises(InvalidRecord, match="line 2 is longer than 100 bytes"):
        _lines(io.BytesIO(b"ok\n" + b"x" * 1000))
