"""What the commands do on a directory alone; what they do at a broker too is in tests/contract."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import varve
from tests.support.varve_command import Ran, run_varve
from varve.cli import produce
from varve.cli.record_format import LineChunk
from varve.records import build_batch

Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `varve` on a directory of its own."""
    return partial(run_varve, VARVE_DIR=str(tmp_path / "data"), VARVE_BOOTSTRAP=None)


@pytest.fixture
def orders(run: Run) -> Run:
    run("topic", "create", "orders")
    return run


def test_an_interrupted_append_says_what_was_appended(
    orders: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(stream: object) -> Iterator[LineChunk]:
        yield LineChunk(1, [b"a", b"b"], 4)
        raise KeyboardInterrupt

    monkeypatch.setattr(produce, "read_chunks", interrupted)
    result = orders("produce", "orders", code=130)
    assert result.stderr == "interrupted: 2 records were appended\n"
    assert orders("consume", "orders").stdout == "a\nb\n"


def test_a_record_that_is_too_large_says_what_was_appended(orders: Run) -> None:
    big = b"x" * 2_000_000
    result = orders("produce", "orders", "--codec", "none", input=b"a\nb\n" + big + b"\n", code=1)
    assert "max.message.bytes" in result.stderr
    assert "records were appended before it" in result.stderr


def test_a_topic_that_cannot_be_loaded_leads_to_the_check(orders: Run, tmp_path: Path) -> None:
    orders("produce", "orders", input=b"x\n")
    (found,) = tmp_path.rglob("partition.metadata")
    found.write_bytes(b"garbage")
    result = orders("consume", "orders", code=1)
    assert "`varve check`" in result.stderr


def test_a_directory_in_use_is_refused(orders: Run, tmp_path: Path) -> None:
    with varve.open(tmp_path / "data"):
        result = orders("topic", "list", code=1)
    assert "is in use by this process" in result.stderr


def test_topics_and_offsets_are_listed(run: Run) -> None:
    run("topic", "create", "orders", "--partitions", "2", "--set", "segment.bytes=1000")
    run("produce", "orders", "--partition", "1", input="a\nb\n")
    (topic,) = run("topic", "list", "--json").rows
    assert (topic["topic"], topic["partitions"], topic["offsets"]) == ("orders", 2, 2)
    assert topic["settings"] == {"segment.bytes": "1000"}
    assert "segment.bytes=1000" in run("topic", "list").stdout
    (described,) = run("topic", "describe", "orders", "--at", "@0", "--json").rows
    assert [partition["end"] for partition in described["partitions"]] == [0, 2]
    assert [partition["at_time"] for partition in described["partitions"]] == [None, 0]


def test_internal_topics_of_a_served_directory_are_listed_on_demand(
    orders: Run, tmp_path: Path
) -> None:
    with varve.open(tmp_path / "data", maintain=False) as store:
        store.create_topic("__consumer_offsets")
    assert "__consumer_offsets" not in orders("topic", "list").stdout
    listed = orders("topic", "list", "--internal", "--json").rows
    assert [(row["topic"], row["internal"]) for row in listed] == [
        ("__consumer_offsets", True),
        ("orders", False),
    ]


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


def test_a_topic_is_deleted_with_its_files_after_a_yes(orders: Run, tmp_path: Path) -> None:
    orders("produce", "orders", input="one\n")
    refused = orders("topic", "delete", "orders", code=1)
    assert "--yes" in refused.stderr
    assert orders("consume", "orders").stdout == "one\n"
    result = orders("topic", "delete", "orders", "--yes")
    assert result.stdout == "deleted orders with 86 bytes of records\n"
    assert not [path for path in (tmp_path / "data").iterdir() if path.is_dir()]
    assert "there is no topic" in orders("consume", "orders", code=1).stderr
