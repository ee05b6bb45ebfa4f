"""`varve topic`, `produce` and `consume` on a directory: lines in and out, and bad input."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import varve
from varve.cli import produce
from varve.cli.main import app
from varve.cli.record_format import LineChunk
from varve.records import build_batch

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `varve` on a directory of its own."""

    def run(*arguments: str, input: bytes | str | None = None) -> Any:
        environment = {"VARVE_DIR": str(tmp_path / "data"), "VARVE_BOOTSTRAP": None}
        return CliRunner().invoke(app, list(arguments), input=input, env=environment)

    return run


@pytest.fixture
def orders(run: Run) -> Run:
    assert run("topic", "create", "orders").exit_code == 0
    return run


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _read(run: Run, topic: str = "orders", *arguments: str) -> list[dict[str, Any]]:
    result = run("consume", topic, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return _json_lines(result.stdout)


def test_plain_lines_are_values(orders: Run) -> None:
    result = orders("produce", "orders", input="one\ntwo\r\n\nlast without end")
    assert (result.exit_code, result.stderr) == (0, "produced 4 records to orders\n")
    assert orders("consume", "orders").stdout == "one\ntwo\n\nlast without end\n"


def test_keys_are_separated_at_the_first_separator(orders: Run) -> None:
    orders("produce", "orders", "-K", "\\t", input="a\t1\nb\tx\ty\n\t\n")
    assert orders("consume", "orders", "-K", "=").stdout == "a=1\nb=x\ty\n=\n"


def test_json_lines_carry_everything_there_and_back(orders: Run) -> None:
    lines: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "timestamp": 5, "headers": {"h": "x", "n": None}},
        {"key": None, "value": {"base64": "/w=="}, "timestamp": 6},
        {"key": "", "value": "ü", "timestamp": 7, "headers": [["h", "1"], ["h", "2"]]},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    assert orders("produce", "orders", "--input", "json", input=text).exit_code == 0
    found = _read(orders)
    for number, (line, record) in enumerate(zip(lines, found, strict=True)):
        assert record == {
            "type": "record",
            "topic": "orders",
            "partition": 0,
            "offset": number,
            **line,
        }
    copied = orders("consume", "orders", "--json").stdout_bytes
    assert orders("produce", "copy", "--create", "--input", "json", input=copied).exit_code == 0
    assert [{**record, "topic": "orders"} for record in _read(orders, "copy")] == found


def test_binary_input_is_kept_byte_by_byte(orders: Run) -> None:
    data = bytes(byte for byte in range(256) if byte not in b"\r\n")
    orders("produce", "orders", input=data + b"\n" + data)
    assert orders("consume", "orders").stdout_bytes == data + b"\n" + data + b"\n"


def test_empty_input_appends_nothing(orders: Run) -> None:
    for options in ([], ["--input", "json"], ["-K", "="]):
        result = orders("produce", "orders", *options, input=b"")
        assert (result.exit_code, result.stderr) == (0, "produced 0 records to orders\n")
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
def test_a_bad_json_line_is_named_and_what_came_before_is_kept(
    orders: Run, line: bytes, message: str
) -> None:
    good = b'{"value": "good"}\n'
    result = orders(
        "produce", "orders", "--input", "json", input=good + b"\n" + good + line + b"\n" + good
    )
    assert result.exit_code == 1
    assert message in result.stderr
    assert "line 4: " in result.stderr
    assert "2 records were appended before it" in result.stderr
    assert len(_read(orders)) == 2


