"""An image of a recorded run is the disk, or the bucket, of a run that crashes at its step."""

import pytest

from tests.crash.bench import ACK, INTERVAL, Scenario, crash_modes
from tests.crash.test_crash_at_every_step import PREALLOCATED, SCENARIOS
from tests.crash.test_swap_at_every_step import SCENARIOS as SWAPS
from tests.support.crash_images import crash_images, record
from varve.commit_log import LogSettings
from varve.disk import PowerLoss
from varve.foundation.clock import ManualClock
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.testing import FaultyObjectStore
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

RUNS = [
    ("create", ACK),
    ("append many kinds", INTERVAL),
    ("append many kinds", PREALLOCATED),
    ("truncate across segments", INTERVAL),
    ("open after a kill", ACK),
    ("close", INTERVAL),
]


@pytest.mark.parametrize(("name", "settings"), RUNS)
def test_an_image_is_the_disk_of_a_crash_at_its_step(name: str, settings: LogSettings) -> None:
    _compare(Scenario(settings, *SCENARIOS[name]))


@pytest.mark.parametrize("name", ["write, swap and append", "drop some"])
def test_an_image_of_a_swap_is_the_disk_of_a_crash_at_its_step(name: str) -> None:
    _compare(Scenario(INTERVAL, *SWAPS[name]))


def _compare(scenario: Scenario) -> None:
    points = scenario.record()
    assert [point.step for point in points[:-1]] == list(scenario.steps())
    for point in points[:-1]:
        assert point.disk is not None
        crashed = scenario.crash_at(point.step)
        found, known = crashed.acknowledged(), point.state
        assert (found.model, found.outcome) == (known.model, known.outcome)
        assert (found.durable_end, found.is_created) == (known.durable_end, known.is_created)
        for mode, seed in crash_modes(point.step, 4):
            image = point.disk.after_crash(mode, seed)
            disk = crashed.disk.after_crash(mode, seed)
            assert image.describe_content() == disk.describe_content(), (point.where, mode, seed)


def test_an_opened_image_changes_no_other() -> None:
    points = Scenario(INTERVAL, *SCENARIOS["append many kinds"]).record()
    disks = [point.disk for point in points if point.disk is not None]
    before = [disk.describe_content() for disk in disks]
    for image in crash_images(points):
        with image.disk.open_writable("/d/other") as file:
            file.write_at(0, b"x")
        image.disk.remove_tree("/d")
    assert [disk.describe_content() for disk in disks] == before


def _kill(step: int) -> list[tuple[CrashMode, int]]:
    return [(CrashMode.KEEP_ALL, 0)]


def test_unsynced_bytes_tell_images_apart_for_a_judge_that_crashes_again() -> None:
    disk = FaultyFileSystem(ManualClock())
    file = disk.open_writable("/a")

    def work() -> None:
        file.write_at(0, b"x" * 2000)
        file.sync()
        disk.sync_directory("/")

    points = record(work, lambda: None, disk=disk)[1:]
    assert len(list(crash_images(points, _kill))) == 1
    assert len(list(crash_images(points, _kill, crashes_again=True))) == 3


def _use(objects: ObjectStore) -> None:
    objects.put("a", b"1")
    objects.create("b", b"2")
    assert objects.get("a") == b"1"
    objects.put("a", b"3")
    objects.delete(["b", "c"])
    objects.put_parts("d", [b"4", b"5"], size=2)


def test_a_bucket_is_that_of_a_crash_before_or_after_the_request() -> None:
    recorded = FaultyObjectStore(MemoryObjectStore())
    points = record(lambda: _use(recorded), lambda: None, objects=recorded)
    found = [point.bucket for point in points[:-1]]
    wanted = []
    for step in range(1, recorded.steps + 1):
        for is_after in (False, True):
            bucket = MemoryObjectStore()
            crashing = FaultyObjectStore(bucket)
            crashing.crash_at(step, after=is_after)
            with pytest.raises(PowerLoss):
                _use(crashing)
            wanted.append({entry.key: bucket.get(entry.key) for entry in bucket.list("")})
    assert found == wanted
