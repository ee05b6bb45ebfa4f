"""The commands that speak to a broker, against one in this process."""

import io
import json
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from varve.broker.security.credentials import CREDENTIALS_FILE, ScramCredentials
from varve.broker.settings import GroupSettings, SecuritySettings
from varve.cli.kafka_client import make_client
from varve.cli.kafka_format import KafkaRecord
from varve.cli.kafka_produce import Delivery, Input, Source, produce
from varve.cli.main import app
from varve.commit_log.health import DirectoryHealth
from varve.disk import RealFileSystem
from varve.foundation.errors import StoreError
from varve.testing.kafka_kit import KafkaKit

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def kit() -> Iterator[KafkaKit]:
    with KafkaKit(groups=GroupSettings(group_initial_rebalance_delay_ms=0)) as kit:
        yield kit


def _runner(address: str) -> Run:
    def run(*arguments: str, input: bytes | str | None = None, code: int = 0) -> Any:
        environment = {"VARVE_BROKER": address, "COLUMNS": "150"}
        result = CliRunner().invoke(app, list(arguments), input=input, env=environment)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def run(kit: KafkaKit) -> Iterator[Run]:
    run = _runner(kit.bootstrap)
    yield run
    for topic in kit.store.topics():
        if not topic.name.startswith("__") and topic.name != "standing":
            run("topic", "delete", topic.name, "--yes")


@pytest.fixture(scope="module")
def standing(kit: KafkaKit) -> Run:
    """With a topic of two empty partitions that stays."""
    run = _runner(kit.bootstrap)
    run("topic", "create", "standing", "--partitions", "2")
    return run


def _lines(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def _listed(run: Run, topic: str) -> list[dict[str, Any]]:
    return [one for one in _lines(run("topic", "list", "--json")) if one["topic"] == topic]


# Which broker, and whose settings count

_NOBODY = "127.0.0.1:1"


def _invoke(*arguments: str, environment: Mapping[str, str | None] | None = None) -> Any:
    env = {"VARVE_BROKER": None, "VARVE_CLIENT_CONFIG": None, **(environment or {})}
    return CliRunner().invoke(app, list(arguments), env=env)


def test_broker_option_counts_before_the_file_and_the_environment(
    kit: KafkaKit, run: Run, tmp_path: Path
) -> None:
    run("topic", "create", "kept")
    here, nobody = tmp_path / "here", tmp_path / "nobody"
    here.write_text(f"bootstrap.servers={kit.bootstrap}\n")
    nobody.write_text(f"bootstrap.servers={_NOBODY}\n")
    delete = ("topic", "delete", "kept", "--yes")

    environment = {"VARVE_CLIENT_CONFIG": str(here), "VARVE_BROKER": kit.bootstrap}
    for told in (
        ("-b", _NOBODY, "--client-config", str(here)),
        ("-X", f"bootstrap.servers={_NOBODY}", "--client-config", str(here)),
        ("--client-config", str(nobody)),  # counts before VARVE_BROKER
    ):
        failed = _invoke(*delete, *told, environment=environment)
        assert failed.exit_code != 0
        assert _NOBODY in failed.output
    both = _invoke(*delete, "-b", kit.bootstrap, "-X", f"bootstrap.servers={_NOBODY}")
    assert "leave one out" in both.output
    assert _listed(run, "kept")

    deleted = _invoke(
        *delete, "-b", kit.bootstrap, environment={"VARVE_CLIENT_CONFIG": str(nobody)}
    )
    assert deleted.exit_code == 0, deleted.output
    assert not _listed(run, "kept")


def test_options_count_before_the_client_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "group.id=of-the-file\nauto.offset.reset=error\nenable.auto.commit=true\n"
        "transactional.id=of-the-file\ncompression.type=gzip\n"
    )
    told = ("--client-config", str(file))
    run("topic", "create", "settings")
    run("produce", "settings", "--codec", "none", "--transaction", "mine", *told, input="x\n")
    file.write_text("group.id=of-the-file\nenable.partition.eof=false\n")
    run("consume", "settings", "--group", "of-the-option", *told)
    groups = [one["group"] for one in _lines(run("group", "list", "--json"))]
    assert "of-the-option" in groups
    assert "of-the-file" not in groups
    run("group", "delete", "of-the-option", "--yes")
    read = run("consume", "settings", *told)
    assert read.stdout == "x\n"


