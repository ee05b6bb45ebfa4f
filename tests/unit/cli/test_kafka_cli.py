"""The commands that speak to a broker, against one in this process."""

import json
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from varve.broker.security.credentials import CREDENTIALS_FILE, ScramCredentials
from varve.broker.settings import GroupSettings, SecuritySettings
from varve.brokers.client import BrokerClient
from varve.brokers.producing import BrokerProducer, Delivery
from varve.brokers.record import TopicRecord
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
        environment = {"VARVE_BOOTSTRAP": address, "VARVE_DIR": None, "COLUMNS": "150"}
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
    env = {"VARVE_BOOTSTRAP": None, "VARVE_COMMAND_CONFIG": None, **(environment or {})}
    return CliRunner().invoke(app, list(arguments), env=env)


def test_bootstrap_option_beats_the_file_and_the_environment(
    kit: KafkaKit, run: Run, tmp_path: Path
) -> None:
    run("topic", "create", "kept")
    here, nobody = tmp_path / "here", tmp_path / "nobody"
    here.write_text(f"bootstrap.servers={kit.bootstrap}\n")
    nobody.write_text(f"bootstrap.servers={_NOBODY}\n")
    delete = ("topic", "delete", "kept", "--yes")

    environment = {"VARVE_COMMAND_CONFIG": str(here), "VARVE_BOOTSTRAP": kit.bootstrap}
    for told in (
        ("-b", _NOBODY, "--command-config", str(here)),
        ("-X", f"bootstrap.servers={_NOBODY}", "--command-config", str(here)),
        ("--command-config", str(nobody)),  # beats VARVE_BOOTSTRAP
    ):
        failed = _invoke(*delete, *told, environment=environment)
        assert failed.exit_code != 0
        assert _NOBODY in failed.output
    both = _invoke(*delete, "-b", kit.bootstrap, "-X", f"bootstrap.servers={_NOBODY}")
    assert "leave one of them out" in " ".join(both.output.split())
    assert _listed(run, "kept")

    deleted = _invoke(
        *delete, "-b", kit.bootstrap, environment={"VARVE_COMMAND_CONFIG": str(nobody)}
    )
    assert deleted.exit_code == 0, deleted.output
    assert not _listed(run, "kept")


def test_options_count_before_the_client_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "group.id=of-the-file\nauto.offset.reset=error\nenable.auto.commit=true\n"
        "transactional.id=of-the-file\ncompression.type=gzip\n"
    )
    told = ("--command-config", str(file))
    run("topic", "create", "settings")
    run("produce", "settings", "--codec", "none", "--transactional-id", "mine", *told, input="x\n")
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
    assert row == {
        "type": "topic",
        "topic": "orders",
        "partitions": 2,
        "replicas": 1,
        "internal": False,
    }
    changes = ("-s", "cleanup.policy=compact", "--unset", "retention.ms")
    assert run("topic", "alter", "orders", *changes).stdout.splitlines() == [
        "orders: cleanup.policy is compact",
        "orders: retention.ms is the default",
    ]
    assert kit.store.topic("orders").settings.cleanup_policy == ("compact",)
    assert kit.store.topic("orders").settings.retention_ms == 604_800_000
    assert (
        run("topic", "alter", "orders", "--partitions", "3").stdout == "orders has 3 partitions\n"
    )
    [told] = _lines(run("topic", "describe", "orders", "--json"))
    assert [one["partition"] for one in told["partitions"]] == [0, 1, 2]
    assert told["settings"] == {"cleanup.policy": {"value": "compact", "source": "topic"}}
    shown = run("topic", "describe", "orders", "--all-settings").stdout
    assert "segment.bytes" in shown
    assert run("topic", "delete", "orders", "--yes").stdout == "deleted orders\n"
    assert _listed(run, "orders") == []


