"""`varve log`: lines in and out, and what unfriendly input meets."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import varve
from varve.cli import log_append, log_input, log_read
from varve.cli.main import app
from varve.records import build_batch

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `varve log ...` on a directory of its own."""

    def run(*arguments: str, input: bytes | str | None = None) -> Any:
        environment = {"VARVE_DIR": str(tmp_path / "data")}
        return CliRunner().invoke(app, ["log", *arguments], input=input, env=environment)

    return run


@pytest.fixture
def orders(run: Run) -> Run:
    assert run("create", "orders").exit_code == 0
    return run


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _read(run: Run, topic: str = "orders", *arguments: str) -> list[dict[str, Any]]:
    result = run("read", topic, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return _json_lines(result.stdout)


def test_plain_lines_are_values(orders: Run) -> None:
    result = orders("append", "orders", input="one\ntwo\r\n\nlast without end")
    assert (result.exit_code, result.stderr) == (0, "appended 4 records to orders\n")
    assert orders("read", "orders").stdout == "one\ntwo\n\nlast without end\n"


def test_keys_are_separated_at_the_first_separator(orders: Run) -> None:
    orders("append", "orders", "-K", "\\t", input="a\t1\nb\tx\ty\n\t\n")
    assert orders("read", "orders", "-K", "=").stdout == "a=1\nb=x\ty\n=\n"


def test_json_lines_carry_everything_there_and_back(orders: Run) -> None:
    lines: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "timestamp": 5, "headers": {"h": "x", "n": None}},
        {"key": None, "value": {"base64": "/w=="}, "timestamp": 6},
        {"key": "", "value": "ü", "timestamp": 7, "headers": [["h", "1"], ["h", "2"]]},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    assert orders("append", "orders", "--json", input=text).exit_code == 0
    found = _read(orders)
    for number, (line, record) in enumerate(zip(lines, found, strict=True)):
        assert record == {"partition": 0, "offset": number, **line}
    copied = orders("read", "orders", "--json").stdout_bytes
    assert orders("append", "copy", "--create", "--json", input=copied).exit_code == 0
    assert _read(orders, "copy") == found


def test_binary_input_is_kept_byte_by_byte(orders: Run) -> None:
    data = bytes(byte for byte in range(256) if byte not in b"\r\n")
    orders("append", "orders", input=data + b"\n" + data)
    assert orders("read", "orders").stdout_bytes == data + b"\n" + data + b"\n"


def test_empty_input_appends_nothing(orders: Run) -> None:
    for options in ([], ["--json"], ["-K", "="]):
        result = orders("append", "orders", *options, input=b"")
        assert (result.exit_code, result.stderr) == (0, "appended 0 records to orders\n")
    assert _read(orders) == []


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
        (b'{"key": {"base64": "no base64!"}}', "key is no base64"),
        (b'{"headers": 3}', "headers must be"),
        (b'{"headers": [["only"]]}', "no pair of name and value"),
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
def test_a_bad_json_line_is_named_and_what_came_before_is_kept(
    orders: Run, line: bytes, message: str
) -> None:
    good = b'{"value": "good"}\n'
    result = orders("append", "orders", "--json", input=good + b"\n" + good + line + b"\n" + good)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "line 4: " in result.stderr
    assert "2 records were appended before it" in result.stderr
    assert len(_read(orders)) == 2


