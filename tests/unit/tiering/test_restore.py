"""A partition comes back from the bucket alone, byte for byte."""

import random
from dataclasses import replace

import pytest

from tests.support.copied_log import HOME, copy_log, make_log, open_manifests
from tests.support.directory_check import check_log_directory
from tests.support.log_bench import NOW_MS, read_all
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
from varve.tiering.manifest.store import ObjectManifestStore
from varve.tiering.restore import RestoreReport, hold_log_directory, plan_restore, restore_partition

TARGET = "restored"
PARTITION = TopicPartition("topic", 0)


class Restoring:
    """A bucket with the copies of a log, and a disk to restore it to."""

    def __init__(self) -> None:
        self.objects = MemoryObjectStore()
        self.remote = copy_log(self.objects, make_log())
        self.clock = ManualClock(NOW_MS)
        self.fs = MemoryFileSystem(self.clock)

    def manifests(self) -> ObjectManifestStore:
        return open_manifests(self.objects, 5)

    def restore(
        self, *, until: int | None = None, manifest: Manifest | None = None, workers: int = 1
    ) -> RestoreReport:
        manifests = open_manifests(self.objects, 9)
        plan = plan_restore(manifests, manifest or manifests.load(), until_offset=until)
        with hold_log_directory(self.fs, TARGET, cluster=HOME.cluster):
            return restore_partition(
                self.objects, plan, self.fs, TARGET, clock=ManualClock(NOW_MS), workers=workers
            )

    def files(self) -> dict[str, bytes]:
        """What the restored directory has of the files that were copied."""
        return {name: self.fs.read(f"{TARGET}/topic-0/{name}") for name in self.remote.files}

    def errors(self) -> list[str]:
        found = check_log_directory(self.fs, TARGET, now_ms=NOW_MS, deep=True)
        return [f"{f.rule} {f.path} {f.message}" for f in found if f.severity is not Severity.NOTE]

    def open_log(self) -> Log:
        return Log.open(
            LoadRequest(
                files=SegmentFiles(self.fs),
                directory=f"{TARGET}/topic-0",
                topic_partition=PARTITION,
                settings=LogSettings(),
                clock=self.clock,
                random=random.Random(0),
                clean=True,
            )
        )


@pytest.fixture
def bench() -> Restoring:
    return Restoring()


@pytest.mark.parametrize("workers", [1, 3])
def test_every_file_comes_back_with_the_same_bytes(bench: Restoring, workers: int) -> None:
    report = bench.restore(workers=workers)
    assert bench.files() == bench.remote.files
    assert (report.segment_count, report.end_offset) == (
        4,
        bench.remote.segments[-1].end_offset + 1,
    )
    assert report.fetched_bytes == sum(len(data) for data in bench.remote.files.values())
    assert HOME.topic_id in bench.fs.read(f"{report.directory}/{PARTITION_METADATA_FILE}").decode()


def test_a_restored_directory_is_clean_and_gives_the_same_records(bench: Restoring) -> None:
    report = bench.restore()
    assert bench.errors() == []
    log = bench.open_log()
    assert log.recovered == []
    wanted = [o for o in read_all(bench.remote.log) if o < report.end_offset]
    assert read_all(log) == wanted
    first = next(iter(log.view))
    assert log.appended_ms(first) == bench.remote.segments[0].append_ms
    log.close()
    assert bench.files() == bench.remote.files


def test_a_store_opens_what_was_restored_and_appends_behind_it(bench: Restoring) -> None:
    report = bench.restore()
    with open_store(TARGET, fs=bench.fs, clock=bench.clock, maintain=False) as store:
        topic = store.topic("topic")
        assert topic.append(value=b"new", partition=0).offset == report.end_offset
    assert bench.files() == bench.remote.files
    assert bench.errors() == []


def test_up_to_an_offset_the_last_segment_is_cut_at_a_batch(bench: Restoring) -> None:
    until = bench.remote.segments[2].base_offset + 3
    report = bench.restore(until=until)
    assert report.end_offset == until - 1
    assert bench.errors() == []
    log = bench.open_log()
    assert log.end_offset == report.end_offset
    assert read_all(log) == [o for o in read_all(bench.remote.log) if o < report.end_offset]
    assert bench.restore(until=until).was_there


