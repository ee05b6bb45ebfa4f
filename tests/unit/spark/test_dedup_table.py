"""A deduplicated table beside an erasure and an expiry: no batch is lost or doubled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source_topic import read_batches
from tests.support.table_bench import TABLE, TableBench
from tests.unit.jobs.test_table import JSON, put
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest
from varve.jobs.derived_outputs import ErasedRows
from varve.jobs.table.erase import count_in_table, erase_from_table
from varve.jobs.table.rewrite import expire_snapshots
from varve.jobs.table.table_state import CommitConflict, find_run_markers, sweep
from varve.spark.deduplication.outputs import TableOutput, TableTask, TableWriter
from varve.topics.outputs import DerivedOutput, OutputKind

KEYS = [b"k0", b"k1", b"k2", b"k3", b"k4", b"k5"]
KEY = ErasedRows(frozenset({b"k3"}), {})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TableBench]:
    made = TableBench(tmp_path)
    put(made, 0, 6)
    made.topic.put(("bad", "no JSON"))
    made.topic.flush()
    yield made
    made.close()


def open_writer(bench: TableBench, sink_id: str = "sink") -> TableWriter:
    output = TableOutput(catalog=bench.address, name=TABLE, settings=JSON)
    options = bench.topic.options(is_hot=True)
    return TableWriter.open(output, options, sink_id=sink_id, bucket_keys=(0,), clock=SystemClock())


def write_files(bench: TableBench, task: TableTask) -> list[tuple[bytes, bytes]]:
    """What a Spark task of the batch does: all records of the topic, once."""
    batches = read_batches(bench.topic.options(is_hot=True))
    return [
        (row["written"], row["offsets"])
        for found in task.write(batches)
        for row in found.to_pylist()
    ]


def write_batch(bench: TableBench, writer: TableWriter, batch_id: int) -> bool:
    task = writer.begin_batch(batch_id)
    if task is None:
        return False
    writer.commit_batch(batch_id, task.run_id, write_files(bench, task))
    return True


def noted(bench: TableBench, writer: TableWriter) -> DerivedOutput:
    return DerivedOutput(
        kind=OutputKind.TABLE,
        topic="orders",
        topic_id="id",
        place=bench.address.place,
        name=TABLE,
        how=bench.address.how(),
        noted_ms=0,
        locations=writer.tables.locations(),
    )


def test_expired_snapshots_leave_the_files_of_a_batch_in_flight(bench: TableBench) -> None:
    writer = open_writer(bench)
    assert write_batch(bench, writer, 0)
    task = writer.begin_batch(1)
    assert task is not None
    outcomes = write_files(bench, task)
    expire_snapshots(bench.address, TABLE, older_than_ms=1 << 60)
    writer.commit_batch(1, task.run_id, outcomes)
    assert [row["_key"] for row in bench.rows()] == [key for key in KEYS for _ in range(2)]
    assert len(bench.bad_rows()) == 2
    expire_snapshots(bench.address, TABLE, older_than_ms=1 << 60)
    assert len(bench.rows()) == 12


def test_an_erasure_ends_a_batch_in_flight_which_is_then_repeated(bench: TableBench) -> None:
    writer = open_writer(bench)
    assert write_batch(bench, writer, 0)
    task = writer.begin_batch(1)
    assert task is not None
    outcomes = write_files(bench, task)
    erase_from_table(noted(bench, writer), {}, KEY)
    with pytest.raises(CommitConflict):
        writer.commit_batch(1, task.run_id, outcomes)
    assert count_in_table(noted(bench, writer), {}, KEY) == 0
    again = open_writer(bench)
    assert write_batch(bench, again, 1)
    assert [row["_key"] for row in bench.rows()].count(b"k0") == 2


def test_an_erasure_that_still_deletes_files_of_a_batch_spares_those_of_its_repetition(
    bench: TableBench,
) -> None:
    writer = open_writer(bench)
    assert write_batch(bench, writer, 0)
    killed = writer.begin_batch(1)
    assert killed is not None
    write_files(bench, killed)
    table = writer.tables.table
    task = open_writer(bench).begin_batch(1)
    assert task is not None
    assert killed.run_id not in find_run_markers(table)
    outcomes = write_files(bench, task)
    sweep(table, killed.run_id)
    writer.commit_batch(1, task.run_id, outcomes)
    assert [row["_key"] for row in bench.rows()].count(b"k0") == 2
    assert bench.marks() == []


def test_a_table_goes_on_after_an_erasure_and_knows_its_batches(bench: TableBench) -> None:
    writer = open_writer(bench)
    assert write_batch(bench, writer, 0)
    erase_from_table(noted(bench, writer), {}, KEY)
    again = open_writer(bench)
    assert not write_batch(bench, again, 0)
    assert [row["_key"] for row in bench.rows()] == [b"k0", b"k1", b"k2", b"k4", b"k5"]
    assert write_batch(bench, again, 1)
    assert len(bench.rows()) == 11


def test_a_table_of_another_checkpoint_is_refused_also_after_an_erasure(bench: TableBench) -> None:
    writer = open_writer(bench)
    assert write_batch(bench, writer, 0)
    erase_from_table(noted(bench, writer), {}, KEY)
    with pytest.raises(InvalidRequest, match="was written by sink"):
        open_writer(bench, "another")
    with pytest.raises(InvalidRequest, match="deduplication"):
        bench.sync(JSON)
