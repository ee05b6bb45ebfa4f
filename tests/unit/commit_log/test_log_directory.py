"""One log directory: its lock, marks and checkpoints, and the directories in it."""

import random
import threading
import zlib
from typing import Any
from uuid import UUID

import pytest

from tests.support.log_bench import BROKEN, NO_ROOM, make_batch, read_all
from varve.commit_log import (
    Log,
    LogDirectory,
    LogSettings,
    SegmentFiles,
    StoreSettings,
    TopicPartition,
    segment_reader,
)
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.commit_log.segment import BatchSet, Segment
from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    Closed,
    Corrupt,
    DirectoryOffline,
    DiskFull,
    InconsistentTopicId,
    Locked,
    UnsupportedFormat,
)
from varve.testing.faulty_disk import FaultyFileSystem

PATH = "disk"
CLEAN = f"{PATH}/.kafka_cleanshutdown"
A, B = TopicPartition("a", 0), TopicPartition("b", 3)
ID = UUID(int=0x1234_5678_9ABC_4DEF_8123_4567_89AB_CDEF)
OTHER_ID = UUID(int=0x2234_5678_9ABC_4DEF_8123_4567_89AB_CDEF)


class House:
    """A directory that can be opened again and again."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.fs = FaultyFileSystem(clock)
        self.settings: dict[str, Any] = {}
        self.directory = self.make()

    def make(self) -> LogDirectory:
        self.directory = LogDirectory(
            PATH,
            files=SegmentFiles(self.fs),
            settings=StoreSettings(num_recovery_threads_per_data_dir=2),
            topic_settings=lambda topic: LogSettings(**self.settings),
            clock=self.clock,
            random=random.Random(3),
        )
        return self.directory

    def open(self) -> LogDirectory:
        self.make().open()
        return self.directory

    def fill(self, partition: TopicPartition = A, count: int = 3) -> Log:
        log = self.directory.create(partition, ID)
        for _ in range(count):
            log.append(make_batch())
        return log

    def close(self) -> None:
        self.directory.close()

    def write(self, name: str, data: bytes) -> None:
        with self.fs.open_writable(f"{PATH}/{name}") as file:
            file.truncate(0)
            file.write_at(0, data)

    def offsets(self, name: str) -> dict[TopicPartition, int]:
        return decode_offsets(self.fs.read(f"{PATH}/{name}"), where=name)


@pytest.fixture
def house(clock: ManualClock) -> House:
    return House(clock)


# Lock, metadata, mark


def test_a_directory_is_open_once_at_a_time(house: House) -> None:
    first = house.open()
    with pytest.raises(Locked, match="in use by this process"):
        house.open()
    first.close()
    house.open()


def test_a_new_directory_gets_its_metadata(house: House) -> None:
    made = house.open().metadata
    house.close()
    assert house.fs.exists(f"{PATH}/meta.properties")
    assert house.open().metadata == made


def test_damaged_metadata_is_named_and_the_lock_given_back(house: House) -> None:
    house.open()
    house.close()
    house.write("meta.properties", b"version=9\n")
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"meta\.properties"):
            house.open()


def test_a_clean_stop_leaves_its_mark_and_a_start_removes_it_at_once(house: House) -> None:
    house.open()
    house.fill()
    house.close()
    assert house.fs.read(CLEAN) == b'{"version":0,"brokerEpoch":-1}'
    house.open()
    assert not house.fs.exists(CLEAN)


def test_an_abandoned_directory_has_no_mark(house: House) -> None:
    house.open()
    house.fill()
    house.directory.abandon()
    assert not house.fs.exists(CLEAN)
    assert house.open().logs[A].end_offset == 3


@pytest.mark.parametrize("content", [b"", b"not json", b'{"version":0,"brokerEpoch":5}'])
def test_any_mark_counts_as_clean(house: House, content: bytes) -> None:
    house.open()
    house.fill()
    house.close()
    house.write(".kafka_cleanshutdown", content)
    log = house.open().logs[A]
    assert (log.recovery_point, log.recovered) == (3, [])


def test_a_log_that_cannot_be_closed_leaves_no_mark(house: House) -> None:
    house.open()
    house.fill()
    house.fs.fail_under(f"{PATH}/a-0", BROKEN)
    with pytest.raises(DirectoryOffline):
        house.close()
    assert not house.fs.exists(CLEAN)


def test_a_partition_that_cannot_be_loaded_leaves_no_mark_after_an_unclean_start(
    house: House,
) -> None:
    house.open()
    house.fill()
    house.directory.abandon()
    house.write("a-0/partition.metadata", b"9\n")
    house.open()
    assert isinstance(house.directory.unreadable[A], Corrupt)
    house.close()
    assert not house.fs.exists(CLEAN)


def test_after_a_clean_start_it_does(house: House) -> None:
    house.open()
    house.fill()
    house.close()
    house.write("a-0/partition.metadata", b"9\n")
    house.open()
    house.close()
    assert house.fs.exists(CLEAN)


# Checkpoints


def test_closing_writes_the_checkpoints(house: House) -> None:
    house.open()
    house.fill(A, 3)
    house.fill(B, 5).delete_records(2)
    house.close()
    assert house.offsets("recovery-point-offset-checkpoint") == {A: 3, B: 5}
    assert house.offsets("replication-offset-checkpoint") == {A: 3, B: 5}
    assert house.offsets("log-start-offset-checkpoint") == {B: 2}


def test_a_log_start_its_first_segment_tells_is_not_written(house: House) -> None:
    house.open()
    house.fill().reset_at(7)
    house.close()
    assert house.offsets("log-start-offset-checkpoint") == {}
    assert house.open().logs[A].log_start_offset == 7


def test_delete_records_survives_a_crash(house: House) -> None:
    house.open()
    house.fill().delete_records(2)
    house.directory.abandon()
    assert house.open().logs[A].log_start_offset == 2


def test_a_truncation_below_the_log_start_survives_a_crash(house: House) -> None:
    house.open()
    log = house.fill(A, 5)
    log.delete_records(4)
    log.truncate_to(2)
    log.append(make_batch())
    house.directory.abandon()
    assert read_all(house.open().logs[A]) == [2]


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    ],
)
@pytest.mark.parametrize(
    "content", [b"9\n0\n", b"0\n5\na 0 1\n", b"0\n1\nno offset\n", b"\xff\xfe"]
)
def test_an_unreadable_checkpoint_counts_as_empty(house: House, name: str, content: bytes) -> None:
    house.open()
    house.fill()
    house.close()
    house.fs.remove(CLEAN)
    house.write(name, content)
    log = house.open().logs[A]
    assert (log.log_start_offset, log.end_offset, log.recovery_point <= 3) == (0, 3, True)


def test_missing_checkpoints_count_as_empty(house: House) -> None:
    house.open()
    house.fill()
    house.close()
    for name in ("recovery-point", "log-start", "replication"):
        house.fs.remove(f"{PATH}/{name}-offset-checkpoint")
    assert house.open().logs[A].end_offset == 3


def test_entries_of_unreadable_partitions_are_kept(house: House) -> None:
    house.open()
    house.fill(A, 3).delete_records(1)
    house.fill(B, 1)
    house.close()
    house.write("a-0/partition.metadata", b"9\n")
    house.open().write_checkpoints()
    assert house.offsets("recovery-point-offset-checkpoint") == {A: 3, B: 1}
    assert house.offsets("log-start-offset-checkpoint") == {A: 1}
    assert house.offsets("replication-offset-checkpoint") == {A: 3, B: 1}


def test_entries_of_partitions_that_are_gone_are_dropped(house: House) -> None:
    house.open()
    house.fill(A)
    house.fill(B)
    house.close()
    house.fs.remove_tree(f"{PATH}/a-0")
    house.open().write_checkpoints(["recovery-point-offset-checkpoint"])
    assert set(house.offsets("recovery-point-offset-checkpoint")) == {B}


# What stands in a directory


def test_partitions_of_any_kind_of_name_are_loaded(house: House) -> None:
    house.open()
    partitions = [TopicPartition("with-dash.and_more", 12), TopicPartition("x" * 200, 0)]
    for partition in partitions:
        house.fill(partition)
    house.close()
    assert set(house.open().logs) == set(partitions)


@pytest.mark.parametrize("name", ["lost+found", "topic", "-1", "topic-", "topic-x", "t-0.id-gone"])
def test_a_foreign_directory_is_an_error(house: House, name: str) -> None:
    house.fs.make_directory(f"{PATH}/{name}")
    with pytest.raises(Corrupt, match="not named like a partition"):
        house.open()


def test_foreign_files_are_ignored(house: House) -> None:
    house.open()
    house.close()
    house.write("notes", b"")
    assert house.open().logs == {}


@pytest.mark.parametrize("name", ["__cluster_metadata-0", "remote-log-index-cache"])
def test_directories_of_others_are_skipped(house: House, name: str) -> None:
    house.fs.make_directory(f"{PATH}/{name}")
    assert house.open().logs == {}


@pytest.mark.parametrize("state", ["stray", "future"])
def test_stray_and_future_directories_are_kept_and_not_served(house: House, state: str) -> None:
    name = f"{PATH}/a-0.{'0' * 32}-{state}"
    house.fs.make_directory(name)
    house.open()
    house.directory.delete_expired_files(house.clock.now_ms() + 10**9)
    house.close()
    assert house.fs.exists(name)
    assert house.directory.logs == {}


def test_directories_marked_for_deletion_are_removed(house: House) -> None:
    name = f"{PATH}/a-0.{'0' * 32}-delete"
    house.fs.make_directory(name)
    with house.fs.open_writable(f"{name}/00000000000000000000.log") as file:
        file.write_at(0, b"x")
    house.open()
    assert house.directory.logs == {}
    house.directory.delete_expired_files(house.clock.now_ms())
    assert not house.fs.exists(name)


def test_a_directory_someone_else_removed_is_no_failure(house: House) -> None:
    name = f"{PATH}/a-0.{'0' * 32}-delete"
    house.fs.make_directory(name)
    house.open()
    house.fs.remove_tree(name)
    house.directory.delete_expired_files(house.clock.now_ms())


def test_a_partition_that_cannot_be_read_is_set_apart(house: House) -> None:
    house.open()
    house.fill(A)
    house.fill(B)
    house.directory.abandon()
    with house.fs.open_writable(f"{PATH}/a-0/00000000000000000000.log") as file:
        data = bytearray(file.read_at(0, 1 << 20))
    body = b"\x01" + bytes(30)
    old = bytes(8) + (4 + len(body)).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
    house.write("a-0/00000000000000000000.log", bytes(data) + old)
    directory = house.open()
    assert isinstance(directory.unreadable[A], UnsupportedFormat)
    assert read_all(directory.logs[B]) == [0, 1, 2]


# Creating and deleting


def test_creating_writes_the_topic_id_first(house: House) -> None:
    house.open()
    house.fill()
    assert house.fs.read(f"{PATH}/a-0/partition.metadata").startswith(b"version: 0\ntopic_id: ")
    house.close()
    assert house.open().topic_ids == {A: ID}


def test_creating_again_gives_the_same_log(house: House) -> None:
    house.open()
    assert house.fill() is house.directory.create(A, ID)


def test_another_topic_id_is_refused(house: House) -> None:
    house.open()
    house.fill()
    with pytest.raises(InconsistentTopicId):
        house.directory.create(A, OTHER_ID)
    house.close()
    house.open()
    with pytest.raises(InconsistentTopicId):
        house.directory.create(A, OTHER_ID)


def test_a_partition_without_a_topic_id_is_given_one(house: House) -> None:
    house.open()
    house.fill()
    house.close()
    house.fs.remove(f"{PATH}/a-0/partition.metadata")
    house.open()
    assert house.directory.create(A, OTHER_ID).end_offset == 3
    assert house.directory.topic_ids == {A: OTHER_ID}


def test_logs_are_closed_by_as_many_threads_as_load_them(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.open()
    house.fill(A)
    house.fill(B)
    both_closing = threading.Barrier(2)
    close = Log.close

    def close_together(log: Log) -> None:
        both_closing.wait(10)
        close(log)

    monkeypatch.setattr(Log, "close", close_together)
    house.close()
    assert house.fs.exists(CLEAN)


def test_deleting_renames_at_once_and_removes_after_the_delay(house: House) -> None:
    house.settings = {"file_delete_delay_ms": 1000}
    house.open()
    log = house.fill()
    house.directory.delete(A)
    assert house.directory.logs == {}
    (marked,) = [name for name in house.fs.names(PATH) if name.endswith("-delete")]
    assert marked.startswith("a-0.")
    assert house.offsets("recovery-point-offset-checkpoint") == {}
    with pytest.raises(Exception, match="closed"):
        log.append(make_batch())
    house.directory.delete_expired_files(house.clock.now_ms() + 999)
    assert house.fs.exists(f"{PATH}/{marked}")
    house.directory.delete_expired_files(house.clock.now_ms() + 1000)
    assert not house.fs.exists(f"{PATH}/{marked}")


def test_a_successor_of_a_deleted_partition_begins_at_0(house: House) -> None:
    house.open()
    house.fill().delete_records(2)
    house.directory.delete(A)
    log = house.directory.create(A, OTHER_ID)
    assert (log.log_start_offset, log.end_offset) == (0, 0)


def test_nothing_of_a_deleted_partition_reaches_its_successor(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that has begun is finished in the old directory before the name is free."""
    house.open()
    log = house.fill()
    appending, deleting = threading.Event(), threading.Event()
    write = log.view.active.append

    def append_late(batches: BatchSet) -> None:
        appending.set()
        assert deleting.wait(10)
        log.roll_locked(log.end_offset)
        write(batches)

    monkeypatch.setattr(log.view.active, "append", append_late)
    appender = threading.Thread(target=log.append, args=(make_batch(),))
    appender.start()
    assert appending.wait(10)
    retire = log.retire

    def begin_to_retire() -> None:
        deleting.set()
        retire()

    monkeypatch.setattr(log, "retire", begin_to_retire)
    house.directory.delete(A)
    successor = house.directory.create(A, OTHER_ID)
    appender.join(10)
    names = house.fs.names(f"{PATH}/a-0")
    assert [name for name in names if name.endswith(".log")] == [f"{0:020}.log"]
    assert read_all(successor) == []