def test_an_older_version_gives_what_it_named(bench: Restoring) -> None:
    older = bench.manifests().at(version=4)
    report = bench.restore(manifest=older)
    assert (report.segment_count, report.end_offset) == (2, bench.remote.segments[1].end_offset + 1)
    assert bench.errors() == []


def test_the_log_start_within_a_segment_is_kept(bench: Restoring) -> None:
    start = bench.remote.segments[1].base_offset + 2
    bench.manifests().commit(
        lambda m: m.raise_log_start(start), leader_epoch=1, writer="expiry", now_ms=NOW_MS
    )
    report = bench.restore()
    assert (report.segment_count, report.log_start_offset) == (3, start)
    starts = decode_offsets(bench.fs.read(f"{TARGET}/{LOG_START_OFFSET_FILE}"))
    assert starts == {PARTITION: start}
    assert bench.errors() == []


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_checkpoints_said_of_a_lost_partition_goes_and_of_others_stays(
    bench: Restoring, is_cut: bool
) -> None:
    until = bench.remote.segments[2].base_offset + 3 if is_cut else None
    other = TopicPartition("other", 2)
    bench.fs.make_directory(TARGET)
    for name in (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, CLEANER_OFFSET_FILE):
        with bench.fs.open_writable(f"{TARGET}/{name}") as file:
            file.write_at(0, encode_offsets({PARTITION: 10_000, other: 7}))
    report = bench.restore(until=until)
    read = {
        name: decode_offsets(bench.fs.read(f"{TARGET}/{name}"))
        for name in (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, CLEANER_OFFSET_FILE)
    }
    assert read[RECOVERY_POINT_FILE] == {PARTITION: report.end_offset, other: 7}
    assert read[LOG_START_OFFSET_FILE] == read[CLEANER_OFFSET_FILE] == {other: 7}


def test_a_partition_that_is_there_is_never_touched(bench: Restoring) -> None:
    bench.fs.make_directory(f"{TARGET}/topic-0")
    with bench.fs.open_writable(f"{TARGET}/topic-0/something") as file:
        file.write_at(0, b"precious")
    with pytest.raises(InvalidRequest, match="not empty"):
        bench.restore()
    assert bench.fs.names(f"{TARGET}/topic-0") == ["something"]


def test_a_second_restore_of_another_state_is_refused(bench: Restoring) -> None:
    bench.restore()
    assert bench.restore().was_there
    with pytest.raises(InvalidRequest, match="another state"):
        bench.restore(until=5)


def test_a_directory_in_use_is_refused(bench: Restoring) -> None:
    fs = bench.remote.bench.fs
    with (
        hold_log_directory(fs, TARGET, cluster="prod"),
        pytest.raises(Locked),
        hold_log_directory(fs, TARGET, cluster="prod"),
    ):
        pass


@pytest.mark.parametrize("damage", ["gone", "short", "long", "changed"])
def test_a_damaged_object_is_named_and_nothing_is_put_in_place(
    bench: Restoring, damage: str
) -> None:
    key = HOME.part_key(bench.remote.segments[1], "log")
    data = bench.objects.get(key)
    if damage == "gone":
        bench.objects.delete([key])
    else:
        bodies = {"short": data[:-1], "long": data + b"x", "changed": b"x" + data[1:]}
        bench.objects.put(key, bodies[damage])
    with pytest.raises(Corrupt, match=key):
        bench.restore()
    assert not bench.fs.exists(f"{TARGET}/topic-0")
    bench.objects.put(key, data)
    report = bench.restore()
    assert report.reused_bytes > 0
    assert bench.errors() == []


def test_a_hole_between_readable_segments_is_refused(bench: Restoring) -> None:
    manifests = bench.manifests()
    manifest = manifests.load()
    hole = bench.remote.segments[2]
    left = tuple(s for s in manifest.segments if s.id != hole.id)
    with pytest.raises(Corrupt, match=f"offsets {hole.base_offset} to {hole.end_offset}"):
        plan_restore(manifests, replace(manifest, segments=left))


def test_nothing_to_restore_is_told(bench: Restoring) -> None:
    manifests = bench.manifests()
    with pytest.raises(NotFound, match="no record"):
        plan_restore(manifests, Manifest(path=HOME))
    with pytest.raises(NotFound, match="before offset 0"):
        plan_restore(manifests, manifests.load(), until_offset=0)