def test_an_interrupted_append_says_what_was_appended(
    orders: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(stream: object) -> Iterator[log_input.Chunk]:
        yield log_input.Chunk(1, [b"a", b"b"], 4)
        raise KeyboardInterrupt

    monkeypatch.setattr(log_append, "read_chunks", interrupted)
    result = orders("append", "orders")
    assert (result.exit_code, result.stderr) == (130, "interrupted: 2 records were appended\n")
    assert len(_read(orders)) == 2


def test_a_line_without_separator_is_named(orders: Run) -> None:
    result = orders("append", "orders", "-K", "=", input=b"a=1\nb\xff2\n")
    assert result.exit_code == 1
    assert "line 2: no key separator '='" in result.stderr
    assert "1 record was appended before it" in result.stderr


def test_a_record_that_is_too_large_says_what_was_appended(orders: Run) -> None:
    big = b"x" * 2_000_000
    result = orders("append", "orders", "--codec", "none", input=b"a\nb\n" + big + b"\n")
    assert result.exit_code == 1
    assert "max.message.bytes" in result.stderr
    assert "records were appended before it" in result.stderr


def test_records_with_a_key_go_to_kafkas_partition(run: Run) -> None:
    run("create", "wide", "--partitions", "3")
    run("append", "wide", "-K", "=", input="alice=1\nbob=2\nalice=3\n")
    by_key = {record["key"]: record["partition"] for record in _read(run, "wide")}
    assert len(by_key) == 2
    run("append", "wide", "--partition", "2", input="here\n")
    assert _read(run, "wide", "--partition", "2")[-1]["value"] == "here"


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], ["0", "1", "2", "3", "4"]),
        (["--from", "3"], ["3", "4"]),
        (["--from", "end"], []),
        (["--from", "beginning", "--count", "2"], ["0", "1"]),
        (["--count", "0"], []),
        (["--from", "@1767225602000"], ["2", "3", "4"]),
        (["--from", "2026-01-01T00:00:03+00:00"], ["3", "4"]),
        (["--from", "2099-01-01"], []),
        (["--isolation", "read_committed"], ["0", "1", "2", "3", "4"]),
    ],
)
def test_a_read_begins_where_it_is_told(
    orders: Run, arguments: list[str], values: list[str]
) -> None:
    start = 1_767_225_600_000
    lines = [
        json.dumps({"value": str(number), "timestamp": start + number * 1000})
        for number in range(5)
    ]
    orders("append", "orders", "--json", input="\n".join(lines))
    assert [record["value"] for record in _read(orders, "orders", *arguments)] == values


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["read", "nothing"], 1, "make it with `varve log create` (topics: orders)"),
        (["read", "orders", "--from", "7"], 1, "holds 0 to 0"),
        (["read", "orders", "--from", "soon"], 2, "neither beginning"),
        (["read", "orders", "--from", "-3"], 2, "neither beginning"),
        (["read", "orders", "--count", "-1"], 2, "--count"),
        (["read", "orders", "--partition", "4"], 1, "no partition 4"),
        (["read", "orders", "--isolation", "none"], 2, "--isolation"),
        (["read", "orders", "--follow", "--isolation", "read_committed"], 2, "--follow"),
        (["read", "orders", "--key-separator", ""], 2, "empty"),
        (["read"], 2, "TOPIC"),
        (["append", "nothing"], 1, "there is no topic 'nothing'; append with --create"),
        (["append", "orders", "--json", "-K", "="], 2, "exclude each other"),
        (["append", "orders", "--codec", "brotli"], 2, "--codec"),
        (["append", "orders", "--partition", "4"], 1, "no partition 4"),
        (["create", "orders"], 1, "exists already; append to it, change its settings with"),
        (["create", "a/b"], 1, "topic name"),
        (["create", "x", "--partitions", "0"], 2, "--partitions"),
        (["create", "x", "--set", "segment.bytes"], 2, "name=value"),
        (["create", "x", "--set", "segment.byte=5"], 1, "did you mean 'segment.bytes'"),
        (["create", "x", "--set", "segment.bytes=5"], 1, "14 to"),
        (["offsets", "nothing"], 1, "there is no topic"),
        (["offsets", "orders", "--time", "end"], 2, "is no time"),
        (["delete-records", "orders"], 2, "--before"),
        (["delete-records", "orders", "--before", "5"], 1, "high watermark is 0"),
    ],
)
def test_a_wrong_request_gets_a_code_and_a_reason(
    orders: Run, arguments: list[str], code: int, message: str
) -> None:
    result = orders(*arguments, input=b"x\n")
    assert (result.exit_code, "Traceback" in result.output) == (code, False)
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize("command", [["topics"], ["read", "x"], ["append", "x"], ["offsets", "x"]])
def test_looking_makes_no_store(run: Run, tmp_path: Path, command: list[str]) -> None:
    result = run(*command, input=b"x\n")
    assert result.exit_code == 1
    assert "there is no log directory" in result.stderr
    assert os.listdir(tmp_path) == []


def test_looking_writes_nothing_into_a_directory_of_others(tmp_path: Path) -> None:
    (tmp_path / "somebodys").mkdir()
    (tmp_path / "somebodys" / "notes").mkdir()
    for directory in (tmp_path / "somebodys", tmp_path / "somebodys" / "notes"):
        result = CliRunner().invoke(app, ["log", "topics", "--dir", str(directory)])
        assert (result.exit_code, "there is no log directory" in result.stderr) == (1, True)
    assert [path.name for path in tmp_path.rglob("*")] == ["somebodys", "notes"]


def test_a_topic_that_cannot_be_loaded_leads_to_the_check(orders: Run, tmp_path: Path) -> None:
    orders("append", "orders", input=b"x\n")
    (found,) = tmp_path.rglob("leader-epoch-checkpoint")
    found.write_bytes(b"garbage")
    result = orders("read", "orders")
    assert (result.exit_code, "`varve check`" in result.stderr) == (1, True)


def test_a_directory_in_use_is_refused(orders: Run, tmp_path: Path) -> None:
    with varve.open(tmp_path / "data"):
        result = orders("topics")
    assert result.exit_code == 1
    assert "is held by another owner" in result.stderr


