"""A restore cut at any call to the disk or the object store is finished by the next: G3."""

from functools import cache

import pytest

from tests.support.copied_log import HOME, CopiedLog, copy_log, make_log, open_manifests
from tests.support.crash_images import crash_images, named, record
from tests.support.directory_check import check_log_directory
from tests.support.log_bench import NOW_MS
from varve.commit_log.check import Severity
from varve.disk import FileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import PowerLoss, StoreUnavailable
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.testing import FaultKind, FaultyObjectStore
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem
from varve.tiering.restore import hold_log_directory, plan_restore, restore_partition

TARGET = "restored"


@cache
def tier() -> tuple[MemoryObjectStore, CopiedLog]:
    objects = MemoryObjectStore()
    return objects, copy_log(objects, make_log(2))


def restore(objects: ObjectStore, fs: FileSystem, until: int | None) -> None:
    manifests = open_manifests(objects, 9)
    plan = plan_restore(manifests, manifests.load(), until_offset=until)
    with hold_log_directory(fs, TARGET, cluster=HOME.cluster):
        restore_partition(objects, plan, fs, TARGET, clock=ManualClock(NOW_MS))


def contents(fs: FileSystem) -> dict[str, bytes]:
    """The files of the partition, and the checkpoints that they need."""
    checkpoints = [f"{TARGET}/{name}" for name in fs.names(TARGET) if name.endswith("-checkpoint")]
    directory = f"{TARGET}/topic-0"
    files = [f"{directory}/{name}" for name in fs.names(directory)]
    return {path: fs.read(path) for path in (*checkpoints, *files)}


def make_disk() -> FaultyFileSystem:
    return FaultyFileSystem(ManualClock(NOW_MS))


@cache
def wanted(until: int | None) -> dict[str, bytes]:
    """What an undisturbed restore makes."""
    fs = make_disk()
    restore(tier()[0], fs, until)
    return contents(fs)


def check_whole(fs: FileSystem, until: int | None) -> None:
    assert contents(fs) == wanted(until)
    assert f"{TARGET}/topic-0.restore-future" not in [f"{TARGET}/{n}" for n in fs.names(TARGET)]
    found = check_log_directory(fs, TARGET, now_ms=NOW_MS)
    assert [finding for finding in found if finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("until", [None, 9], ids=["whole", "cut"])
def test_a_restore_cut_at_every_step_of_the_disk_is_finished_by_the_next(until: int | None) -> None:
    objects = tier()[0]
    fs = make_disk()
    points = record(lambda: restore(objects, fs, until), lambda: None, disk=fs)
    for image in crash_images(points):
        left = image.disk
        with named(image):
            if left.exists(f"{TARGET}/topic-0") and left.names(f"{TARGET}/topic-0"):
                assert contents(left) == wanted(until)
            restore(objects, left, until)
            check_whole(left, until)


@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.ERROR_BEFORE])
def test_a_restore_cut_at_every_request_is_finished_by_the_next(kind: FaultKind) -> None:
    objects = tier()[0]
    counted = FaultyObjectStore(objects)
    restore(counted, make_disk(), None)
    for step in range(1, counted.steps + 1):
        faulty = FaultyObjectStore(objects)
        faulty.fail_at(step, kind)
        fs = make_disk()
        with pytest.raises((PowerLoss, StoreUnavailable)):
            restore(faulty, fs, None)
        assert not fs.exists(f"{TARGET}/topic-0")
        left = fs.after_crash(CrashMode.LOSE_UNSYNCED)
        restore(objects, left, None)
        check_whole(left, None)