def test_a_read_in_flight_is_told_that_its_log_is_gone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.open()
    log = house.fill()
    log.roll()
    find = segment_reader.find_batch_position

    def find_late(segment: Segment, offset: int, *, size: int) -> tuple[int, int] | None:
        if house.directory.topic_ids[A] == ID:
            house.directory.delete(A)
            successor = house.directory.create(A, OTHER_ID)
            successor.append(make_batch(3, value=b"of another topic"))
            successor.roll()
        return find(segment, offset, size=size)

    monkeypatch.setattr(segment_reader, "find_batch_position", find_late)
    with pytest.raises(Closed):
        log.read(start_offset=0)


def test_stale_checkpoints_do_not_reach_a_new_partition(house: House) -> None:
    house.open()
    house.fill().delete_records(2)
    house.close()
    house.fs.remove_tree(f"{PATH}/a-0")
    log = house.open().create(A, OTHER_ID)
    assert (log.log_start_offset, log.end_offset) == (0, 0)


# Failure


def test_a_broken_disk_takes_the_whole_directory_offline(house: House) -> None:
    house.open()
    log, other = house.fill(A), house.fill(B)
    house.fs.fail_at(house.fs.steps + 1, BROKEN)
    with pytest.raises(DirectoryOffline):
        log.append(make_batch())
    with pytest.raises(DirectoryOffline, match="disk is offline"):
        other.append(make_batch())
    with pytest.raises(DirectoryOffline):
        other.read(start_offset=0)
    with pytest.raises(DirectoryOffline):
        house.directory.create(TopicPartition("c", 0), ID)


