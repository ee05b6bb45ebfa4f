"""A partition comes back from the bucket alone, byte for byte."""

import random
from dataclasses import replace

import pytest

from tests.support.copied_log import HOME, CopiedLog, copy_log, make_log, open_manifests
from tests.support.directory_check import check_log_directory
from tests.support.log_bench import NOW_MS, offsets_in
from varve.commit_log import LogSettings, SegmentFiles, TopicPartition
from varve.commit_log.check import Severity
from varve.commit_log.log import Log
from varve.commit_log.log_loader import LoadRequest
from varve.commit_log.names import (
    CLEANER_OFFSET_FILE,
    LOG_START_OFFSET_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
)
from varve.commit_log.offset_checkpoints import decode_offsets, encode_offsets
from varve.disk.memory import MemoryFileSystem
from varve.embedded.store import open as open_store
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, InvalidRequest, Locked, NotFound
from varve.object_store import MemoryObjectStore
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.restore import RestoreReport, hold_log_directory, plan_restore, restore_partition

TARGET = "restored"
PARTITION = TopicPartition("topic", 0)


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def remote(objects: MemoryObjectStore) -> CopiedLog:
    return copy_log(objects, make_log())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def fs(clock: ManualClock) -> MemoryFileSystem:
    return MemoryFileSystem(clock)


def restore(
    objects: MemoryObjectStore,
    fs: MemoryFileSystem,
    *,
    until: int | None = None,
    manifest: Manifest | None = None,
    workers: int = 1,
) -> RestoreReport:
    manifests = open_manifests(objects, 9)
    plan = plan_restore(manifests, manifest or manifests.load(), until_offset=until)
    with hold_log_directory(fs, TARGET, cluster=HOME.cluster):
        return restore_partition(
            objects, plan, fs, TARGET, clock=ManualClock(NOW_MS), workers=workers
        )


def errors(fs: MemoryFileSystem) -> list[str]:
    found = check_log_directory(fs, TARGET, now_ms=NOW_MS, deep=True)
    return [f"{f.rule} {f.path} {f.message}" for f in found if f.severity is not Severity.NOTE]


def open_log(fs: MemoryFileSystem, clock: ManualClock) -> Log:
    return Log.open(
        LoadRequest(
            files=SegmentFiles(fs),
            directory=f"{TARGET}/topic-0",
            topic_partition=PARTITION,
            settings=LogSettings(),
            clock=clock,
            random=random.Random(0),
            clean=True,
        )
    )


def fetch_all(log: Log) -> list[int]:
    found: list[int] = []
    offset = log.log_start_offset
    while True:
        fetched = log.read(start_offset=offset, max_bytes=1 << 20)
        if fetched.next_offset == offset:
            return found
        found += offsets_in(fetched)
        offset = fetched.next_offset


@pytest.mark.parametrize("workers", [1, 3])
def test_every_file_comes_back_with_the_same_bytes(
    objects: MemoryObjectStore, remote: CopiedLog, fs: MemoryFileSystem, workers: int
) -> None:
    report = restore(objects, fs, workers=workers)
    assert {name: fs.read(f"{report.directory}/{name}") for name in remote.files} == remote.files
    assert (report.segment_count, report.end_offset) == (4, remote.segments[-1].end_offset + 1)
    assert report.fetched_bytes == sum(len(data) for data in remote.files.values())
    assert HOME.topic_id in fs.read(f"{report.directory}/{PARTITION_METADATA_FILE}").decode()


def test_a_restored_directory_is_clean_and_gives_the_same_records(
    objects: MemoryObjectStore, remote: CopiedLog, fs: MemoryFileSystem, clock: ManualClock
) -> None:
    report = restore(objects, fs)
    assert errors(fs) == []
    log = open_log(fs, clock)
    assert log.recovered == []
    wanted = [o for o in fetch_all(remote.log) if o < report.end_offset]
    assert fetch_all(log) == wanted
    first = next(iter(log.view))
    assert log.appended_ms(first) == remote.segments[0].append_ms
    log.close()
    assert {name: fs.read(f"{report.directory}/{name}") for name in remote.files} == remote.files


def test_a_store_opens_what_was_restored_and_appends_behind_it(
    objects: MemoryObjectStore, remote: CopiedLog, fs: MemoryFileSystem, clock: ManualClock
) -> None:
    report = restore(objects, fs)
    with open_store(TARGET, fs=fs, clock=clock, maintain=False) as store:
        topic = store.topic("topic")
        assert topic.append(value=b"new", partition=0).offset == report.end_offset
    assert {name: fs.read(f"{report.directory}/{name}") for name in remote.files} == remote.files
    assert errors(fs) == []


def test_up_to_an_offset_the_last_segment_is_cut_at_a_batch(
    objects: MemoryObjectStore, remote: CopiedLog, fs: MemoryFileSystem, clock: ManualClock
) -> None:
    until = remote.segments[2].base_offset + 3
    report = restore(objects, fs, until=until)
    assert report.end_offset == until - 1
    assert errors(fs) == []
    log = open_log(fs, clock)
    assert log.end_offset == report.end_offset
    assert fetch_all(log) == [o for o in fetch_all(remote.log) if o < report.end_offset]
    assert restore(objects, fs, until=until).was_there