def test_a_dry_run_changes_no_topic(run: Run, kit: KafkaKit) -> None:
    run("topic", "create", "trial", "--dry-run")
    assert "trial" not in [one.name for one in kit.store.topics()]
    run("topic", "create", "orders")
    tried = run("topic", "alter", "orders", "-s", "flush=ack", "--dry-run")
    assert tried.stdout == "orders: flush would be ack\n"
    tried = run("topic", "alter", "orders", "--partitions", "4", "--dry-run")
    assert tried.stdout == "orders would have 4 partitions\n"
    topic = kit.store.topic("orders")
    assert (topic.settings.flush, topic.partition_count) == ("interval", 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "standing"], "exists; change its settings with `varve topic alter standing`"),
        (["create", "new", "--replicas", "3"], "use 1"),
        (["create", "new", "--set", "retention.m=1"], "did you mean 'retention.ms'"),
        (["describe", "none"], "varve topic create none"),
        (["delete", "none", "--yes"], "varve topic create none"),
        (["delete", "standing"], "add --yes"),
        (["alter", "standing", "-s", "segment.bytes=1"], "segment.bytes"),
        (["alter", "standing", "--partitions", "2"], "only added"),
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


@pytest.mark.parametrize(
    "arguments", [["alter", "orders"], ["create"], ["alter", "x", "--partitions", "0"]]
)
def test_wrong_usage_exits_with_2(run: Run, arguments: list[str]) -> None:
    run("topic", *arguments, code=2)


def test_a_broker_that_is_not_there_is_told_of_soon() -> None:
    result = _runner("127.0.0.1:1")("topic", "list", code=1)
    assert "no broker answers at 127.0.0.1:1" in result.stderr
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
    assert orders("consume", "orders", "--last", "2").stdout == "\nlast\n"
    assert orders("consume", "orders", "-p", "0", "--from", "1", "-n", "1").stdout == "two\n"
    assert orders("consume", "orders", "--from", "end").stdout == ""
    assert orders("consume", "orders", "--from", "@0", "-n", "1").stdout == "one\n"
    assert orders("consume", "orders", "--from", "2200-01-01T00:00:00").stdout == ""
    assert orders("consume", "orders", "--to", "@0").stdout == ""
    assert orders("consume", "orders", "-p", "0", "--to", "2").stdout == "one\ntwo\n"
    assert orders("consume", "orders", "-p", "0", "--last", "3", "--to", "3").stdout == "two\n\n"


def test_keys_and_headers_survive_every_codec(orders: Run) -> None:
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        options = ["--header", f"codec={codec}", "--codec", codec, "-q"]
        orders("produce", "orders", "-K", "=", *options, input="key=value\n")
    found = orders("consume", "orders", "--template", r"%k=%v %h\n").stdout.splitlines()
    assert found == [f"key=value codec={codec}" for codec in codecs]


def test_everything_of_a_record_is_copied_by_json(orders: Run, kit: KafkaKit) -> None:
    lines = '{"key": "k", "value": {"base64": "/w=="}, "timestamp": 5, "headers": {"h": "x"}}\n'
    orders("produce", "orders", "--input", "json", input=lines)
    [record] = _lines(orders("consume", "orders", "--json"))
    assert (record["key"], record["value"]) == ("k", {"base64": "/w=="})
    assert (record["timestamp"], record["headers"]) == (5, {"h": "x"})
    orders("topic", "create", "copies")
    copied = orders("consume", "orders", "--json").stdout
    orders("produce", "copies", "--input", "json", "--acks", "1", input=copied)
    [copy] = _lines(orders("consume", "copies", "--json"))
    assert {**copy, "topic": "orders", "partition": record["partition"]} == record