def test_checkpoints_of_an_offline_directory_are_written_no_more(house: House) -> None:
    house.open()
    house.fill()
    house.directory.health.fail(DirectoryOffline("told so"))
    house.directory.write_checkpoints()
    assert not house.fs.exists(f"{PATH}/recovery-point-offset-checkpoint")


def test_a_full_disk_leaves_the_directory_online(house: House) -> None:
    house.open()
    log = house.fill()
    house.fs.fail_at(house.fs.steps + 1, NO_ROOM)
    with pytest.raises(Exception, match="free some space"):
        log.append(make_batch())
    assert house.directory.failure is None
    log.append(make_batch())


# How far cleaning has come


def cleaned(house: House) -> dict[TopicPartition, int]:
    return house.offsets("cleaner-offset-checkpoint")


def test_a_cleaner_offset_is_on_disk_at_once_and_read_again(house: House) -> None:
    house.open()
    house.fill()
    assert house.directory.cleaner_offset(A) is None
    house.directory.write_cleaner_offset(A, 2)
    assert house.directory.cleaner_offset(A) == 2
    assert cleaned(house) == {A: 2}
    house.close()
    assert house.open().cleaner_offset(A) == 2


def test_a_truncation_lowers_the_cleaner_offset(house: House) -> None:
    house.open()
    log = house.fill()
    house.fill(B)
    for partition in (A, B):
        house.directory.write_cleaner_offset(partition, 3)
    log.truncate_to(1)
    assert cleaned(house) == {A: 1, B: 3}
    log.append(make_batch())
    log.truncate_to(1)
    assert house.directory.cleaner_offset(A) == 1


