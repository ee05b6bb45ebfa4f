"""An epoch of a sink is one transaction, committed once; what cannot follow is refused."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from tests.support.sink_bench import (
    DIRECTORY,
    TOPIC,
    EpochBench,
    ServerSinkBench,
    SinkBench,
    epoch_rows,
)
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, InvalidRequest, InvalidTimestamp
from varve.jobs.sink.commit import DirectoryCommit
from varve.jobs.sink.sink_state import SINKS_FILE, CommitPhase, EpochWrite, SinkState
from varve.jobs.sink.staging import ABANDONED_MS, Staging, sweep_abandoned
from varve.object_store import MemoryObjectStore
from varve.testing import KafkaKit
from varve.topics.store_cluster import FIRST_PRODUCER_ID

DAY_MS = 24 * 60 * 60 * 1000


EPOCH_0: Final = {0: [b"0-0", b"0-2"], 1: [b"0-1", b"0-3"]}


@pytest.fixture
def bench() -> SinkBench:
    clock = ManualClock()
    made = SinkBench(MemoryFileSystem(clock), clock, MemoryObjectStore("memory:"))
    made.create(partitions=2)
    return made


@pytest.fixture
def server() -> Iterator[ServerSinkBench]:
    with KafkaKit() as kit:
        made = ServerSinkBench(kit)
        made.target(createTopic="true", partitions="2")
        yield made
        made.close()


@pytest.fixture(params=["bench", "server"], ids=["directory", "server"])
def any_bench(request: pytest.FixtureRequest) -> EpochBench:
    made: EpochBench = request.getfixturevalue(request.param)
    return made


# Whatever the epochs are written to


def test_an_epoch_is_a_transaction_of_all_partitions(any_bench: EpochBench) -> None:
    result = any_bench.write(0)
    assert (result.rows, result.is_repeated) == (4, False)
    assert any_bench.committed() == EPOCH_0
    with any_bench.open() as store:
        for partition in store.topic(TOPIC).partitions:
            headers = [one.header for one in partition.batches()]
            assert {one.is_transactional for one in headers} == {True}
            assert len({one.producer_id for one in headers}) == 1
            assert partition.offsets().end == 3, "two records and a marker"


def test_a_done_epoch_is_not_appended_again(any_bench: EpochBench) -> None:
    repeated = [any_bench.write(epoch).is_repeated for epoch in (0, 0, 1, 1)]
    assert repeated == [False, True, False, True]
    assert any_bench.committed()[0] == [b"0-0", b"0-2", b"1-0", b"1-2"]


def test_a_query_under_another_name_does_not_write_its_last_epoch_again(
    any_bench: EpochBench,
) -> None:
    any_bench.write(0)
    with pytest.raises(InvalidRequest, match="committed epoch 0 as sink s"):
        any_bench.write(0, sink_id="renamed")
    assert not any_bench.write(1, sink_id="renamed").is_repeated


@pytest.mark.parametrize(
    ("epoch", "count", "query", "words"),
    [
        (3, 4, "q", "an older checkpoint was restored"),
        (4, 6, "q", "these are other rows"),
        (4, 4, "another", "its epochs start again"),
        (5, 4, None, "and this is batch writes"),
    ],
)
def test_epochs_that_are_not_the_next_are_refused(
    any_bench: EpochBench, epoch: int, count: int, query: str | None, words: str
) -> None:
    any_bench.write(4)
    with pytest.raises(InvalidRequest, match=words):
        any_bench.write(epoch, count, query=query)
    assert any_bench.committed()[0] == [b"4-0", b"4-2"]


def test_a_repeated_epoch_with_other_rows_may_be_skipped(any_bench: EpochBench) -> None:
    any_bench.write(4)
    assert any_bench.write(4, 6, skips_repeated=True).is_repeated
    assert any_bench.committed()[0] == [b"4-0", b"4-2"]


# To a directory


def test_epochs_may_be_left_out(bench: SinkBench) -> None:
    bench.write(0)
    bench.write(5)
    assert bench.ledger().read()["s"].epoch == 5


def test_a_sink_keeps_to_its_topic(bench: SinkBench) -> None:
    bench.write(0)
    with bench.open() as store:
        store.delete_topic(TOPIC, at_once=True)
        store.create_topic(TOPIC, partitions=2)
    with pytest.raises(InvalidRequest, match="deleted and recreated"):
        bench.write(1)


def test_rows_staged_for_a_topic_that_was_made_again_are_refused(bench: SinkBench) -> None:
    target = bench.target()
    tasks = bench.stage([epoch_rows(0)], target)
    with bench.open() as store:
        store.delete_topic(TOPIC, at_once=True)
        store.create_topic(TOPIC, partitions=2)
    with pytest.raises(InvalidRequest, match="while rows were staged"):
        bench.commit(0, tasks, target)


def test_a_write_of_its_own_is_forgotten_when_it_is_done(bench: SinkBench) -> None:
    bench.write(0, sink_id="write-1", query=None, is_once=True)
    assert bench.ledger().read() == {}
    assert bench.committed() == EPOCH_0


def test_a_refused_batch_aborts_the_epoch_and_a_retry_succeeds(bench: SinkBench) -> None:
    with bench.open() as store:
        store.alter_topic(TOPIC, {"message.timestamp.before.max.ms": DAY_MS})
    target = bench.target()
    old = [{"value": b"old", "timestamp": 0, "partition": 1}]
    tasks = bench.stage([epoch_rows(0), old], target)
    with pytest.raises(InvalidTimestamp):
        bench.commit(0, tasks, target)
    assert bench.committed() == {0: [], 1: []}
    assert bench.ledger().read()["s"].running is None
    assert not bench.write(0).is_repeated
    assert bench.committed()[0] == [b"0-0", b"0-2"]


def test_staged_bytes_that_changed_are_not_appended(bench: SinkBench) -> None:
    target = bench.target()
    tasks = bench.stage([epoch_rows(0)], target)
    (part,) = tasks[0].parts
    data = bytearray(bench.objects.get(part.key))
    data[-1] ^= 1
    bench.objects.put(part.key, bytes(data))
    with pytest.raises(Corrupt, match="were changed"):
        bench.commit(0, tasks, target)
    bench.objects.delete([part.key])
    with pytest.raises(Corrupt, match="are missing"):
        bench.commit(0, tasks, target)
    assert bench.committed() == {0: [], 1: []}


def test_folders_of_killed_single_writes_go_after_a_week() -> None:
    objects = MemoryObjectStore("memory:")
    for key in ("stream/a-000000", "write-1/a-000000"):
        objects.put(key, b"batches")
    newest_ms = max(entry.modified_ms for entry in objects.list(""))
    assert sweep_abandoned(objects, newest_ms) == 0
    assert sweep_abandoned(objects, newest_ms + ABANDONED_MS + 1) == 1
    assert [entry.key for entry in objects.list("")] == ["stream/a-000000"]


class _Cut(Exception):
    """The process is gone."""


def cut(bench: SinkBench, *, after: CommitPhase, sink_id: str = "s", is_once: bool = False) -> None:
    """A commit that dies in that state, with all batches in the log and no marker."""
    target = bench.target()
    tasks = bench.stage([epoch_rows(0)], target, sink_id=sink_id)
    store = bench.open()
    ledger = bench.ledger()
    put = ledger.put

    def put_or_die(sink: SinkState) -> None:
        state = None if sink.running is None else sink.running.state
        if state is CommitPhase.COMMITTING and after is CommitPhase.PREPARED:
            raise _Cut
        put(sink)
        if state is CommitPhase.COMMITTING:
            raise _Cut

    ledger.put = put_or_die  # type: ignore[method-assign]  # the seam of this test
    commit = DirectoryCommit(store, ledger, clock=bench.clock, random=bench.random)
    written = EpochWrite(sink_id=sink_id, query="q", is_once=is_once, epoch=0, tasks=tasks)
    with pytest.raises(_Cut):
        commit.commit(written, target, Staging(bench.objects, sink_id))
    store.abandon()


def test_what_was_cut_before_committing_is_aborted_by_any_sink(bench: SinkBench) -> None:
    cut(bench, after=CommitPhase.PREPARED, sink_id="once", is_once=True)
    assert bench.committed() == {0: [], 1: []}
    bench.write(0)
    assert bench.committed()[0] == [b"0-0", b"0-2"]
    assert list(bench.ledger().read()) == ["s"]


def test_what_was_cut_after_committing_is_committed_and_not_written_again(
    bench: SinkBench,
) -> None:
    cut(bench, after=CommitPhase.COMMITTING)
    assert bench.ledger().read()["s"].running is not None
    assert bench.settle() == ["s"]
    assert bench.committed()[0] == [b"0-0", b"0-2"]
    assert bench.settle() == []
    assert bench.write(0).is_repeated


def test_a_cut_epoch_of_a_topic_that_is_gone_is_settled(bench: SinkBench) -> None:
    cut(bench, after=CommitPhase.COMMITTING)
    with bench.open() as store:
        store.delete_topic(TOPIC, at_once=True)
    assert bench.settle() == ["s"]
    assert bench.ledger().read()["s"].running is None


def test_a_log_that_lost_what_was_on_disk_is_named(bench: SinkBench) -> None:
    cut(bench, after=CommitPhase.COMMITTING)
    with bench.open() as store:
        store.topic(TOPIC).partition(1).log.truncate_to(0)
    with pytest.raises(Corrupt, match=r"out-1 ends at offset 0, but epoch 0 of sink s"):
        bench.settle()


def test_expired_producers_rolls_and_compaction_do_not_stop_a_sink(bench: SinkBench) -> None:
    with bench.open() as store:
        store.alter_topic(TOPIC, {"cleanup.policy": "compact", "delete.retention.ms": 0})
    target = bench.target()
    for epoch in range(4):
        keyed = [{"key": b"k", "value": b"%d" % epoch, "partition": 0}]
        bench.commit(epoch, bench.stage([keyed], target), target)
        bench.clock.advance(30 * DAY_MS)
        with bench.open() as store:
            log = store.topic(TOPIC).partition(0).log
            log.expire_producers(bench.clock.now_ms())
            assert not log.active_producers()
            store.clean(TOPIC, roll=True)
    assert bench.committed()[0] == [b"3"]
    assert bench.ledger().read()["s"].producer_epoch == 3


def test_a_producer_id_is_renewed_when_its_epochs_are_used_up(bench: SinkBench) -> None:
    bench.write(0)
    before = bench.ledger().read()["s"]
    with bench.open():
        bench.ledger().put(replace(before, producer_epoch=(1 << 15) - 2))
    bench.write(1)
    after = bench.ledger().read()["s"]
    assert after.producer_id != before.producer_id
    assert min(after.producer_id, before.producer_id) >= FIRST_PRODUCER_ID
    assert after.producer_epoch == 0


def test_a_ledger_that_cannot_be_read_stops_the_commit(bench: SinkBench) -> None:
    bench.write(0)
    path = f"{DIRECTORY}/{SINKS_FILE}"
    with bench.fs.open_writable(path) as file:
        file.truncate(30)
    with pytest.raises(Corrupt, match="restore it from a copy"):
        bench.write(1)