def test_files_are_lines_or_whole_values(orders: Run, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1\n2\n")
    two.write_text("3\n")
    orders("produce", "orders", str(one), str(two), "-p", "0")
    assert orders("consume", "orders").stdout == "1\n2\n3\n"
    orders("produce", "orders", "--input", "files", str(one), str(two), "-p", "1")
    assert orders("consume", "orders", "-p", "1", "--template", "%S ").stdout == "4 2 "


def test_a_topic_is_made_only_when_that_is_said(run: Run, kit: KafkaKit) -> None:
    refused = run("produce", "typo", input="x\n", code=1)
    assert "varve topic create typo" in refused.stderr
    assert "typo" not in [one.name for one in kit.store.topics()]
    run("produce", "greetings", "--create", input="x\n")
    assert run("consume", "greetings").stdout == "x\n"


def test_a_line_that_cannot_be_read_keeps_what_came_before(orders: Run) -> None:
    result = orders("produce", "orders", "-K", "=", input="a=1\nbad\nb=2\n", code=1)
    assert "line 2" in result.stderr
    assert "1 record was delivered before it" in result.stderr
    assert orders("consume", "orders").stdout == "1\n"


def test_a_transaction_is_all_or_nothing(orders: Run) -> None:
    produce = ("produce", "orders", "-K", "=", "--transactional-id", "t")
    orders(*produce, input="a=1\nb=2\n")
    result = orders(*produce, input="c=3\nx\n", code=1)
    assert "no record was kept" in result.stderr
    found = orders("consume", "orders", "--isolation", "read_committed", "-K", "=").stdout
    assert sorted(found.splitlines()) == ["a=1", "b=2"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["none"], 1, "varve topic create none"),
        (["standing", "-p", "7"], 1, "0 to 1"),
        (["standing", "--from", "3"], 1, "--partition"),
        (["standing", "-p", "0", "--from", "3"], 1, "0 to 0"),
        (["standing", "--from", "noon"], 2, "@milliseconds"),
        (["standing", "--from", "end", "--last", "3"], 2, "exclude"),
        (["standing", "--group", "g", "--last", "3"], 2, "reset-offsets"),
        (["standing", "--follow", "--to", "3"], 2, "exclude"),
        (["standing", "--template", "%z"], 2, "%z"),
    ],
)
def test_what_cannot_be_consumed_is_told(
    standing: Run, arguments: list[str], code: int, text: str
) -> None:
    assert text in standing("consume", *arguments, code=code).stderr


# Groups


def test_a_group_reads_on_is_moved_and_deleted(orders: Run) -> None:
    orders("produce", "orders", "-p", "1", input="one\ntwo\nthree\n")
    assert orders("consume", "orders", "-g", "audit", "-n", "2").stdout == "one\ntwo\n"
    assert orders("consume", "orders", "-g", "audit").stdout == "three\n"
    orders("produce", "orders", "-p", "1", input="four\n")
    [listed] = _lines(orders("group", "list", "--json"))
    assert (listed["group"], listed["state"]) == ("audit", "empty")
    [told] = _lines(orders("group", "describe", "audit", "--json"))
    [row] = [one for one in told["partitions"] if one["partition"] == 1]
    assert (row["committed"], row["end"], row["lag"]) == (3, 4, 1)
    assert "lag 1" in orders("group", "describe", "audit").stdout
    reset = ("group", "reset-offsets", "audit", "--to", "1", "--topic", "orders:1")
    plan = orders(*reset, "--dry-run", "--json")
    assert "nothing was changed" in plan.stderr
    assert "--yes" in orders(*reset, code=1).stderr
    assert _lines(plan) == [
        {"type": "offset", "topic": "orders", "partition": 1, "committed": 3, "new": 1}
    ]
    orders(*reset, "--yes")
    assert orders("consume", "orders", "-g", "audit").stdout == "two\nthree\nfour\n"
    assert orders("group", "delete", "audit", "--yes").stdout == "deleted audit\n"
    missing = orders("group", "describe", "audit", code=1)
    assert "varve group list" in missing.stderr
    orders("group", "reset-offsets", "new", "--to", "earliest", "--yes", code=1)


# Rights and users