def test_a_cleaner_offset_beyond_the_log_is_lowered_when_it_is_opened(house: House) -> None:
    house.open()
    house.fill()
    house.close()
    house.write("cleaner-offset-checkpoint", b"0\n2\na 0 9\nb 3 5\n")
    house.open()
    assert house.directory.cleaner_offset(A) == 3
    assert cleaned(house) == {A: 3}


def test_a_deleted_partition_takes_its_cleaner_offset_along(house: House) -> None:
    house.open()
    house.fill()
    house.fill(B)
    for partition in (A, B):
        house.directory.write_cleaner_offset(partition, 2)
    house.directory.delete(A)
    assert cleaned(house) == {B: 2}
    house.fill(A)
    assert house.directory.cleaner_offset(A) is None


def test_a_new_partition_does_not_inherit_a_cleaner_offset(house: House) -> None:
    house.open()
    house.fill(B)
    house.close()
    house.write("cleaner-offset-checkpoint", b"0\n2\na 0 2\nb 3 1\n")
    house.open()
    house.fill(A)
    assert house.directory.cleaner_offset(A) is None
    assert cleaned(house) == {B: 1}


def test_a_full_disk_refuses_a_cleaner_offset_and_keeps_the_old(house: House) -> None:
    house.open()
    house.fill()
    house.directory.write_cleaner_offset(A, 1)
    house.fs.fail_at(house.fs.steps + 2, NO_ROOM)
    with pytest.raises(DiskFull):
        house.directory.write_cleaner_offset(A, 2)
    assert house.directory.cleaner_offset(A) == 1
    assert house.directory.failure is None
    house.fs.fail_at(house.fs.steps + 1, BROKEN)
    with pytest.raises(DirectoryOffline):
        house.directory.write_cleaner_offset(A, 2)
