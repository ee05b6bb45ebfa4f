"""Formats of records, options that exclude each other, and errors, all without a broker."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import KafkaError

from varve.cli.kafka_client import make_client, read_client_file
from varve.cli.kafka_consume import choose_writer, write_json
from varve.cli.kafka_errors import Denied, Refused, as_error
from varve.cli.kafka_format import (
    KafkaRecord,
    parse_format,
    read_headers,
    record_reader,
    record_writer,
    write_headers,
)
from varve.cli.kafka_groups import parse_target
from varve.cli.kafka_produce import Input, Source, choose_source
from varve.cli.log_start import Start, StartKind
from varve.foundation.errors import InvalidRecord, InvalidSetting, NotFound, Unavailable

RECORD = KafkaRecord("orders", 2, 7, 1000, b"alice", b"3", [("by", b"shell"), ("no", None)])


@pytest.mark.parametrize(
    ("format", "written"),
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
def test_a_format_writes_what_it_names(format: str, written: bytes) -> None:
    assert record_writer(parse_format(format))(RECORD) == written


def test_null_is_written_as_null_and_its_size_is_minus_one() -> None:
    record = KafkaRecord("t", 0, 0, 0, None, None)
    assert record_writer(parse_format("%k %v %K %S"))(record) == b"null null -1 -1"


@pytest.mark.parametrize("format", ["%x", "%", "100%", r"\q", "\\", r"\x1"])
def test_an_unknown_token_is_wrong_usage(format: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_format(format)


@pytest.mark.parametrize("format", [r"%k|%h|%T|%p|%v\n", "[%t:%o] %p;%T;%h;%k=%s"])
def test_a_format_reads_what_it_has_written(format: str) -> None:
    tokens = parse_format(format)
    line = record_writer(tokens)(RECORD).removesuffix(b"\n")
    found = record_reader(tokens, "orders")(line)
    assert found == KafkaRecord("orders", 2, -1, 1000, b"alice", b"3", RECORD.headers)


@pytest.mark.parametrize("format", ["%k", "%v%k", "%S %v", "%v %v", "%v %s"])
def test_a_format_that_cannot_be_read_is_wrong_usage(format: str) -> None:
    with pytest.raises(typer.BadParameter):
        record_reader(parse_format(format), "orders")


@pytest.mark.parametrize(
    ("format", "line"), [("%k=%v", b"alice"), ("> %v", b"x"), ("%p %v", b"one x"), ("%T %v", b" x")]
)
def test_a_line_that_does_not_fit_is_named(format: str, line: bytes) -> None:
    with pytest.raises(InvalidRecord):
        record_reader(parse_format(format), "orders")(line)


def test_headers_go_there_and_back() -> None:
    assert read_headers(write_headers(RECORD.headers)) == RECORD.headers
    assert read_headers(b"") == []


def _writer(**given: Any) -> Any:
    options: dict[str, Any] = {
        "format": None,
        "key_separator": None,
        "with_headers": False,
        "as_json": False,
        "is_terminal": False,
    }
    return choose_writer(**{**options, **given})


def test_options_of_consume_choose_the_form() -> None:
    assert _writer()(RECORD) == b"3\n"
    assert _writer(key_separator="%")(RECORD) == b"alice%3\n"
    assert _writer(key_separator="\\t", with_headers=True)(RECORD) == b"by=shell,no\talice\t3\n"
    binary = KafkaRecord("t", 0, 0, 0, None, b"\xff")
    assert _writer()(binary) == b"\xff\n"
    assert _writer(is_terminal=True)(binary) == b"\\xff\n"
    with pytest.raises(typer.BadParameter):
        _writer(format="%v", as_json=True)


def _source(**given: Any) -> Source:
    options: dict[str, Any] = {
        "key_separator": None,
        "format": None,
        "json_lines": False,
        "whole_files": False,
        "empty_as_null": False,
        "headers": [],
        "partition": None,
    }
    return choose_source("orders", **{**options, **given})


def _records(source: Source, data: bytes) -> list[KafkaRecord]:
    return [record for record, _ in source.records(Input("input", io.BytesIO(data)))]


def test_json_that_consume_writes_is_what_produce_reads() -> None:
    for record in (
        RECORD,
        KafkaRecord("orders", 0, 1, 5, None, b"\xff\x00"),
        KafkaRecord("orders", 0, 1, 5, b"k", None, [("a", b"1"), ("a", b"2")]),
    ):
        line = write_json(record)
        assert json.loads(line)["topic"] == "orders"
        [found] = _records(_source(json_lines=True), line)
        assert (found.key, found.value, found.headers) == (record.key, record.value, record.headers)
        assert found.timestamp == record.timestamp


def test_every_record_gets_what_the_options_say() -> None:
    source = _source(key_separator="=", headers=["by=me", "flag"], partition=4, empty_as_null=True)
    first, second = _records(source, b"a=1\n=\n")
    assert (first.key, first.value, first.partition) == (b"a", b"1", 4)
    assert first.headers == [("by", b"me"), ("flag", None)]
    assert (second.key, second.value) == (None, None)


def test_a_whole_file_is_one_record() -> None:
    [found] = _records(_source(whole_files=True), b"one\ntwo\n")
    assert found.value == b"one\ntwo\n"


def test_a_bad_line_is_named_by_input_and_number() -> None:
    with pytest.raises(InvalidRecord, match="input, line 2: no key separator"):
        _records(_source(key_separator="="), b"a=1\nb\n")


@pytest.mark.parametrize(
    "given",
    [
        {"format": "%v", "json_lines": True},
        {"key_separator": "=", "whole_files": True},
        {"key_separator": ""},
        {"headers": ["=x"]},
    ],
)
def test_options_of_produce_that_exclude_each_other(given: dict[str, Any]) -> None:
    with pytest.raises(typer.BadParameter):
        _source(**given)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", Start(StartKind.BEGINNING)),
        ("latest", Start(StartKind.END)),
        ("12", Start(StartKind.OFFSET, 12)),
        ("@12", Start(StartKind.TIME, 12)),
    ],
)
def test_targets_of_a_reset(text: str, target: Start) -> None:
    assert parse_target(text) == target
    with pytest.raises(typer.BadParameter, match="earliest"):
        parse_target(f"{text}?")


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (KafkaError._ALL_BROKERS_DOWN, Unavailable, "varve serve"),
        (KafkaError._MSG_TIMED_OUT, Unavailable, "VARVE_BROKER"),
        (KafkaError._AUTHENTICATION, Denied, "security.protocol"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Denied, "varve acl add"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NotFound, "varve topic list"),
        (KafkaError.GROUP_ID_NOT_FOUND, NotFound, "varve group list"),
        (KafkaError.INVALID_CONFIG, InvalidSetting, "topic orders: "),
        (KafkaError.NOT_CONTROLLER, Refused, "topic orders: "),
    ],
)
def test_errors_of_brokers_become_sentences_with_a_remedy(
    code: int, kind: type[Exception], text: str
) -> None:
    error = as_error(KafkaError(code), "topic orders", address="host:1")
    assert type(error) is kind
    assert text in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
def test_a_broker_of_the_command_line_counts_before_that_of_the_client_file(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"{name}=file:1\n")
    assert make_client("flag:1", [], file).config()["bootstrap.servers"] == "flag:1"
    assert make_client(None, [f"{name}=option:1"], file).config()["bootstrap.servers"] == "option:1"
    assert make_client(None, [], file).config()["bootstrap.servers"] == "file:1"
    assert make_client(None, [], None).config()["bootstrap.servers"] == "localhost:9092"
    assert name not in {"metadata.broker.list"} & make_client("flag:1", [], file).config().keys()
    with pytest.raises(InvalidSetting, match=r"flag:1.*option:1.*leave one out"):
        make_client("flag:1", [f"{name}=option:1"], file)


def test_a_client_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(b"sasl.password=\xff\n")
    with pytest.raises(InvalidSetting, match=r"client\.properties cannot be read"):
        make_client(None, [], file)


def test_settings_of_the_client_come_from_a_file_and_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# who we are\nsasl.username = alice\nsasl.password=a=b\n\n")
    client = make_client("host:1", ["sasl.username=bob"], file)
    assert client.settings == {"sasl.username": "bob", "sasl.password": "a=b"}
    assert client.config(group_id="g")["bootstrap.servers"] == "host:1"
    assert client.config(group_id="g")["group.id"] == "g"
    assert client.config(defaults={"sasl_username": "carol"})["sasl.username"] == "bob"
    assert client.config(sasl_username="carol")["sasl.username"] == "carol"
    file.write_text("nonsense\n")
    with pytest.raises(InvalidSetting, match="line 1"):
        read_client_file(file)
    with pytest.raises(typer.BadParameter, match="name=value"):
        make_client("host:1", ["nonsense"], None)