def test_an_interrupted_append_says_what_was_appended(
    orders: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(stream: object) -> Iterator[LineChunk]:
        yield LineChunk(1, [b"a", b"b"], 4)
        raise KeyboardInterrupt

    monkeypatch.setattr(produce, "read_chunks", interrupted)
    result = orders("produce", "orders")
    assert (result.exit_code, result.stderr) == (130, "interrupted: 2 records were appended\n")
    assert len(_read(orders)) == 2


def test_a_line_without_separator_is_named(orders: Run) -> None:
    result = orders("produce", "orders", "-K", "=", input=b"a=1\nb\xff2\n")
    assert result.exit_code == 1
    assert "line 2: no key separator '='" in result.stderr
    assert "1 record was appended before it" in result.stderr


def test_a_record_that_is_too_large_says_what_was_appended(orders: Run) -> None:
    big = b"x" * 2_000_000
    result = orders("produce", "orders", "--codec", "none", input=b"a\nb\n" + big + b"\n")
    assert result.exit_code == 1
    assert "max.message.bytes" in result.stderr
    assert "records were appended before it" in result.stderr


def test_records_with_a_key_go_to_kafkas_partition(run: Run) -> None:
    run("topic", "create", "wide", "--partitions", "3")
    run("produce", "wide", "-K", "=", input="alice=1\nbob=2\nalice=3\n")
    by_key = {record["key"]: record["partition"] for record in _read(run, "wide")}
    assert len(by_key) == 2
    run("produce", "wide", "--partition", "2", input="here\n")
    assert _read(run, "wide", "--partition", "2")[-1]["value"] == "here"


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], ["0", "1", "2", "3", "4"]),
        (["--from", "3"], ["3", "4"]),
        (["--from", "end"], []),
        (["--from", "beginning", "--limit", "2"], ["0", "1"]),
        (["-n", "0"], []),
        (["--from", "@1767225602000"], ["2", "3", "4"]),
        (["--from", "2026-01-01T00:00:03+00:00"], ["3", "4"]),
        (["--from", "2099-01-01"], []),
        (["--to", "2"], ["0", "1"]),
        (["--from", "1", "--to", "@1767225603000"], ["1", "2"]),
        (["--to", "beginning"], []),
        (["--from", "-10m"], []),
        (["--last", "2"], ["3", "4"]),
        (["--last", "2", "--to", "4"], ["3"]),
        (["--last", "9"], ["0", "1", "2", "3", "4"]),
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
    orders("produce", "orders", "--input", "json", input="\n".join(lines))
    assert [record["value"] for record in _read(orders, "orders", *arguments)] == values


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["consume", "nothing"], 1, "there is no topic 'nothing' (topics: orders)"),
        (["consume", "orders", "--from", "7"], 1, "holds 0 to 0"),
        (["consume", "orders", "--from", "soon"], 2, "is not a position: write beginning"),
        (["consume", "orders", "--from", "-3"], 2, "is not a position: write beginning"),
        (["consume", "orders", "--to", "soon"], 2, "is not a position: write beginning"),
        (["consume", "orders", "--limit", "-1"], 2, "--limit"),
        (["consume", "orders", "--last", "0"], 2, "--last"),
        (["consume", "orders", "--partition", "4"], 1, "no partition 4"),
        (["consume", "orders", "--isolation", "none"], 2, "--isolation"),
        (["consume", "orders", "--follow"], 2, "need a broker: start one with `varve serve -d"),
        (["consume", "orders", "--group", "g"], 2, "need a broker: start one with `varve serve"),
        (["consume", "orders", "--from", "1", "--last", "2"], 2, "exclude each other"),
        (["consume", "orders", "--key-separator", ""], 2, "empty"),
        (["consume", "orders", "--json", "-K", "="], 2, "exclude each other"),
        (["consume"], 2, "TOPIC"),
        (["produce", "nothing"], 1, "there is no topic 'nothing'; add --create"),
        (["produce", "orders", "--input", "json", "-K", "="], 2, "exclude each other"),
        (["produce", "orders", "--input", "xml"], 2, "is not lines, json, files or a template"),
        (["produce", "orders", "--input", "files"], 2, "needs the names of files"),
        (["produce", "orders", "--codec", "brotli"], 2, "--codec"),
        (["produce", "orders", "--partition", "4"], 1, "no partition 4"),
        (["produce", "orders", "--acks", "1"], 2, "are for a broker"),
        (["produce", "orders", "--no-idempotence"], 2, "are for a broker"),
        (["produce", "orders", "--transactional-id", "t"], 2, "are for a broker"),
        (["topic", "create", "orders"], 1, "exists; change its settings with `varve topic alter"),
        (["topic", "create", "a/b"], 1, "topic name"),
        (["topic", "create", "x", "--partitions", "0"], 2, "--partitions"),
        (["topic", "create", "x", "--replicas", "3"], 1, "a directory keeps one copy"),
        (["topic", "create", "x", "--dry-run"], 1, "--dry-run asks a broker"),
        (["topic", "create", "x", "--set", "segment.bytes"], 2, "NAME=VALUE"),
        (["topic", "create", "x", "--set", "segment.byte=5"], 1, "did you mean 'segment.bytes'"),
        (["topic", "create", "x", "--set", "segment.bytes=5"], 1, "14 to"),
        (["topic", "describe", "nothing"], 1, "there is no topic"),
        (["topic", "describe", "orders", "--at", "end"], 2, "write a time such as"),
        (["topic", "delete-records", "orders", "-p", "0"], 2, "--before"),
        (["topic", "delete-records", "orders", "--before", "0"], 2, "--partition"),
        (
            ["topic", "delete-records", "orders", "-p", "0", "--before", "5", "--yes"],
            1,
            "high watermark is 0",
        ),
    ],
)
def test_a_wrong_request_gets_a_code_and_a_reason(
    orders: Run, arguments: list[str], code: int, message: str
) -> None:
    result = orders(*arguments, input=b"x\n")
    assert (result.exit_code, "Traceback" in result.output) == (code, False)
    assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list"],
        ["topic", "describe", "x"],
        ["topic", "alter", "x", "-s", "flush=ack"],
        ["topic", "delete", "x", "--yes"],
        ["consume", "x"],
        ["produce", "x"],
    ],
)
def test_looking_makes_no_store(run: Run, tmp_path: Path, command: list[str]) -> None:
    result = run(*command, input=b"x\n")
    assert result.exit_code == 1
    assert "there is no log directory" in result.stderr
    assert os.listdir(tmp_path) == []


