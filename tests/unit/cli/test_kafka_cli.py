"""What the commands do at a broker alone; what they do on a directory too is in tests/contract."""

import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.varve_command import Ran, run_varve
from varve.broker.security.credentials import CREDENTIALS_FILE, ScramCredentials
from varve.broker.settings import GroupSettings, SecuritySettings
from varve.brokers.client import BrokerClient
from varve.brokers.producer import Delivery, LineProducer
from varve.commit_log.health import DirectoryHealth
from varve.disk import RealFileSystem
from varve.foundation.errors import StoreError
from varve.foundation.topic_records import StoredRecord
from varve.testing.kafka_kit import KafkaKit

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def kit() -> Iterator[KafkaKit]:
    with KafkaKit(groups=GroupSettings(group_initial_rebalance_delay_ms=0)) as kit:
        yield kit


def _runner(address: str) -> Run:
    return partial(run_varve, VARVE_BOOTSTRAP=address, VARVE_DIR=None, COLUMNS="150")


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


def _listed(run: Run, topic: str) -> list[dict[str, Any]]:
    return [one for one in run("topic", "list", "--json").rows if one["topic"] == topic]


# Which broker, and whose settings count

_NOBODY = "127.0.0.1:1"


_invoke = partial(run_varve, VARVE_BOOTSTRAP=None, VARVE_COMMAND_CONFIG=None)


def test_bootstrap_option_beats_the_file_and_the_environment(
    kit: KafkaKit, run: Run, tmp_path: Path
) -> None:
    run("topic", "create", "kept")
    here, nobody = tmp_path / "here", tmp_path / "nobody"
    here.write_text(f"bootstrap.servers={kit.bootstrap}\n")
    nobody.write_text(f"bootstrap.servers={_NOBODY}\n")
    delete = ("topic", "delete", "kept", "--yes")

    environment: dict[str, Any] = {
        "VARVE_COMMAND_CONFIG": str(here),
        "VARVE_BOOTSTRAP": kit.bootstrap,
    }
    for told in (
        ("-b", _NOBODY, "--command-config", str(here)),
        ("-X", f"bootstrap.servers={_NOBODY}", "--command-config", str(here)),
        ("--command-config", str(nobody)),  # beats VARVE_BOOTSTRAP
    ):
        assert _NOBODY in _invoke(*delete, *told, code=1, **environment).stderr
    assert _listed(run, "kept")
    _invoke(*delete, "-b", kit.bootstrap, VARVE_COMMAND_CONFIG=str(nobody))
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
    groups = [one["group"] for one in run("group", "list", "--json").rows]
    assert "of-the-option" in groups
    assert "of-the-file" not in groups
    run("group", "delete", "of-the-option", "--yes")
    read = run("consume", "settings", *told)
    assert read.stdout == "x\n"


# Topics


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


# Records


@pytest.fixture
def orders(run: Run) -> Run:
    run("topic", "create", "orders", "--partitions", "2")
    return run


def test_a_transaction_is_all_or_nothing(orders: Run) -> None:
    produce = ("produce", "orders", "-K", "=", "--transactional-id", "t")
    orders(*produce, input="a=1\nb=2\n")
    result = orders(*produce, input="c=3\nx\n", code=1)
    assert "no record was kept" in result.stderr
    found = orders("consume", "orders", "--isolation", "read_committed", "-K", "=").stdout
    assert sorted(found.splitlines()) == ["a=1", "b=2"]


def test_a_read_up_to_an_offset_after_a_marker_leaves_out_that_offset(orders: Run) -> None:
    orders("produce", "orders", "-p", "1", "--transactional-id", "t", input="one\n")
    orders("produce", "orders", "-p", "1", input="after the marker at offset 1\n")
    assert orders("consume", "orders", "-p", "1", "--to", "2").stdout == "one\n"


# Groups


