"""A crash at every I/O step of a snapshot: it is complete and readable, or not there at all.

Carries S4.
"""

import errno
import os

import pytest

from tests.support.crash_images import crash_images, named, record
from varve.foundation.clock import ManualClock
from varve.foundation.errors import NotFound, Unavailable
from varve.shapes.storage.snapshot import ShapeSnapshot, SnapshotWriter
from varve.testing.faulty_disk import FaultyFileSystem

DIRECTORY = "/shape/log"
ROWS = [b'{"row":%d}' % number for number in range(40)]


def _new_disk() -> FaultyFileSystem:
    disk = FaultyFileSystem(ManualClock())
    disk.make_directory(DIRECTORY)
    for path in ("/", "/shape"):
        disk.sync_directory(path)
    return disk


def _write(disk: FaultyFileSystem) -> ShapeSnapshot:
    snapshot = ShapeSnapshot(disk, DIRECTORY, 150)
    writer = SnapshotWriter(snapshot)
    try:
        for number, row in enumerate(ROWS):
            writer.add(row)
            if number % 5 == 0:
                writer.flush()
        writer.finish(b'{"end":1}')
    except OSError:
        writer.abandon()
        raise
    return snapshot


def _read(snapshot: ShapeSnapshot) -> list[bytes]:
    rows, number = [], 0
    while (pieces := snapshot.read_chunk(number)) is not None:
        rows += [row for piece in pieces for row in piece.split(b",\n")]
        number += 1
    return rows


def _steps() -> range:
    disk = _new_disk()
    first = disk.steps + 1
    _write(disk)
    assert disk.steps - first > 10
    return range(first, disk.steps + 1)


def test_a_crash_at_any_step_leaves_all_or_nothing() -> None:
    disk = _new_disk()
    written: list[ShapeSnapshot] = []
    points = record(lambda: written.append(_write(disk)), lambda: len(written), disk=disk)
    found = 0
    for image in crash_images(points):
        with named(image):
            try:
                snapshot = ShapeSnapshot.open(image.disk, DIRECTORY)
            except NotFound:
                assert image.state == 0, "what was finished survives any crash"
                continue
            assert _read(snapshot) == [*ROWS, b'{"end":1}']
            found += 1
    assert found > 0


def test_readers_of_a_failed_snapshot_get_the_error() -> None:
    for step in _steps():
        disk = _new_disk()
        disk.fail_at(step, OSError(errno.EIO, os.strerror(errno.EIO)))
        snapshot = ShapeSnapshot(disk, DIRECTORY, 150)
        writer = SnapshotWriter(snapshot)
        try:
            for row in ROWS:
                writer.add(row)
                writer.flush()
            writer.finish(b"1")
        except OSError:
            writer.abandon()
        if snapshot.last_chunk is not None:
            continue
        with pytest.raises(Unavailable):
            _read(snapshot)