def test_looking_writes_nothing_into_a_directory_of_others(tmp_path: Path) -> None:
    (tmp_path / "somebodys").mkdir()
    (tmp_path / "somebodys" / "notes").mkdir()
    for directory in (tmp_path / "somebodys", tmp_path / "somebodys" / "notes"):
        result = CliRunner().invoke(app, ["topic", "list", "--dir", str(directory)])
        assert (result.exit_code, "there is no log directory" in result.stderr) == (1, True)
    assert [path.name for path in tmp_path.rglob("*")] == ["somebodys", "notes"]


def test_a_topic_that_cannot_be_loaded_leads_to_the_check(orders: Run, tmp_path: Path) -> None:
    orders("produce", "orders", input=b"x\n")
    (found,) = tmp_path.rglob("leader-epoch-checkpoint")
    found.write_bytes(b"garbage")
    result = orders("consume", "orders")
    assert (result.exit_code, "`varve check`" in result.stderr) == (1, True)


def test_a_directory_in_use_is_refused(orders: Run, tmp_path: Path) -> None:
    with varve.open(tmp_path / "data"):
        result = orders("topic", "list")
    assert result.exit_code == 1
    assert "is in use by this process" in result.stderr


def test_topics_and_offsets_are_listed(run: Run) -> None:
    run("topic", "create", "orders", "--partitions", "2", "--set", "segment.bytes=1000")
    run("produce", "orders", "--partition", "1", input="a\nb\n")
    (topic,) = _json_lines(run("topic", "list", "--json").stdout)
    assert (topic["topic"], topic["partitions"], topic["offsets"]) == ("orders", 2, 2)
    assert topic["settings"] == {"segment.bytes": "1000"}
    assert "segment.bytes=1000" in run("topic", "list").stdout
    (described,) = _json_lines(run("topic", "describe", "orders", "--at", "@0", "--json").stdout)
    assert [partition["end"] for partition in described["partitions"]] == [0, 2]
    assert [partition["at_time"] for partition in described["partitions"]] == [None, 0]
    assert "high watermark" in run("topic", "describe", "orders").stdout