# Topics


def test_a_topic_lives_from_its_creation_to_its_deletion(run: Run, kit: KafkaKit) -> None:
    made = run("topic", "create", "orders", "--partitions", "2", "--set", "retention.ms=5000")
    assert made.stdout == "created orders\n"
    [row] = _listed(run, "orders")
    assert row == {"topic": "orders", "partitions": 2, "replicas": 1, "internal": False}
    run("topic", "alter", "orders", "cleanup.policy=compact", "--reset", "retention.ms")
    assert kit.store.topic("orders").settings.cleanup_policy == ("compact",)
    assert kit.store.topic("orders").settings.retention_ms == 604_800_000
    assert run("topic", "add-partitions", "orders", "3").stdout == "orders has 3 partitions\n"
    [told] = _lines(run("topic", "describe", "orders", "--json"))
    assert [one["partition"] for one in told["partitions"]] == [0, 1, 2]
    assert told["settings"] == {"cleanup.policy": {"value": "compact", "source": "topic"}}
    shown = run("topic", "describe", "orders", "--settings").stdout
    assert "segment.bytes" in shown
    assert run("topic", "delete", "orders", "--yes").stdout == "deleted orders\n"
    assert _listed(run, "orders") == []


def test_a_dry_run_changes_no_topic(run: Run, kit: KafkaKit) -> None:
    run("topic", "create", "trial", "--dry-run")
    assert "trial" not in [one.name for one in kit.store.topics()]
    run("topic", "create", "orders")
    tried = run("topic", "alter", "orders", "flush=ack", "--dry-run")
    assert tried.stdout == "orders: flush would be ack\n"
    run("topic", "add-partitions", "orders", "4", "--dry-run")
    topic = kit.store.topic("orders")
    assert (topic.settings.flush, topic.partition_count) == ("interval", 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "standing"], "exists already"),
        (["create", "new", "--replicas", "3"], "ask for 1"),
        (["create", "new", "--set", "retention.m=1"], "did you mean 'retention.ms'"),
        (["describe", "none"], "varve topic create none"),
        (["delete", "none", "--yes"], "varve topic create none"),
        (["delete", "standing"], "say --yes"),
        (["alter", "standing", "segment.bytes=1"], "segment.bytes"),
        (["add-partitions", "standing", "2"], "only added"),
        (["list", "-X", "no.such=1"], "no.such"),
    ],
)
def test_a_failure_is_one_line_with_its_remedy(
    standing: Run, arguments: list[str], text: str
) -> None:
    result = standing("topic", *arguments, code=1)
    assert text in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["alter", "orders"], ["create"], ["add-partitions", "x"]])
def test_wrong_usage_exits_with_2(run: Run, arguments: list[str]) -> None:
    run("topic", *arguments, code=2)


def test_a_broker_that_is_not_there_is_told_of_soon() -> None:
    result = _runner("127.0.0.1:1")("topic", "list", code=1)
    assert "no broker answers at 127.0.0.1:1" in result.stderr
    assert "with -X security.protocol=..." in result.stderr
    assert "Connection refused" in result.stderr
    assert "varve serve" in result.stderr


# Records


@pytest.fixture
def orders(run: Run) -> Run:
    run("topic", "create", "orders", "--partitions", "2")
    return run


def test_lines_go_there_and_back(orders: Run) -> None:
    told = orders("produce", "orders", "-p", "0", input="one\ntwo\r\n\nlast")
    assert told.stderr == "produced 4 records to orders\n"
    assert orders("consume", "orders").stdout == "one\ntwo\n\nlast\n"
    assert orders("consume", "orders", "-n", "2").stdout == "\nlast\n"
    assert orders("consume", "orders", "-p", "0", "--from", "1", "-c", "1").stdout == "two\n"
    assert orders("consume", "orders", "--from", "end").stdout == ""
    assert orders("consume", "orders", "--from", "@0", "-c", "1").stdout == "one\n"
    assert orders("consume", "orders", "--from", "2200-01-01T00:00:00").stdout == ""


