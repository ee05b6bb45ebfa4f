"""A shape's log after a crash at any step is a prefix that ends with a transaction, and goes on.

Carries S2 and S4: at least what was flushed is there, and the source's replay fills the rest.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.support.crash_images import crash_images, named, record
from tests.support.shape_log import (
    LogModel,
    compact_plainly,
    create_storage,
    follow,
    make_entry,
    messages_of,
    open_storage,
    read_messages,
)
from varve.foundation.clock import ManualClock
from varve.foundation.errors import NotFound
from varve.shapes.offset import LAST, ShapeOffset
from varve.shapes.storage.layout import index_path, log_directory, log_path
from varve.shapes.storage.log_writer import ShapeEntry
from varve.shapes.storage.recovery import find_log_end
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

TRANSACTIONS = [[make_entry(tx, op) for op in range(1 + tx % 4)] for tx in range(1, 40)]


class Acknowledged(NamedTuple):
    """What a run had acknowledged."""

    committed: tuple[ShapeEntry, ...]
    pending: tuple[ShapeEntry, ...]
    durable_count: int
    is_created: bool


class Run:
    """A storage and its model, side by side."""

    def __init__(self, disk: FaultyFileSystem) -> None:
        self.disk = disk
        self.model = LogModel()
        self.is_created = False
        self.storage: ShapeStorage | None = None

    @property
    def shape(self) -> ShapeStorage:
        assert self.storage is not None
        return self.storage

    def acknowledged(self) -> Acknowledged:
        model = self.model
        return Acknowledged(
            tuple(model.committed), tuple(model.pending), model.durable_count, self.is_created
        )

    def create(self) -> None:
        self.storage = create_storage(self.disk)
        self.is_created = True

    def reopen(self) -> None:
        self.shape.close()
        self.model.flush()
        self.storage = open_storage(self.disk)

    def append(self, start: int, end: int) -> None:
        for transaction in TRANSACTIONS[start:end]:
            # A crash within the call may leave the transaction visible or not.
            self.model.append(transaction)
            self.shape.append(transaction)
            self.model.commit()

    def append_large(self, at: int) -> None:
        entries = [
            ShapeEntry(ShapeOffset(at, op), b"k", ord("u"), b'{"n":"%d"}' % op) for op in range(30)
        ]
        self.model.append(entries)
        self.shape.append(entries)
        self.model.commit()

    def flush(self) -> None:
        self.shape.flush()
        self.model.flush()


def _write(run: Run) -> None:
    """Small and large transactions, flushes, chunk ends, restarts."""
    run.create()
    run.append(0, 3)
    run.flush()
    run.append(3, 12)
    run.flush()
    run.append_large(13)
    run.reopen()
    run.append(13, 15)
    run.flush()


def _compact(run: Run) -> None:
    """Two compactions with appends between, and a restart."""
    run.create()
    run.append(0, 8)
    run.flush()
    compact_plainly(run.shape, 0, now_ms=1)
    run.append(8, 13)
    run.flush()
    compact_plainly(run.shape, 1, now_ms=2)
    run.append(13, 14)
    run.reopen()
    run.append(14, 15)
    run.flush()


def _judge(acknowledged: Acknowledged, disk: FaultyFileSystem) -> None:
    try:
        storage = open_storage(disk)
    except NotFound:
        assert not acknowledged.is_created
        return
    committed, pending = acknowledged.committed, acknowledged.pending
    possible = [*committed, *pending]
    # A transaction in flight is durable as a whole or not at all.
    ends = {e.offset for e in committed} | {e.offset for e in pending[-1:]}
    left = [entry for entry in possible if entry.offset <= storage.latest]
    assert len(left) >= acknowledged.durable_count
    assert not left or left[-1].offset in ends
    assert read_messages(storage) == follow(storage) == messages_of(left)
    replayed = [entry for entry in [*possible, make_entry(900)] if entry.offset.tx > 0]
    storage.append(replayed)
    assert read_messages(storage) == messages_of([*possible, make_entry(900)])
    storage.flush()
    _check_files(storage)
    storage.close()
    storage = open_storage(disk)
    for start in (ShapeOffset(1, 0), ShapeOffset(7, 1), ShapeOffset(13, 3)):
        expected = messages_of([e for e in replayed if e.offset > start])
        assert read_messages(storage, start, LAST) == expected
    assert follow(storage) == messages_of(replayed)


def _check_files(storage: ShapeStorage) -> None:
    """Only named files are left, and the log is whole entries to its last byte."""
    names = storage.fs.names(log_directory(storage.directory))
    suffixes = {name.split(".", 1)[1].rsplit(".", 2)[0] for name in names if name[:4] == "log."}
    assert suffixes <= storage.manifest.suffixes
    path = log_path(storage.directory, storage.manifest.latest)
    with storage.fs.open(path) as file:
        last, end, _ = find_log_end(file, 0, ShapeOffset(0, 0), LAST)
        assert (last, end) == (storage.latest, file.size())


@pytest.mark.parametrize("work", [_write, _compact])
def test_a_crash_at_any_step_leaves_a_prefix_that_goes_on(work: Callable[[Run], None]) -> None:
    run = Run(FaultyFileSystem(ManualClock()))
    points = record(lambda: work(run), run.acknowledged, disk=run.disk)
    for image in crash_images(points):
        with named(image):
            _judge(image.state, image.disk)


def test_a_crash_within_recovery_changes_nothing() -> None:
    run = Run(FaultyFileSystem(ManualClock()))
    _write(run)
    run.append(15, 19)
    torn = run.disk.after_crash(CrashMode.RANDOM, 5)
    storage = open_storage(torn)
    points = record(lambda: storage.append([]), run.acknowledged, disk=torn)
    assert len(points) > 1, "there is a recovery to crash in"
    for image in crash_images(points):
        with named(image):
            _judge(image.state, image.disk)


def test_recovery_counts_the_json_of_the_open_chunk_exactly() -> None:
    disk = FaultyFileSystem(ManualClock())
    storage, twin = create_storage(disk), create_storage(FaultyFileSystem(ManualClock()))
    for tx in range(1, 60):
        storage.append([make_entry(tx)])
        twin.append([make_entry(tx)])
        storage.flush()
        disk = disk.after_crash(CrashMode.LOSE_UNSYNCED)
        storage = open_storage(disk)
    twin.flush()
    for path in (index_path, log_path):
        name = path(storage.directory, "latest.0")
        assert disk.read(name) == twin.fs.read(name)


def test_what_was_not_durable_never_comes_back_when_the_source_gives_something_else() -> None:
    disk = FaultyFileSystem(ManualClock())
    storage = create_storage(disk)
    kept = [make_entry(tx) for tx in range(1, 6)]
    storage.append(kept)
    storage.flush()
    storage.append([make_entry(tx) for tx in range(6, 60)])
    disk = disk.after_crash(CrashMode.KEEP_ALL)
    for last in (100, 101):
        storage = open_storage(disk)
        kept.append(make_entry(last))
        storage.append(kept[-1:])
        storage.flush()
        _check_files(storage)
        disk = disk.after_crash(CrashMode.KEEP_ALL)
    assert follow(open_storage(disk)) == messages_of(kept)
