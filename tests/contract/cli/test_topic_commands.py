"""`varve topic`, `produce` and `consume` give the same results on a directory and on a broker."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.varve_command import Ran, run_varve
from varve.testing.kafka_kit import KafkaKit

Run = Callable[..., Ran]
START_MS = 1_767_225_600_000


@pytest.fixture(scope="module", params=["directory", "broker"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a command on the target; the topic `standing` exists, with two empty partitions."""
    if request.param == "directory":
        yield _runner("--dir", tmp_path_factory.mktemp("store") / "data")
        return
    with KafkaKit() as kit:
        yield _runner("--bootstrap", kit.bootstrap)


def _runner(option: str, target: Path | str) -> Run:
    environment: dict[str, Any] = dict.fromkeys(
        ("VARVE_DIR", "VARVE_BOOTSTRAP", "VARVE_COMMAND_CONFIG")
    )

    def run(*words: str, **given: Any) -> Ran:
        return run_varve(*words, option, target, **given, **environment)

    run("topic", "create", "standing", "--partitions", "2")
    return run


def _listed(run: Run, topic: str) -> list[dict[str, Any]]:
    columns = ("type", "topic", "partitions", "replicas", "internal")
    rows = [row for row in run("topic", "list", "--json").rows if row["topic"] == topic]
    return [{column: row[column] for column in columns} for row in rows]


def _settings(run: Run, topic: str, *options: str) -> dict[str, Any]:
    (described,) = run("topic", "describe", topic, "--json", *options).rows
    settings: dict[str, Any] = described["settings"]
    return settings


def test_a_topic_is_created_listed_and_deleted(run: Run) -> None:
    created = run("topic", "create", "orders", "--partitions", "3", "--replicas", "1")
    assert created.stdout == "created orders\n"
    assert _listed(run, "orders") == [
        {"type": "topic", "topic": "orders", "partitions": 3, "replicas": 1, "internal": False}
    ]
    again = run("topic", "create", "orders", code=1).stderr
    assert "topic orders exists; change its settings with `varve topic alter orders`" in again
    assert run("topic", "create", "orders", "--if-not-exists").stdout == "orders exists\n"
    refused = run("topic", "delete", "orders", code=1)
    assert "cannot be undone; add --yes" in refused.stderr
    run("topic", "create", "more")
    deleted = run("topic", "delete", "orders", "more", "--yes", "--json").rows
    assert deleted == [{"type": "topic", "topic": name} for name in ("orders", "more")]
    assert _listed(run, "orders") == _listed(run, "more") == []


def test_settings_are_set_and_unset(run: Run) -> None:
    run("topic", "create", "settings", "-s", "retention.ms=7d", "-s", "segment.bytes=64MiB")
    assert _settings(run, "settings") == {
        "retention.ms": {"value": "604800000", "source": "topic"},
        "segment.bytes": {"value": "67108864", "source": "topic"},
    }
    changes = ("-s", "max.message.bytes=2MiB", "--unset", "segment.bytes", "--partitions", "2")
    altered = run("topic", "alter", "settings", *changes)
    assert altered.stdout.splitlines() == [
        "settings: max.message.bytes is 2097152",
        "settings: segment.bytes is the default",
        "settings has 2 partitions",
    ]
    settings = _settings(run, "settings", "--all-settings")
    assert settings["max.message.bytes"] == {"value": "2097152", "source": "topic"}
    assert settings["segment.bytes"] == {"value": "1073741824", "source": "default"}
    assert settings["cleanup.policy"] == {"value": "delete", "source": "default"}
    run("produce", "settings", "-p", "1", input="no key\n")
    assert run("consume", "settings").stdout == "no key\n"
    run("topic", "alter", "settings", "-s", "cleanup.policy=compact")
    run("produce", "settings", input="no key\n", code=1)
    objects = run("topic", "alter", "settings", "--unset", "retention.ms", "--json").rows
    assert objects == [
        {"type": "setting", "topic": "settings", "setting": "retention.ms", "value": None}
    ]