def test_keys_and_headers_survive_every_codec(orders: Run) -> None:
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        options = ["-H", f"codec={codec}", "--codec", codec, "-q"]
        orders("produce", "orders", "-k", "=", *options, input="key=value\n")
    found = orders("consume", "orders", "--format", r"%k=%v %h\n").stdout.splitlines()
    assert found == [f"key=value codec={codec}" for codec in codecs]


def test_everything_of_a_record_is_copied_by_json(orders: Run, kit: KafkaKit) -> None:
    lines = '{"key": "k", "value": {"base64": "/w=="}, "timestamp": 5, "headers": {"h": "x"}}\n'
    orders("produce", "orders", "--json", input=lines)
    [record] = _lines(orders("consume", "orders", "--json"))
    assert (record["key"], record["value"]) == ("k", {"base64": "/w=="})
    assert (record["timestamp"], record["headers"]) == (5, {"h": "x"})
    orders("topic", "create", "copies")
    copied = orders("consume", "orders", "--json").stdout
    orders("produce", "copies", "--json", "--acks", "1", input=copied)
    [copy] = _lines(orders("consume", "copies", "--json"))
    assert {**copy, "topic": "orders", "partition": record["partition"]} == record


def test_files_are_lines_or_whole_values(orders: Run, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1\n2\n")
    two.write_text("3\n")
    orders("produce", "orders", str(one), str(two), "-p", "0")
    assert orders("consume", "orders").stdout == "1\n2\n3\n"
    orders("produce", "orders", "-w", str(one), str(two), "-p", "1")
    assert orders("consume", "orders", "-p", "1", "--format", "%S ").stdout == "4 2 "


def test_a_topic_is_made_only_when_that_is_said(run: Run, kit: KafkaKit) -> None:
    refused = run("produce", "typo", input="x\n", code=1)
    assert "varve topic create typo" in refused.stderr
    assert "typo" not in [one.name for one in kit.store.topics()]
    run("produce", "greetings", "--create", input="x\n")
    assert run("consume", "greetings").stdout == "x\n"


def test_a_line_that_cannot_be_read_keeps_what_came_before(orders: Run) -> None:
    result = orders("produce", "orders", "-k", "=", input="a=1\nbad\nb=2\n", code=1)
    assert "line 2" in result.stderr
    assert "1 record was delivered before it" in result.stderr
    assert orders("consume", "orders").stdout == "1\n"


def test_a_transaction_is_all_or_nothing(orders: Run) -> None:
    orders("produce", "orders", "-k", "=", "--transaction", "t", input="a=1\nb=2\n")
    result = orders("produce", "orders", "-k", "=", "--transaction", "t", input="c=3\nx\n", code=1)
    assert "nothing is kept" in result.stderr
    found = orders("consume", "orders", "--read-committed", "-k", "=").stdout
    assert sorted(found.splitlines()) == ["a=1", "b=2"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["none"], 1, "varve topic create none"),
        (["standing", "-p", "7"], 1, "0 to 1"),
        (["standing", "--from", "3"], 1, "--partition"),
        (["standing", "-p", "0", "--from", "3"], 1, "0 to 0"),
        (["standing", "--from", "noon"], 2, "@milliseconds"),
        (["standing", "--from", "end", "-n", "3"], 2, "exclude"),
        (["standing", "--group", "g", "-n", "3"], 2, "reset-offsets"),
        (["standing", "--format", "%z"], 2, "%z"),
    ],
)
def test_what_cannot_be_consumed_is_told(
    standing: Run, arguments: list[str], code: int, text: str
) -> None:
    assert text in standing("consume", *arguments, code=code).stderr


# Groups