def test_rights_are_granted_shown_and_withdrawn() -> None:
    security = SecuritySettings(authorizer_enable=True, super_users="User:ANONYMOUS")
    with KafkaKit(security=security) as kit:
        run = _runner(kit.bootstrap)
        granted = ["--principal", "User:alice", "--topic", "orders"]
        run("acl", "add", *granted, "--operation", "read", "--operation", "write")
        run("acl", "add", "--principal", "User:bob", "--operation", "all", "--cluster", "--deny")
        rows = _lines(run("acl", "list", "--json"))
        assert [(one["principal"], one["operation"], one["resource"]) for one in rows] == [
            ("User:alice", "read", "topic"),
            ("User:alice", "write", "topic"),
            ("User:bob", "all", "cluster"),
        ]
        run("acl", "delete", *granted, "--operation", "write", "--yes")
        [left] = _lines(run("acl", "list", "--topic", "orders", "--json"))
        assert left["operation"] == "read"
        run("acl", "add", "--principal", "alice", "--operation", "read", "--topic", "x", code=2)
        run("acl", "add", "--principal", "User:a", "--operation", "fly", "--topic", "x", code=2)
        run("acl", "add", "--principal", "User:a", "--operation", "read", code=2)
        run("acl", "delete", "--yes", code=2)


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
            [
                "--operation describe --topic *",
                "--operation write --topic * --deny",
                "--operation describe --cluster",
            ],
            [],
            "topic orders: not authorised",
        ),
        (
            ["--operation describe --transactional-id x"],
            ["--transactional-id", "x"],
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
    client = BrokerClient(kit.bootstrap, {})
    producer = BrokerProducer(client, "standing", Delivery(transactional_id="x"))
    producer.begin()
    client.producer(transactional_id="x").init_transactions(10)
    producer.send(TopicRecord("standing", 0, value=b"one"))
    with pytest.raises(StoreError, match="fenced"):
        producer.finish()


@pytest.mark.parametrize("limited", [["--operation describe --topic orders"]], indirect=True)
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
    assert user == {
        "type": "user",
        "user": "alice",
        "mechanism": "SCRAM-SHA-256",
        "iterations": 8192,
    }
    run("user", "delete", "alice", "--yes", "--mechanism", "SCRAM-SHA-256")
    run("user", "delete", "alice", "--yes", "--mechanism", "SCRAM-SHA-256", code=1)
    assert "no password" in run("user", "add", "alice", input="", code=1).stderr


def test_the_first_user_is_added_to_directories_that_nobody_serves(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    options = [f"--dir={path}" for path in paths]
    paths[1].mkdir()
    told = _runner("nowhere:1")("user", "add", "admin", *options, input="secret\n")
    assert told.stdout == "admin logs in with SCRAM-SHA-512\n"
    assert told.stderr == f"created {paths[0]}, which did not exist\n"
    for path in paths:
        table = ScramCredentials(RealFileSystem(), [DirectoryHealth(str(path))])
        table.load()
        assert list(table.users) == ["admin"]
        assert stat.S_IMODE((path / CREDENTIALS_FILE).stat().st_mode) == 0o600


def test_a_user_is_added_to_a_broker_or_to_directories(tmp_path: Path) -> None:
    both = ["-b", "nowhere:1", "-d", str(tmp_path / "a")]
    told = _runner("nowhere:1")("user", "add", "admin", *both, input="secret\n", code=2)
    assert "leave one of them out" in told.stderr
    assert not (tmp_path / "a").exists()


def test_rights_that_are_not_in_force_are_told(run: Run) -> None:
    for arguments in (["list"], ["delete", "--principal", "User:alice", "--yes"]):
        told = run("acl", *arguments, code=1)
        assert "ACLs are disabled on the broker at 127.0.0.1:" in told.stderr
        assert told.stdout == ""


def test_rights_of_which_there_are_none_yet_are_an_empty_list() -> None:
    security = SecuritySettings(authorizer_enable=True, super_users="User:ANONYMOUS")
    with KafkaKit(security=security) as kit:
        assert _runner(kit.bootstrap)("acl", "list", "--json").stdout == ""


def test_an_internal_topic_that_is_missing_is_not_to_be_made() -> None:
    with KafkaKit() as kit:
        told = _runner(kit.bootstrap)("topic", "delete", "__consumer_offsets", code=1).stderr
    assert "the broker creates it when it is first needed" in told
    assert "varve topic create" not in told


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "orders", "--partitions", "1000000"),
        ("create", "orders", "--replicas", "100000"),
        ("alter", "standing", "--partitions", "1000000"),
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