def _produce_timed(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    records = [
        {"key": f"k{number}", "value": str(number), "timestamp": START_MS + number * 1000}
        for number in range(5)
    ]
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    produced = run("produce", topic, "--input", "json", input=lines)
    assert produced.stderr == f"produced 5 records to {topic}\n"


def test_offsets_and_times_are_described(run: Run) -> None:
    _produce_timed(run, "described")
    describe = ("topic", "describe", "described", "--json")
    (described,) = run(*describe, "--at", f"@{START_MS + 1500}").rows
    (partition,) = described["partitions"]
    names = ("partition", "log_start", "end", "at_time")
    assert [partition[name] for name in names] == [0, 0, 5, 2]
    assert (described["type"], described["topic"]) == ("topic", "described")
    (later,) = run(*describe, "--at", "2099-01-01").rows
    assert later["partitions"][0]["at_time"] is None
    assert "at time" in run("topic", "describe", "described", "--at", "@0").stdout


def test_ranges_are_consumed(run: Run) -> None:
    _produce_timed(run, "ranges")
    for options, values in (
        ([], "01234"),
        (["--from", "3"], "34"),
        (["--from", "end"], ""),
        (["--from", "latest"], ""),
        (["--from", "beginning", "-n", "2"], "01"),
        (["-n", "0"], ""),
        (["--from", f"@{START_MS + 1500}"], "234"),
        (["--from", "2026-01-01T00:00:03"], "34"),
        (["--from", "2099-01-01"], ""),
        (["--to", "2"], "01"),
        (["--to", "99"], "01234"),
        (["--from", "1", "--to", f"@{START_MS + 3000}"], "12"),
        (["--from", "3", "--to", "2"], ""),
        (["--to", "beginning"], ""),
        (["--from", "-10m"], ""),
        (["--last", "2"], "34"),
        (["--last", "9"], "01234"),
        (["--last", "2", "--to", "4"], "3"),
        (["--isolation", "read_committed"], "01234"),
    ):
        consumed = run("consume", "ranges", *options, "--template", "%v")
        assert consumed.stdout == values, options


def test_records_are_deleted_before_an_offset(run: Run) -> None:
    _produce_timed(run, "cut")
    delete = ("topic", "delete-records", "cut", "-p", "0", "--before")
    assert "add --yes" in run(*delete, "2", code=1).stderr
    assert run(*delete, "2", "--yes").stdout == "cut-0 now starts at offset 2\n"
    assert run("consume", "cut", "--template", "%v").stdout == "234"
    (start,) = run(*delete, "-1", "--yes", "--json").rows
    assert start == {"type": "log_start", "topic": "cut", "partition": 0, "log_start": 5}
    assert run("consume", "cut").stdout == ""


def test_json_carries_everything_there_and_back(run: Run) -> None:
    run("topic", "create", "full")
    records: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "timestamp": 5, "headers": {"h": "x", "n": None}},
        {"key": None, "value": {"base64": "/w=="}, "timestamp": 6},
        {"key": "", "value": "ü", "timestamp": 7, "headers": [["h", "1"], ["h", "2"]]},
    ]
    lines = "\n".join(map(json.dumps, records))
    (told,) = run("produce", "full", "--input", "json", "--json", input=lines).rows
    assert told == {"type": "produced", "topic": "full", "records": 3}
    consumed = run("consume", "full", "--json")
    assert consumed.rows == [
        {"type": "record", "topic": "full", "partition": 0, "offset": number, **record}
        for number, record in enumerate(records)
    ]
    run("topic", "create", "copies")
    run("produce", "copies", "--input", "json", input=consumed.stdout_bytes)
    copies = [{**record, "topic": "full"} for record in run("consume", "copies", "--json").rows]
    assert copies == consumed.rows