def test_a_group_reads_on_is_moved_and_deleted(orders: Run) -> None:
    orders("produce", "orders", "-p", "1", input="one\ntwo\nthree\n")
    assert orders("consume", "orders", "-g", "audit", "-c", "2").stdout == "one\ntwo\n"
    assert orders("consume", "orders", "-g", "audit").stdout == "three\n"
    orders("produce", "orders", "-p", "1", input="four\n")
    [listed] = _lines(orders("group", "list", "--json"))
    assert (listed["group"], listed["state"]) == ("audit", "empty")
    [told] = _lines(orders("group", "describe", "audit", "--json"))
    [row] = [one for one in told["partitions"] if one["partition"] == 1]
    assert (row["committed"], row["end"], row["lag"]) == (3, 4, 1)
    assert "lag 1" in orders("group", "describe", "audit").stdout
    plan = orders("group", "reset-offsets", "audit", "--to", "1", "-t", "orders:1", "--json")
    assert "--execute" in plan.stderr
    assert _lines(plan) == [{"topic": "orders", "partition": 1, "committed": 3, "new": 1}]
    orders("group", "reset-offsets", "audit", "--to", "1", "-t", "orders:1", "--execute")
    assert orders("consume", "orders", "-g", "audit").stdout == "two\nthree\nfour\n"
    assert orders("group", "delete", "audit", "--yes").stdout == "deleted audit\n"
    missing = orders("group", "describe", "audit", code=1)
    assert "varve group list" in missing.stderr
    orders("group", "reset-offsets", "new", "--to", "earliest", code=1)


# Rights and users


def test_rights_are_granted_shown_and_withdrawn() -> None:
    security = SecuritySettings(authorizer_enable=True, super_users="User:ANONYMOUS")
    with KafkaKit(security=security) as kit:
        run = _runner(kit.bootstrap)
        granted = ["--principal", "User:alice", "--topic", "orders"]
        run("acl", "add", *granted, "-o", "read", "-o", "write")
        run("acl", "add", "--principal", "User:bob", "-o", "all", "--cluster", "--deny")
        rows = _lines(run("acl", "list", "--json"))
        assert [(one["principal"], one["operation"], one["resource"]) for one in rows] == [
            ("User:alice", "read", "topic"),
            ("User:alice", "write", "topic"),
            ("User:bob", "all", "cluster"),
        ]
        run("acl", "remove", *granted, "-o", "write", "--yes")
        [left] = _lines(run("acl", "list", "--topic", "orders", "--json"))
        assert left["operation"] == "read"
        run("acl", "add", "--principal", "alice", "-o", "read", "--topic", "x", code=2)
        run("acl", "add", "--principal", "User:a", "-o", "fly", "--topic", "x", code=2)
        run("acl", "add", "--principal", "User:a", "-o", "read", code=2)
        run("acl", "remove", "--yes", code=2)


def test_who_may_not_is_told_whom_to_ask() -> None:
    with KafkaKit(security=SecuritySettings(authorizer_enable=True)) as kit:
        result = _runner(kit.bootstrap)("topic", "create", "orders", code=1)
        assert "not authorised" in result.stderr
        assert "varve acl add" in result.stderr