def test_a_group_reads_on_is_moved_and_deleted(orders: Run) -> None:
    orders("produce", "orders", "-p", "1", input="one\ntwo\nthree\n")
    assert orders("consume", "orders", "-g", "audit", "-n", "2").stdout == "one\ntwo\n"
    assert orders("consume", "orders", "-g", "audit").stdout == "three\n"
    orders("produce", "orders", "-p", "1", input="four\n")
    [listed] = orders("group", "list", "--json").rows
    assert (listed["group"], listed["state"]) == ("audit", "empty")
    [told] = orders("group", "describe", "audit", "--json").rows
    [row] = [one for one in told["partitions"] if one["partition"] == 1]
    assert (row["committed"], row["end"], row["lag"]) == (3, 4, 1)
    assert "lag 1" in orders("group", "describe", "audit").stdout
    reset = ("group", "reset-offsets", "audit", "--to", "1", "--topic", "orders:1")
    plan = orders(*reset, "--dry-run", "--json")
    assert "nothing was changed" in plan.stderr
    assert "--yes" in orders(*reset, code=1).stderr
    assert plan.rows == [
        {"type": "offset", "topic": "orders", "partition": 1, "committed": 3, "new": 1}
    ]
    [beyond] = orders(*reset, "--to", "99", "--dry-run", "--json").rows
    assert beyond["new"] == 4
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
        assert run("acl", "list", "--json").stdout == ""
        granted = ["--principal", "User:alice", "--topic", "orders"]
        run("acl", "add", *granted, "--operation", "read", "--operation", "write")
        run("acl", "add", "--principal", "User:bob", "--operation", "all", "--cluster", "--deny")
        rows = run("acl", "list", "--json").rows
        assert [(one["principal"], one["operation"], one["resource"]) for one in rows] == [
            ("User:alice", "read", "topic"),
            ("User:alice", "write", "topic"),
            ("User:bob", "all", "cluster"),
        ]
        run("acl", "delete", *granted, "--operation", "write", "--yes")
        [left] = run("acl", "list", "--topic", "orders", "--json").rows
        assert left["operation"] == "read"
        run("acl", "add", "--principal", "alice", "--operation", "read", "--topic", "x", code=2)
        run("acl", "add", "--principal", "User:a", "--operation", "fly", "--topic", "x", code=2)
        run("acl", "add", "--principal", "User:a", "--operation", "read", code=2)
        run("acl", "delete", "--yes", code=2)


def test_who_may_not_is_told_whom_to_ask() -> None:
    with KafkaKit(security=SecuritySettings(authorizer_enable=True)) as kit:
        run = _runner(kit.bootstrap)
        created = run("topic", "create", "orders", code=1).stderr
        assert "not authorised" in created
        assert "varve acl add" in created
        for command in ("user", "acl"):
            told = run(command, "list", code=1).stderr
            assert "not authorised (Cluster authorization failed)" in told


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
    producer = LineProducer(client, "standing", Delivery(transactional_id="x"))
    producer.begin()
    client.producer(transactional_id="x").init_transactions(10)
    producer.deliveries.send(StoredRecord(0, -1, -1, None, b"one"))
    with pytest.raises(StoreError, match="fenced"):
        producer.finish()


@pytest.mark.parametrize("limited", [["--operation all --group * --deny"]], indirect=True)
def test_a_read_without_a_group_needs_no_right_on_groups(limited: Run) -> None:
    limited("produce", "orders", input="one\n")
    assert limited("consume", "orders").stdout == "one\n"
    told = limited("consume", "orders", "-g", "readers", code=1).told
    assert "denied" in told or "not authorised" in told


@pytest.mark.parametrize("limited", [["--operation describe --topic orders"]], indirect=True)
def test_partitions_are_shown_to_whom_settings_are_not(limited: Run) -> None:
    told = limited("topic", "describe", "orders", code=1)
    assert told.stdout.splitlines()[2].split() == ["0", "1", "1", "1", "0", "0"]
    assert told.stderr.startswith("error: settings of orders: not authorised")
    [row] = limited("topic", "describe", "orders", "--json", code=1).rows
    assert [one["partition"] for one in row["partitions"]] == [0]
    assert row["settings"] is None


def test_users_are_added_listed_and_removed(run: Run) -> None:
    run("user", "add", "alice", "--mechanism", "SCRAM-SHA-256", input="secret\n")
    [user] = run("user", "list", "--json").rows
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


def test_an_internal_topic_that_is_missing_is_not_to_be_made() -> None:
    with KafkaKit() as fresh:
        told = _runner(fresh.bootstrap)("topic", "delete", "__consumer_offsets", code=1).stderr
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