def test_internal_topics_of_a_served_directory_are_listed_on_demand(
    orders: Run, tmp_path: Path
) -> None:
    with varve.open(tmp_path / "data", maintain=False) as store:
        store.create_topic("__consumer_offsets")
    assert "__consumer_offsets" not in orders("topic", "list").stdout
    listed = _json_lines(orders("topic", "list", "--internal", "--json").stdout)
    assert [(row["topic"], row["internal"]) for row in listed] == [
        ("__consumer_offsets", True),
        ("orders", False),
    ]


def test_records_are_deleted_up_to_an_offset(orders: Run) -> None:
    orders("produce", "orders", input="a\nb\nc\n")
    delete = ("topic", "delete-records", "orders", "-p", "0", "--before")
    refused = orders(*delete, "2")
    assert (refused.exit_code, "add --yes" in refused.stderr) == (1, True)
    assert orders("consume", "orders").stdout == "a\nb\nc\n"
    assert orders(*delete, "2", "--yes").stdout == "orders-0 now starts at offset 2\n"
    assert orders("consume", "orders").stdout == "c\n"
    assert orders(*delete, "-1", "--yes").stdout == "orders-0 now starts at offset 3\n"
    assert orders("consume", "orders").stdout == ""


def test_recovery_after_a_crash_is_told(orders: Run, tmp_path: Path) -> None:
    store = varve.open(tmp_path / "data", maintain=False)
    store.topic("orders").append(value=b"whole")
    store.abandon()
    with (tmp_path / "data" / "orders-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")
    result = orders("consume", "orders")
    assert result.stdout == "whole\n"
    assert "recovered orders-0: cut 4 bytes" in result.stderr


def test_aborted_transactions_are_left_out_on_demand(orders: Run, tmp_path: Path) -> None:
    with varve.open(tmp_path / "data") as store:
        log = store.topic("orders").partition(0).log
        record = varve.NewRecord(None, b"void", timestamp=1)
        batch = build_batch(
            [record], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
        )
        log.append(batch)
        log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    assert orders("consume", "orders").stdout == "void\n"
    assert orders("consume", "orders", "--isolation", "read_committed").stdout == ""


def test_headers_and_templates_are_written_and_read(orders: Run) -> None:
    orders("produce", "orders", "--input", "%k|%h|%v", input="a|by=me,flag|1\n")
    assert orders("consume", "orders", "--headers", "-K", "=").stdout == "by=me,flag\ta=1\n"
    assert (
        orders("consume", "orders", "--template", r"%t-%p@%o %k %S\n").stdout == "orders-0@0 a 1\n"
    )


