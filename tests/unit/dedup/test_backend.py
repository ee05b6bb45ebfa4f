"""The topics of a deduplication in a store: whole commits, and what a new start ends."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

import varve
from tests.support.dedup_cases import rules_of
from varve.dedup.backend import DedupBackend, PartitionWriter, ProgressCoordinator, TaskCommit
from varve.dedup.progress import Progress
from varve.dedup.topics import DedupTopics, topic_settings
from varve.embedded import Store
from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    Closed,
    Corrupt,
    DiskFull,
    InvalidProducerEpoch,
    InvalidRequest,
)
from varve.records import Producer, Record, build_batch
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem
from varve.topics import StoreCluster, StoreTransactionalWriter
from varve.topics.store_cluster import FIRST_PRODUCER_ID, write_marker

TOPICS = DedupTopics(input="in", output="out", name="out", side="late")


def make_backend(store: Store, topics: DedupTopics = TOPICS) -> DedupBackend:
    settings = topic_settings(topics, retention_ms=1_000, segment_ms=500)
    backend = DedupBackend(StoreCluster(store), topics, settings=settings, clock=ManualClock())
    backend.prepare()
    return backend


def progress(position: int) -> Progress:
    return Progress(position=position, secret="00" * 16, rules=rules_of(), input="in", output="out")


def commit_of(position: int, *values: bytes, side: tuple[bytes, ...] = ()) -> TaskCommit:
    def batches(options: tuple[bytes, ...]) -> list[bytes]:
        return [build_batch([Record(b"k", item, timestamp=1)]) for item in options]

    return TaskCommit(batches(values), batches(side), batches(values), progress(position))


def append_progress(store: Store, writer: PartitionWriter) -> None:
    """The step of a commit before its marker."""
    assert isinstance(writer.transaction, StoreTransactionalWriter)
    assert isinstance(writer._coordinator, ProgressCoordinator)
    log = store.topic("out-dedup-progress").partition(0).log
    writer._coordinator._append_progress(writer.transaction, log)


def decide(store: Store, writer: PartitionWriter) -> None:
    """The rest of a commit: the progress, and the marker that decides."""
    append_progress(store, writer)
    producer = writer.transaction.producer
    log = store.topic("out-dedup-progress").partition(0).log
    write_marker(log, producer, is_committed=True)


def open_position(backend: DedupBackend) -> int:
    """The position that a new start finds."""
    backend.open_writer(0)
    result = backend.find_progress(0)
    assert result is not None
    return result.position


def committed(store: Store, topic: str, partition: int = 0) -> list[bytes | None]:
    result = store.topic(topic).read(partition=partition, start=0, isolation="read_committed")
    return [item.value for item in result]


def open_count(store: Store) -> int:
    return sum(
        len(item.log.open_transactions()) for topic in store.topics() for item in topic.partitions
    )


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem(ManualClock())


def open_store(fs: FaultyFileSystem) -> Store:
    store = varve.open("/d", fs=fs, clock=ManualClock(), random=random.Random(1), maintain=False)
    store.create_topic("in", partitions=2, exist_ok=True)
    return store


@pytest.fixture
def store(fs: FaultyFileSystem) -> Iterator[Store]:
    with open_store(fs) as opened:
        yield opened


def test_topics_that_lack_are_made_with_fit_settings(store: Store) -> None:
    assert make_backend(store).prepare() == 2
    changelog = store.topic("out-dedup-changelog").settings
    assert set(changelog.cleanup_policy) == {"compact", "delete"}
    assert changelog.retention_ms == 1_000 + 24 * 3_600_000
    assert changelog.segment_ms == 600_000
    assert store.topic("out-dedup-progress").settings.cleanup_policy == ("compact",)
    assert {store.topic(item).partition_count for item in TOPICS.written} == {2}


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b"])
def test_a_name_is_one_that_a_directory_may_have(name: str) -> None:
    with pytest.raises(InvalidRequest, match="a deduplication cannot be called"):
        replace(TOPICS, name=name)


def test_a_commit_is_seen_as_a_whole(store: Store) -> None:
    backend = make_backend(store)
    writer = backend.open_writer(0)
    assert backend.find_progress(0) is None
    # The first offset is that of the marker by which a start fences others.
    assert writer.commit(commit_of(5, b"a", b"b", side=(b"s",))) == 3
    assert writer.commit(commit_of(6, b"c")) == 5
    assert writer.commit(commit_of(7)) == 0
    assert committed(store, "out") == committed(store, "out-dedup-changelog") == [b"a", b"b", b"c"]
    assert committed(store, "late") == [b"s"]
    assert open_count(store) == 0
    result = backend.find_progress(0)
    assert result is not None
    assert result.position == 7
    assert result.producer is not None
    assert result.producer.id >= FIRST_PRODUCER_ID
    assert backend.find_progress(1) is None


def test_a_new_start_fences_the_former_one(store: Store) -> None:
    first = make_backend(store).open_writer(0)
    first.commit(commit_of(1, b"a"))
    second = make_backend(store).open_writer(0)
    second.commit(commit_of(2, b"b"))
    with pytest.raises(InvalidProducerEpoch):
        first.commit(commit_of(2, b"never"))
    with pytest.raises(Closed, match="the writer has no producer"):
        first.commit(commit_of(2, b"never"))
    second.commit(commit_of(3, b"c"))
    assert committed(store, "out") == [b"a", b"b", b"c"]
    assert open_count(store) == 0


def test_a_start_fences_one_that_is_in_the_middle_of_a_commit(store: Store) -> None:
    writer = make_backend(store).open_writer(0)
    writer.append(commit_of(2, b"never"))
    second = make_backend(store).open_writer(0)
    assert open_count(store) == 0
    with pytest.raises(InvalidProducerEpoch):
        append_progress(store, writer)
    with pytest.raises(InvalidProducerEpoch):
        writer.append(commit_of(2, b"never"))
    second.commit(commit_of(2, b"a"))
    assert committed(store, "out") == [b"a"]


def test_a_commit_that_fails_leaves_nothing_open(store: Store, fs: FaultyFileSystem) -> None:
    writer = make_backend(store).open_writer(0)
    fs.full_at(fs.used_bytes() + 200)
    with pytest.raises(DiskFull):
        writer.commit(commit_of(2, b"never", bytes(300)))
    fs.full_at(None)
    again = make_backend(store)
    writer = again.open_writer(0)
    assert again.find_progress(0) is None
    assert open_count(store) == 0
    writer.commit(commit_of(2, b"a"))
    assert committed(store, "out") == [b"a"]


def test_partitions_have_producers_of_their_own(store: Store) -> None:
    backend = make_backend(store)
    for partition in (0, 1):
        backend.open_writer(partition).commit(commit_of(partition, b"%d" % partition))
    assert [committed(store, "out", item) for item in (0, 1)] == [[b"0"], [b"1"]]
    ids = {backend.find_progress(item).producer.id for item in (0, 1)}  # type: ignore[union-attr]
    assert len(ids) == 2


def test_a_reader_waits_for_what_is_not_decided(store: Store) -> None:
    """What was appended without a decision is aborted by the next start."""
    writer = make_backend(store).open_writer(0)
    writer.commit(commit_of(1, b"a"))
    writer.append(commit_of(2, b"lost", side=(b"lost",)))
    assert open_count(store) == 3
    append_progress(store, writer)
    assert open_position(make_backend(store)) == 1
    assert open_count(store) == 0
    assert committed(store, "out") == [b"a"]
    assert committed(store, "late") == []


def test_what_was_decided_is_committed_by_the_next_start(store: Store) -> None:
    writer = make_backend(store).open_writer(0)
    writer.append(commit_of(2, b"a", side=(b"s",)))
    decide(store, writer)
    # The side topic is no longer wanted, and is settled all the same.
    assert open_position(make_backend(store, replace(TOPICS, side=None))) == 2
    assert open_count(store) == 0
    assert committed(store, "out") == [b"a"]
    assert committed(store, "late") == [b"s"]


def test_a_log_that_lost_what_was_decided_is_told(store: Store) -> None:
    writer = make_backend(store).open_writer(0)
    writer.append(commit_of(2, b"a", b"b"))
    store.topic("out").partition(0).log.truncate_to(2)
    decide(store, writer)
    with pytest.raises(Corrupt, match=r"out-0 has records up to sequence 0 .* up to 1"):
        make_backend(store).open_writer(0)


def test_epochs_that_are_used_up_go_on_with_another_producer(store: Store) -> None:
    writer = make_backend(store).open_writer(0)
    assert isinstance(writer.transaction, StoreTransactionalWriter)
    first = writer.transaction.producer.id
    writer.transaction._producer = Producer(first, (1 << 15) - 2)
    writer.commit(commit_of(1, b"a"))
    for position in (2, 3):
        writer = make_backend(store).open_writer(0)
        assert writer.transaction.producer.id != first
        assert writer.transaction.producer.epoch == position - 2
        writer.commit(commit_of(position, b"b"))
    assert committed(store, "out") == [b"a", b"b", b"b"]


def test_a_progress_that_was_compacted_is_found(store: Store) -> None:
    writer = make_backend(store).open_writer(0)
    settings = {"segment.bytes": 2_000, "min.cleanable.dirty.ratio": 0.01}
    store.alter_topic("out-dedup-progress", settings)
    for position in range(30):
        writer.commit(commit_of(position, b"%d" % position))
    log = store.topic("out-dedup-progress").partition(0).log
    before = log.size
    store.run_once(ManualClock().now_ms() + 3 * 24 * 3_600_000)
    assert log.size < before / 2
    assert open_position(make_backend(store)) == 29
    assert committed(store, "out") == [b"%d" % position for position in range(30)]


def test_a_commit_is_on_disk_when_it_returns(fs: FaultyFileSystem) -> None:
    store = open_store(fs)
    make_backend(store).open_writer(0).commit(commit_of(1, b"a", side=(b"s",)))
    after = fs.after_crash(CrashMode.LOSE_UNSYNCED)
    with open_store(after) as again:
        assert open_position(make_backend(again)) == 1
        assert committed(again, "out") == [b"a"]
        assert committed(again, "late") == [b"s"]
    store.abandon()