def test_keys_go_to_kafkas_partition(run: Run) -> None:
    run("topic", "create", "wide", "--partitions", "3")
    run("produce", "wide", "-K", "=", input="alice=1\nbob=2\ncarol=3\n")
    records = run("consume", "wide", "--json").rows
    by_key = {record["key"]: record["partition"] for record in records}
    assert by_key == {"alice": 0, "bob": 0, "carol": 2}
    run("produce", "wide", "-p", "2", "--header", "by=me", input="here\n")
    shown = run("consume", "wide", "-p", "2", "--headers", "-K", "\\t").stdout
    assert shown.splitlines() == ["\tcarol\t3", "by=me\tnull\there"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_files_codecs_and_nulls(run: Run, tmp_path: Path, codec: str) -> None:
    topic, one, two = f"files-{codec}", tmp_path / "one", tmp_path / "two"
    one.write_text("a=1\nb=\n")
    two.write_text("c=3\n")
    lines = ("-K", "=", "--empty-as-null", "--codec", codec, "--create")
    run("produce", topic, str(one), str(two), *lines)
    assert run("produce", topic, str(one), str(two), "--input", "files", "-q").output == ""
    shown = run("consume", topic, "--template", r"%k %v %S\n").stdout
    assert shown == "a 1 1\nb null -1\nc 3 1\nnull a=1\nb=\n 7\nnull c=3\n 4\n"


def test_plain_lines_are_values_byte_by_byte(run: Run) -> None:
    run("topic", "create", "plain")
    produced = run("produce", "plain", input="one\ntwo\r\n\nlast without end")
    assert produced.stderr == "produced 4 records to plain\n"
    assert run("consume", "plain").stdout == "one\ntwo\n\nlast without end\n"
    data = bytes(byte for byte in range(256) if byte not in b"\r\n")
    run("produce", "plain", input=data)
    assert run("consume", "plain", "--last", "1").stdout_bytes == data + b"\n"
    for options in ([], ["--input", "json"], ["-K", "="]):
        assert run("produce", "plain", *options, input=b"").stderr.startswith("produced 0 records")


def test_a_key_ends_at_the_first_separator(run: Run) -> None:
    run("topic", "create", "separated")
    run("produce", "separated", "-K", "\\t", input="a\t1\nb\tx\ty\n\t\n")
    assert run("consume", "separated", "-K", "=").stdout == "a=1\nb=x\ty\n=\n"


def test_a_bad_line_keeps_the_records_before_it(run: Run) -> None:
    run("topic", "create", "lines")
    failed = run("produce", "lines", "-K", "=", input=b"a=1\nbad\xff\nb=2\n", code=1).stderr
    assert "standard input, line 2: no key separator '=' in 'bad" in failed
    assert "1 record was" in failed
    assert run("consume", "lines").stdout == "1\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["topic", "describe", "none"], 1, "there is no topic 'none'"),
        (["topic", "alter", "none", "-s", "retention.ms=1"], 1, "none"),
        (["topic", "delete", "none", "--yes"], 1, "there is no topic 'none'"),
        (["topic", "delete", "standing", "none", "--yes"], 1, "there is no topic 'none'"),
        (["topic", "delete-records", "none", "-p", "0", "--before", "1", "--yes"], 1, "'none'"),
        (["topic", "delete-records", "standing", "-p", "9", "--before", "0", "--yes"], 1, "9"),
        (["topic", "create", "a/b"], 1, "a/b"),
        (["topic", "create", "x", "-s", "retention.m=1"], 1, "did you mean 'retention.ms'"),
        (["topic", "create", "x", "-s", "segment.bytes=1"], 1, "segment.bytes"),
        (["topic", "create", "x", "-s", "retention.ms=7weeks"], 2, "retention.ms '7weeks'"),
        (["topic", "create", "x", "--partitions", "0"], 2, "--partitions"),
        (["topic", "alter", "standing", "--partitions", "2"], 1, "only added"),
        (["topic", "alter", "standing"], 2, "nothing to change"),
        (["topic", "alter", "standing", "-s", "flush=ack", "--unset", "flush"], 2, "choose one"),
        (["topic", "describe", "standing", "--at", "12"], 2, "write a time such as"),
        (["produce", "none"], 1, "there is no topic 'none'"),
        (["produce", "standing", "-p", "9"], 1, "standing"),
        (["produce", "standing", "-K", "=", "--input", "json"], 2, "exclude each other"),
        (["consume", "none"], 1, "there is no topic 'none'"),
        (["consume", "standing", "-p", "9"], 1, "has no partition 9"),
        (["consume", "standing", "--from", "3"], 1, "name one with --partition"),
        (["consume", "standing", "-p", "0", "--from", "3"], 1, "records end before"),
        (["consume", "standing", "--from", "noon"], 2, "is not a position"),
        (["consume", "standing", "--from", "1", "--last", "3"], 2, "exclude each other"),
        (["consume", "standing", "--follow", "--to", "3"], 2, "exclude each other"),
        (["consume", "standing", "--template", "%z"], 2, "%z"),
    ],
)
def test_a_wrong_request_fails_alike(run: Run, arguments: list[str], code: int, text: str) -> None:
    result = run(*arguments, input="x\n", code=code)
    assert text in result.told
    if code == 1:
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
    assert _listed(run, "standing")[0]["partitions"] == 2
    assert _listed(run, "x") == []