@pytest.fixture
def limited(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Before a broker with a topic, that keeps the rights of the parameter; others are open."""
    security = SecuritySettings(authorizer_enable=True, allow_everyone_if_no_acl_found=True)
    with KafkaKit(security=security) as kit:
        run = _runner(kit.bootstrap)
        run("topic", "create", "orders")
        for right in request.param:
            run("acl", "add", "--principal", "User:*", *right.split())
        yield run


@pytest.mark.parametrize(
    ("limited", "options", "text"),
    [
        (
            ["-o describe --topic *", "-o write --topic * --deny", "-o describe --cluster"],
            [],
            "topic orders: not authorised",
        ),
        (
            ["-o describe --transactional-id x"],
            ["--transaction", "x"],
            "transaction x: not authorised",
        ),
    ],
    indirect=["limited"],
)
def test_a_producer_that_is_denied_its_id_is_one_line(
    limited: Run, options: list[str], text: str
) -> None:
    result = limited("produce", "orders", *options, input="one\ntwo\n", code=1)
    assert text in result.stderr
    assert "varve acl add" in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_producer_that_is_fenced_says_so(standing: Run, kit: KafkaKit) -> None:
    client = make_client(kit.bootstrap, [], None)

    def read_line(line: bytes) -> KafkaRecord:
        other = client.producer(transactional_id="x")
        other.init_transactions(10)
        return KafkaRecord("standing", 0, -1, -1, None, line)

    with pytest.raises(StoreError, match="fenced"):
        produce(
            client,
            "standing",
            Source(read_line),
            [Input("lines", io.BytesIO(b"one\n"))],
            Delivery("none", "all", idempotent=True, transaction="x"),
            creates_topic=False,
        )


@pytest.mark.parametrize("limited", [["-o describe --topic orders"]], indirect=True)
def test_partitions_are_shown_to_whom_settings_are_not(limited: Run) -> None:
    told = limited("topic", "describe", "orders", code=1)
    assert told.stdout.splitlines()[2].split() == ["0", "1", "1", "1", "0", "0"]
    assert told.stderr.startswith("error: settings of orders: not authorised")
    [row] = _lines(limited("topic", "describe", "orders", "--json", code=1))
    assert [one["partition"] for one in row["partitions"]] == [0]
    assert row["settings"] is None


def test_users_are_added_listed_and_removed(run: Run) -> None:
    run("user", "add", "alice", "--mechanism", "SCRAM-SHA-256", input="secret\n")
    [user] = _lines(run("user", "list", "--json"))
    assert user == {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 8192}
    run("user", "remove", "alice", "--mechanism", "SCRAM-SHA-256")
    run("user", "remove", "alice", "--mechanism", "SCRAM-SHA-256", code=1)
    assert "no password" in run("user", "add", "alice", input="", code=1).stderr


def test_the_first_user_is_added_to_directories_that_nobody_serves(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    options = [f"--directory={path}" for path in paths]
    paths[1].mkdir()
    told = _runner("nowhere:1")("user", "add", "admin", *options, input="secret\n")
    assert told.stdout == "admin logs in by SCRAM-SHA-512\n"
    assert told.stderr == f"made {paths[0]}, which was not there\n"
    for path in paths:
        table = ScramCredentials(RealFileSystem(), [DirectoryHealth(str(path))])
        table.load()
        assert list(table.users) == ["admin"]
        assert stat.S_IMODE((path / CREDENTIALS_FILE).stat().st_mode) == 0o600


def test_a_user_is_added_to_a_broker_or_to_directories(tmp_path: Path) -> None:
    both = ["-b", "nowhere:1", "-d", str(tmp_path / "a")]
    told = _runner("nowhere:1")("user", "add", "admin", *both, input="secret\n", code=2)
    assert "exclude each other" in told.stderr
    assert not (tmp_path / "a").exists()


def test_rights_that_are_not_in_force_are_told(run: Run) -> None:
    for arguments in (["list"], ["remove", "--principal", "User:alice", "--yes"]):
        told = run("acl", *arguments, code=1)
        assert "keeps no rights (SECURITY_DISABLED)" in told.stderr
        assert told.stdout == ""


def test_rights_of_which_there_are_none_yet_are_an_empty_list() -> None:
    security = SecuritySettings(authorizer_enable=True, super_users="User:ANONYMOUS")
    with KafkaKit(security=security) as kit:
        assert _runner(kit.bootstrap)("acl", "list", "--json").stdout == ""


def test_an_internal_topic_that_is_missing_is_not_to_be_made() -> None:
    with KafkaKit() as kit:
        told = _runner(kit.bootstrap)("topic", "delete", "__consumer_offsets", code=1).stderr
    assert "the broker makes it when it is first needed" in told
    assert "varve topic create" not in told


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "orders", "--partitions", "1000000"),
        ("create", "orders", "--replicas", "100000"),
        ("add-partitions", "standing", "1000000"),
    ],
)
def test_what_the_library_does_not_ask_for_is_an_error(
    standing: Run, arguments: tuple[str, ...]
) -> None:
    told = standing("topic", *arguments, code=1).stderr
    assert told.startswith("error: topic ")
    assert "out of expected range" in told


@pytest.mark.parametrize("command", ["user", "acl"])
def test_lists_that_nobody_may_see_are_refused(command: str) -> None:
    with KafkaKit(security=SecuritySettings(authorizer_enable=True)) as kit:
        told = _runner(kit.bootstrap)(command, "list", code=1).stderr
    assert "not authorised (Cluster authorization failed)" in told