def test_an_older_version_gives_what_it_named(
    objects: MemoryObjectStore, remote: CopiedLog, fs: MemoryFileSystem
) -> None:
    older = open_manifests(objects, 5).at(version=4)
    report = restore(objects, fs, manifest=older)
    assert (report.segment_count, report.end_offset) == (2, remote.segments[1].end_offset + 1)
    assert errors(fs) == []


def test_the_log_start_within_a_segment_is_kept(
    objects: MemoryObjectStore, remote: CopiedLog, fs: MemoryFileSystem
) -> None:
    start = remote.segments[1].base_offset + 2
    open_manifests(objects, 5).commit(
        lambda m: m.raise_log_start(start), leader_epoch=1, writer="expiry", now_ms=NOW_MS
    )
    report = restore(objects, fs)
    assert (report.segment_count, report.log_start_offset) == (3, start)
    starts = decode_offsets(fs.read(f"{TARGET}/{LOG_START_OFFSET_FILE}"))
    assert starts == {PARTITION: start}
    assert errors(fs) == []


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_checkpoints_said_of_a_lost_partition_goes_and_of_others_stays(
    objects: MemoryObjectStore, remote: CopiedLog, fs: MemoryFileSystem, is_cut: bool
) -> None:
    until = remote.segments[2].base_offset + 3 if is_cut else None
    other = TopicPartition("other", 2)
    fs.make_directory(TARGET)
    for name in (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, CLEANER_OFFSET_FILE):
        with fs.open_writable(f"{TARGET}/{name}") as file:
            file.write_at(0, encode_offsets({PARTITION: 10_000, other: 7}))
    report = restore(objects, fs, until=until)
    read = {
        name: decode_offsets(fs.read(f"{TARGET}/{name}"))
        for name in (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, CLEANER_OFFSET_FILE)
    }
    assert read[RECOVERY_POINT_FILE] == {PARTITION: report.end_offset, other: 7}
    assert read[LOG_START_OFFSET_FILE] == read[CLEANER_OFFSET_FILE] == {other: 7}


def test_a_partition_that_is_there_is_never_touched(
    objects: MemoryObjectStore, remote: CopiedLog, fs: MemoryFileSystem
) -> None:
    fs.make_directory(f"{TARGET}/topic-0")
    with fs.open_writable(f"{TARGET}/topic-0/something") as file:
        file.write_at(0, b"precious")
    with pytest.raises(InvalidRequest, match="not empty"):
        restore(objects, fs)
    assert fs.names(f"{TARGET}/topic-0") == ["something"]


def test_a_second_restore_of_another_state_is_refused(
    objects: MemoryObjectStore, remote: CopiedLog, fs: MemoryFileSystem
) -> None:
    restore(objects, fs)
    assert restore(objects, fs).was_there
    with pytest.raises(InvalidRequest, match="another state"):
        restore(objects, fs, until=5)


def test_a_directory_in_use_is_refused(objects: MemoryObjectStore, remote: CopiedLog) -> None:
    fs = remote.bench.fs
    with (
        hold_log_directory(fs, TARGET, cluster="prod"),
        pytest.raises(Locked),
        hold_log_directory(fs, TARGET, cluster="prod"),
    ):
        pass


@pytest.mark.parametrize("damage", ["gone", "short", "long", "changed"])
def test_a_damaged_object_is_named_and_nothing_is_put_in_place(
    objects: MemoryObjectStore, remote: CopiedLog, fs: MemoryFileSystem, damage: str
) -> None:
    key = HOME.part_key(remote.segments[1], "log")
    data = objects.get(key)
    if damage == "gone":
        objects.delete([key])
    else:
        bodies = {"short": data[:-1], "long": data + b"x", "changed": b"x" + data[1:]}
        objects.put(key, bodies[damage])
    with pytest.raises(Corrupt, match=key):
        restore(objects, fs)
    assert not fs.exists(f"{TARGET}/topic-0")
    objects.put(key, data)
    report = restore(objects, fs)
    assert report.reused_bytes > 0
    assert errors(fs) == []


def test_a_hole_between_readable_segments_is_refused(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    manifests = open_manifests(objects, 5)
    manifest = manifests.load()
    hole = remote.segments[2]
    left = tuple(s for s in manifest.segments if s.id != hole.id)
    with pytest.raises(Corrupt, match=f"offsets {hole.base_offset} to {hole.end_offset}"):
        plan_restore(manifests, replace(manifest, segments=left))


def test_nothing_to_restore_is_told(objects: MemoryObjectStore, remote: CopiedLog) -> None:
    manifests = open_manifests(objects, 5)
    with pytest.raises(NotFound, match="no record"):
        plan_restore(manifests, Manifest(path=HOME))
    with pytest.raises(NotFound, match="before offset 0"):
        plan_restore(manifests, manifests.load(), until_offset=0)