def test_topics_and_offsets_are_listed(run: Run) -> None:
    run("create", "orders", "--partitions", "2", "--set", "segment.bytes=1000")
    run("append", "orders", "--partition", "1", input="a\nb\n")
    (topic,) = _json_lines(run("topics", "--json").stdout)
    assert (topic["topic"], topic["partitions"], topic["offsets"]) == ("orders", 2, 2)
    assert topic["settings"] == {"segment.bytes": "1000"}
    assert "segment.bytes=1000" in run("topics").stdout
    marks = _json_lines(run("offsets", "orders", "--time", "@0", "--json").stdout)
    assert [mark["end"] for mark in marks] == [0, 2]
    assert [mark["for_time"] for mark in marks] == [None, 0]
    assert "high watermark" in run("offsets", "orders", "-p", "1").stdout


def test_records_are_deleted_up_to_an_offset(orders: Run) -> None:
    orders("append", "orders", input="a\nb\nc\n")
    result = orders("delete-records", "orders", "--before", "2")
    assert result.stdout == "orders-0 now begins at offset 2\n"
    assert orders("read", "orders").stdout == "c\n"


def test_recovery_after_a_crash_is_told(orders: Run, tmp_path: Path) -> None:
    store = varve.open(tmp_path / "data", maintain=False)
    store.topic("orders").append(value=b"whole")
    store.abandon()
    with (tmp_path / "data" / "orders-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")
    result = orders("read", "orders")
    assert result.stdout == "whole\n"
    assert "recovered orders-0: cut 4 bytes" in result.stderr


def test_aborted_transactions_are_left_out_on_demand(orders: Run, tmp_path: Path) -> None:
    with varve.open(tmp_path / "data") as store:
        log = store.topic("orders").partition(0).log
        record = varve.Record(None, b"void", timestamp=1)
        batch = build_batch(
            [record], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
        )
        log.append(batch)
        log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    assert orders("read", "orders").stdout == "void\n"
    assert orders("read", "orders", "--isolation", "read_committed").stdout == ""


def test_following_sees_what_another_owner_appends(
    orders: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_read, "POLL_SECONDS", 0.0)
    with varve.open(tmp_path / "data") as store:
        topic = store.topic("orders")
        topic.append_many((None, b"%d" % number) for number in range(3))
        result = orders("read", "orders", "--follow", "--from", "1", "--count", "2")
        assert result.stdout == "1\n2\n"
        result = orders("read", "orders", "--follow", "--from", "@0", "--count", "1")
        assert result.stdout == "0\n"
        assert orders("read", "orders", "--follow", "--from", "end", "-n", "0").stdout == ""
        assert orders("read", "nothing", "--follow").exit_code == 1


def test_settings_are_changed_shown_and_taken_back(orders: Run) -> None:
    result = orders("configure", "orders", "segment.bytes=1000", "cleanup.policy=compact", "--json")
    assert _json_lines(result.stdout) == [
        {"setting": "cleanup.policy", "value": "compact", "default": "delete"},
        {"setting": "segment.bytes", "value": "1000", "default": "1073741824"},
    ]
    assert orders("append", "orders", input="no key\n").exit_code == 1
    assert orders("configure", "orders", "--reset", "cleanup.policy").exit_code == 0
    shown = {line["setting"]: line["value"] for line in _json_lines_of(orders)}
    assert (shown["cleanup.policy"], shown["segment.bytes"]) == ("delete", "1000")
    assert orders("append", "orders", input="no key\n").exit_code == 0


def _json_lines_of(run: Run) -> list[dict[str, Any]]:
    result = run("configure", "orders", "--json")
    assert result.exit_code == 0, result.output
    return _json_lines(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["segment.bytes"], 2, "name=value"),
        (["segment.byte=5"], 1, "did you mean 'segment.bytes'"),
        (["segment.bytes=5"], 1, "14 to"),
        (["--reset", "segment.byte"], 1, "did you mean 'segment.bytes'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_nothing_changes(
    orders: Run, arguments: list[str], code: int, complaint: str
) -> None:
    before = _json_lines_of(orders)
    result = orders("configure", "orders", "flush=ack", *arguments)
    assert result.exit_code == code
    assert complaint in result.stderr
    assert _json_lines_of(orders) == before


def test_a_topic_is_deleted_with_its_files_after_a_yes(orders: Run, tmp_path: Path) -> None:
    orders("append", "orders", input="one\n")
    refused = orders("delete", "orders")
    assert refused.exit_code == 1
    assert "--yes" in refused.stderr
    assert orders("read", "orders").stdout == "one\n"
    result = orders("delete", "orders", "--yes")
    assert (result.exit_code, result.stdout) == (0, "deleted orders with 86 bytes of records\n")
    assert not [path for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert "there is no topic" in orders("read", "orders").stderr
    assert orders("delete", "orders", "--yes").exit_code == 1
