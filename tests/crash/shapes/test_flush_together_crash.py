"""Logs that are flushed together: a crash or a fault at any step leaves each of them sound."""

import errno

import pytest

from tests.support.crash_images import crash_images, named, record
from tests.support.shape_log import create_storage, make_entry, messages_of, open_storage
from tests.support.shape_log import read_messages as messages_in
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Unavailable
from varve.shapes.storage.shape_storage import ShapeStorage, flush_storages
from varve.testing.faulty_disk import FaultyFileSystem

HANDLES = ("11223344-1", "22334455-2", "33445566-3")
FIRST = [make_entry(1, 0)]
SECOND = [make_entry(2, 0), make_entry(2, 1)]


def _make(disk: FaultyFileSystem) -> list[ShapeStorage]:
    """Logs of which one is new, and two were flushed before."""
    storages = [create_storage(disk, handle=handle) for handle in HANDLES]
    for storage in storages[1:]:
        storage.append(FIRST)
    flush_storages(storages)
    return storages


def _count_steps() -> tuple[int, int]:
    disk = FaultyFileSystem(ManualClock())
    storages = _make(disk)
    before = disk.steps
    for storage in storages:
        storage.append(SECOND)
    assert flush_storages(storages) == {}
    assert [storage.persisted for storage in storages] == [SECOND[-1].offset] * 3
    return before, disk.steps


BEFORE, AFTER = _count_steps()


def test_a_crash_leaves_each_log_before_or_behind_the_flush() -> None:
    disk = FaultyFileSystem(ManualClock())
    storages = _make(disk)
    flushed: list[object] = []

    def append_and_flush() -> None:
        for storage in storages:
            storage.append(SECOND)
        flushed.append(flush_storages(storages))

    points = record(append_and_flush, lambda: len(flushed), disk=disk)
    assert flushed == [{}]
    for image in crash_images(points):
        with named(image):
            _check_each(image.disk, is_done=image.state == 1)


def _check_each(disk: FaultyFileSystem, *, is_done: bool) -> None:
    for number, handle in enumerate(HANDLES):
        storage = open_storage(disk, handle=handle)
        before = messages_of(FIRST) if number else []
        found = messages_in(storage)
        assert found in (before, before + messages_of(SECOND))
        assert len(found) == len(before) + 2 or not is_done
        storage.append(SECOND)
        assert messages_in(storage) == before + messages_of(SECOND)


@pytest.mark.parametrize("step", range(BEFORE + 1, AFTER + 1))
def test_a_fault_in_one_log_holds_up_no_other(step: int) -> None:
    disk = FaultyFileSystem(ManualClock())
    storages = _make(disk)
    disk.fail_at(step, OSError(errno.EIO, "broken"))
    for storage in storages:
        storage.append(SECOND)
    failed = flush_storages(storages)
    assert len(failed) == 1
    for storage in storages:
        assert (storage.failure is not None) == (storage in failed)
        assert (storage.persisted == SECOND[-1].offset) == (storage not in failed)


def test_a_flush_that_is_broken_off_ends_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that were to be synced are given away: no later flush would sync them."""
    disk = FaultyFileSystem(ManualClock())
    storages = _make(disk)
    for storage in storages:
        storage.append(SECOND)
    before = [storage.persisted for storage in storages]
    with monkeypatch.context() as patched:

        def fail(files: object) -> list[OSError | None]:
            raise MemoryError

        patched.setattr(disk, "sync_files", fail)
        with pytest.raises(MemoryError):
            flush_storages(storages[:2])
        with pytest.raises(MemoryError):
            storages[2].flush()
    for storage in storages:
        with pytest.raises(Unavailable, match="broken off"):
            storage.flush()
    assert [storage.persisted for storage in storages] == before
