"""G5: a removal on record stays on record, whatever step of the evidence file a crash hits."""

import errno
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.support.balances import make_compaction, make_expiry
from tests.support.crash_images import CrashPoint, crash_images, named, record
from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE, RemovalLog, read_removal_log
from varve.foundation.clock import ManualClock
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

DIRECTORY = "/orders-0"
SEEDS = 12


@dataclass
class Acknowledged:
    """What calls returned from: ids on record, and ids noted as carried out."""

    ids: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)

    def copy(self) -> "Acknowledged":
        return Acknowledged(list(self.ids), set(self.done))

    def append(self, evidence: RemovalLog, rule_size: int) -> None:
        id = evidence.next_id()
        rule = "r" * rule_size
        make = make_compaction if len(self.ids) % 2 else make_expiry
        evidence.append(make(id, rule=rule))
        self.ids.append(id)

    def mark_done(self, evidence: RemovalLog) -> None:
        evidence.mark_done(self.ids[-1])
        self.done.add(self.ids[-1])


def new_disk(seed: int = 0) -> FaultyFileSystem:
    disk = FaultyFileSystem(ManualClock(), seed=seed)
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    return disk


def script(disk: FaultyFileSystem, acknowledged: Acknowledged) -> None:
    """Lines within a sector and over several, by two objects one after the other."""
    for sizes in ((10, 1500), (900, 10)):
        evidence = RemovalLog(disk, DIRECTORY)
        for size in sizes:
            acknowledged.append(evidence, size)
            acknowledged.mark_done(evidence)


def check(disk: FaultyFileSystem, acknowledged: Acknowledged) -> None:
    """All that was acknowledged is there and chained, at most one line more, and it goes on."""
    found = read_removal_log(disk, DIRECTORY)
    assert not found.faults, disk.describe_trace()
    ids = [entry.removal.id for entry in found.entries]
    done = {entry.removal.id for entry in found.entries if entry.is_done}
    assert ids[: len(acknowledged.ids)] == acknowledged.ids
    assert done >= acknowledged.done
    extra = len(ids) - len(acknowledged.ids) + len(done) - len(acknowledged.done)
    assert extra in (0, 1)
    evidence = RemovalLog(disk, DIRECTORY)
    evidence.append(make_expiry(evidence.next_id()))
    left = disk.after_crash(CrashMode.LOSE_UNSYNCED)
    assert len(RemovalLog(left, DIRECTORY).read()) == len(ids) + 1


def steps() -> range:
    disk = new_disk()
    first = disk.steps + 1
    script(disk, Acknowledged())
    return range(first, disk.steps + 1)


def crash_modes(step: int = 0) -> list[tuple[CrashMode, int]]:
    fixed = [(CrashMode.KEEP_ALL, 0), (CrashMode.LOSE_UNSYNCED, 0)]
    return fixed + [(CrashMode.RANDOM, seed) for seed in range(SEEDS)]


def record_script(seed: int) -> list[CrashPoint[Acknowledged]]:
    """A run of the script on a disk that tears writes by this seed."""
    disk, acknowledged = new_disk(seed), Acknowledged()
    return record(lambda: script(disk, acknowledged), acknowledged.copy, disk=disk)


def test_the_first_append_makes_its_file_durable() -> None:
    disk = new_disk()
    RemovalLog(disk, DIRECTORY).append(make_expiry(1))
    assert [step.operation for step in disk.trace[-4:]] == [
        "create",
        "write",
        "sync",
        "sync directory",
    ]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_on_record_survives_a_crash_at_any_step(seed: int) -> None:
    for image in crash_images(record_script(seed), crash_modes):
        with named(image):
            check(image.disk, image.state)


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_while_a_torn_line_is_cut_changes_nothing(seed: int) -> None:
    """The first crash tears a line, the second hits the append that cuts it, at each step."""
    for first in crash_images(record_script(seed), lambda step: [(CrashMode.RANDOM, seed)]):
        torn = first.disk
        ids = [entry.removal.id for entry in read_removal_log(torn, DIRECTORY).entries]
        again = torn.after_crash(CrashMode.KEEP_ALL)
        points = record(partial(append_next, again), lambda: None, disk=again)
        for image in crash_images(points, crash_modes):
            with named(first), named(image):
                found = read_removal_log(image.disk, DIRECTORY)
                assert not found.faults
                assert [e.removal.id for e in found.entries][: len(ids)] == ids
                append_next(image.disk)


def append_next(disk: FaultyFileSystem) -> None:
    evidence = RemovalLog(disk, DIRECTORY)
    evidence.append(make_expiry(evidence.next_id(), rule="n" * 700))


@pytest.mark.parametrize("step", steps())
@pytest.mark.parametrize("after_bytes", [0, 300])
def test_after_a_failed_call_the_same_object_goes_on(step: int, after_bytes: int) -> None:
    acknowledged = Acknowledged()
    disk = new_disk()
    disk.fail_at(step, OSError(errno.EIO, "failed"), after_bytes=after_bytes)
    evidence = RemovalLog(disk, DIRECTORY)
    failures = 0
    for size in (10, 1500, 900, 10):
        try:
            acknowledged.append(evidence, size)
            acknowledged.mark_done(evidence)
        except OSError:
            failures += 1
    assert failures <= 1
    for mode, seed in crash_modes():
        left = disk.after_crash(mode, seed)
        found = read_removal_log(left, DIRECTORY)
        assert not found.faults, disk.describe_trace()
        ids = {entry.removal.id for entry in found.entries}
        assert ids >= set(acknowledged.ids)
        assert {e.removal.id for e in found.entries if e.is_done} >= acknowledged.done
    disk.mend()
    check_continues(disk)


def check_continues(disk: FaultyFileSystem) -> None:
    before = len(read_removal_log(disk, DIRECTORY).entries)
    append_next(disk)
    assert len(RemovalLog(disk, DIRECTORY).read()) == before + 1


def test_a_full_disk_refuses_the_record_and_keeps_the_others() -> None:
    disk = new_disk()
    evidence = RemovalLog(disk, DIRECTORY)
    evidence.append(make_expiry(1))
    disk.full_at(disk.used_bytes() + 200)
    with pytest.raises(OSError, match="space"):
        evidence.append(make_expiry(2))
    assert read_removal_log(disk, DIRECTORY).torn_bytes == 200
    disk.full_at(None)
    evidence.append(make_expiry(evidence.next_id()))
    assert [entry.removal.id for entry in evidence.read()] == [1, 2]
    assert disk.names(DIRECTORY) == [REMOVAL_LOG_FILE]