def test_whole_files_headers_and_nulls_are_appended(orders: Run, tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_text("1\n2\n")
    orders("produce", "orders", str(file), "--input", "files", "--header", "by=me")
    orders("produce", "orders", "-K", "=", "--empty-as-null", input="gone=\n")
    whole, tombstone = _read(orders)
    assert (whole["value"], whole["headers"]) == ("1\n2\n", {"by": "me"})
    assert (tombstone["key"], tombstone["value"]) == ("gone", None)


def test_the_result_of_produce_is_quiet_or_json_on_request(orders: Run) -> None:
    assert orders("produce", "orders", "-q", input="a\n").output == ""
    told = _json_lines(orders("produce", "orders", "--json", input="a\nb\n").stdout)
    assert told == [{"type": "produced", "topic": "orders", "records": 2}]


def _settings(run: Run) -> dict[str, Any]:
    result = run("topic", "describe", "orders", "--all-settings", "--json")
    assert result.exit_code == 0, result.output
    (described,) = _json_lines(result.stdout)
    return {
        name: (entry["value"], entry["source"]) for name, entry in described["settings"].items()
    }


def test_settings_are_changed_shown_and_restored(orders: Run) -> None:
    changes = ("-s", "segment.bytes=1000", "-s", "cleanup.policy=compact")
    result = orders("topic", "alter", "orders", *changes, "--json")
    changed = {line["setting"]: line["value"] for line in _json_lines(result.stdout)}
    assert changed == {"segment.bytes": "1000", "cleanup.policy": "compact"}
    settings = _settings(orders)
    assert settings["cleanup.policy"] == ("compact", "topic")
    assert settings["segment.ms"] == ("604800000", "default")
    assert orders("produce", "orders", input="no key\n").exit_code == 1
    restored = orders("topic", "alter", "orders", "--unset", "cleanup.policy")
    assert restored.stdout == "orders: cleanup.policy is the default\n"
    settings = _settings(orders)
    assert settings["cleanup.policy"] == ("delete", "default")
    assert settings["segment.bytes"] == ("1000", "topic")
    assert orders("produce", "orders", input="no key\n").exit_code == 0


def test_partitions_are_added_and_never_taken_away(orders: Run) -> None:
    added = orders("topic", "alter", "orders", "--partitions", "3")
    assert added.stdout == "orders has 3 partitions\n"
    orders("produce", "orders", "-p", "2", input="there\n")
    assert orders("consume", "orders").stdout == "there\n"
    assert "only added" in orders("topic", "alter", "orders", "--partitions", "2").stderr


def test_compaction_of_records_without_a_key_is_warned_of(orders: Run) -> None:
    orders("produce", "orders", input="no key\n")
    told = orders("topic", "alter", "orders", "-s", "cleanup.policy=compact")
    assert "compaction removes those without a key" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["-s", "segment.bytes"], 2, "NAME=VALUE"),
        (["-s", "segment.byte=5"], 1, "did you mean 'segment.bytes'"),
        (["-s", "segment.bytes=5"], 1, "14 to"),
        (["--unset", "segment.byte"], 1, "did you mean 'segment.bytes'"),
        (["--unset", "flush"], 2, "choose one"),
        (["--dry-run"], 1, "`varve forecast` previews"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_nothing_changes(
    orders: Run, arguments: list[str], code: int, complaint: str
) -> None:
    before = _settings(orders)
    result = orders("topic", "alter", "orders", "-s", "flush=ack", *arguments)
    assert result.exit_code == code
    assert complaint in result.stderr
    assert _settings(orders) == before


def test_an_alteration_of_nothing_is_wrong_usage(orders: Run) -> None:
    result = orders("topic", "alter", "orders")
    assert (result.exit_code, "nothing to change" in result.stderr) == (2, True)


def test_a_topic_is_deleted_with_its_files_after_a_yes(orders: Run, tmp_path: Path) -> None:
    orders("produce", "orders", input="one\n")
    refused = orders("topic", "delete", "orders")
    assert refused.exit_code == 1
    assert "--yes" in refused.stderr
    assert orders("consume", "orders").stdout == "one\n"
    result = orders("topic", "delete", "orders", "--yes")
    assert (result.exit_code, result.stdout) == (0, "deleted orders with 86 bytes of records\n")
    assert not [path for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert "there is no topic" in orders("consume", "orders").stderr
    assert orders("topic", "delete", "orders", "--yes").exit_code == 1


def test_a_deletion_of_several_topics_checks_all_names_first(orders: Run) -> None:
    orders("topic", "create", "balances")
    assert orders("topic", "delete", "orders", "typo", "--yes").exit_code == 1
    assert len(_json_lines(orders("topic", "list", "--json").stdout)) == 2
    assert orders("topic", "delete", "orders", "balances", "--yes").exit_code == 0
    assert orders("topic", "list", "--json").stdout == ""
