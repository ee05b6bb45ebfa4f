"""Files that were damaged or removed never make a shape tell less than it told: whole, or Corrupt.

Carries S1 and S4.
"""

from collections.abc import Callable

import pytest

from tests.support.cases import case
from tests.support.shape_log import (
    CLOCK,
    compact_plainly,
    create_storage,
    follow,
    make_entry,
    messages_of,
    open_storage,
)
from varve.disk import MemoryFileSystem
from varve.foundation.errors import Corrupt
from varve.shapes.kernels.log_entries import ENTRY_BYTES_MIN
from varve.shapes.offset import ShapeOffset
from varve.shapes.storage.chunk_index import CHUNK_BYTES, EDGE_BYTES
from varve.shapes.storage.layout import (
    SLOT_DISTANCE,
    ShapeManifest,
    encode_slot,
    find_slot,
    index_path,
    log_path,
    pointer_path,
    write_manifest,
)
from varve.shapes.storage.log_writer import ShapeEntry
from varve.shapes.storage.shape_storage import ShapeStorage


def _end(tx: int, op: int = 0) -> ShapeEntry:
    """An entry that ends its transaction."""
    entry = make_entry(tx, op)
    return entry._replace(json=entry.json[:-1] + b',"headers":{"last":true}}')


ENTRIES = [_end(tx) for tx in range(1, 41)]


@pytest.fixture
def storage() -> ShapeStorage:
    """Everything is flushed, in many steps, and the older half is compacted."""
    storage = create_storage(MemoryFileSystem(CLOCK))
    for entry in ENTRIES:
        storage.append([entry])
        storage.flush()
    assert compact_plainly(storage, 2)
    storage.close()
    return storage


def _newest_slot(data: bytes) -> int:
    first, second = find_slot(data), find_slot(data[SLOT_DISTANCE:])
    assert first is not None
    assert second is not None
    return SLOT_DISTANCE if second > first else 0


def test_a_pointer_whose_newest_place_is_damaged_loses_nothing(storage: ShapeStorage) -> None:
    disk = storage.fs
    _tear_newest_slot(storage)
    again = open_storage(disk)
    assert again.latest == ENTRIES[-1].offset
    again.append([make_entry(41)])
    again.flush()
    assert follow(open_storage(disk)) == messages_of([*ENTRIES, make_entry(41)])


@pytest.mark.parametrize("path_of", [log_path, index_path])
def test_a_live_log_that_is_missing_is_damage_if_it_may_have_had_entries(
    storage: ShapeStorage, path_of: Callable[[str, str], str]
) -> None:
    """The manifest names the live log of a compaction, and that it is missing shows the damage."""
    disk, manifest = storage.fs, storage.manifest
    _write_pointer(storage, manifest.boundary)
    disk.remove(path_of(storage.directory, manifest.latest))
    with pytest.raises(Corrupt, match="is missing"):
        open_storage(disk)


def test_a_name_of_the_first_log_that_no_shape_has_is_damage() -> None:
    storage = create_storage(MemoryFileSystem(CLOCK))
    write_manifest(storage.fs, storage.directory, ShapeManifest("latest.1"))
    with pytest.raises(Corrupt, match=r"latest\.1.* no compacted log"):
        open_storage(storage.fs)


def test_a_torn_pointer_without_a_log_is_damage() -> None:
    storage = create_storage(MemoryFileSystem(CLOCK))
    storage.append([_end(1)])
    storage.flush()
    _tear_newest_slot(storage)
    storage.fs.remove(log_path(storage.directory, storage.manifest.latest))
    with pytest.raises(Corrupt, match="is missing"):
        open_storage(storage.fs)


def _write_pointer(storage: ShapeStorage, offset: ShapeOffset) -> None:
    with storage.fs.open_writable(pointer_path(storage.directory)) as file:
        for number in range(2):
            file.write_at(number * SLOT_DISTANCE, encode_slot(90 + number, offset))


def _tear_newest_slot(storage: ShapeStorage) -> None:
    path = pointer_path(storage.directory)
    with storage.fs.open_writable(path) as file:
        file.write_at(_newest_slot(storage.fs.read(path)) + 20, b"\xff")


def test_a_part_of_a_transaction_behind_a_torn_pointer_is_not_shown() -> None:
    """The pointer is written while a large transaction is: both are torn by one power loss."""
    for count in range(1, 30):
        with case(count=count):
            storage = create_storage(MemoryFileSystem(CLOCK))
            for entry in ENTRIES[:2]:
                storage.append([entry])
                storage.flush()
            _tear_newest_slot(storage)
            large = [*[make_entry(3, op) for op in range(29)], _end(3, 29)]
            storage.append(large)
            path = log_path(storage.directory, storage.manifest.latest)
            _cut(storage, path, _size([*ENTRIES[:2], *large[:count]]) + 5)
            again = open_storage(storage.fs)
            assert again.latest == ENTRIES[1].offset
            assert follow(again) == messages_of(ENTRIES[:2])
            again.append(large)
            again.flush()
            assert follow(open_storage(storage.fs)) == messages_of([*ENTRIES[:2], *large])


def _size(entries: list[ShapeEntry]) -> int:
    return sum(ENTRY_BYTES_MIN + len(entry.key) + len(entry.json) for entry in entries)


def test_a_shape_without_its_pointer_is_corrupt(storage: ShapeStorage) -> None:
    storage.fs.remove(pointer_path(storage.directory))
    with pytest.raises(Corrupt, match="is missing"):
        open_storage(storage.fs)


def _cut(storage: ShapeStorage, path: str, size: int) -> None:
    with storage.fs.open_writable(path) as file:
        file.truncate(size)


def _compacted(storage: ShapeStorage, path_of: Callable[[str, str], str]) -> str:
    assert storage.manifest.compacted is not None
    return path_of(storage.directory, storage.manifest.compacted)


def _live(storage: ShapeStorage, path_of: Callable[[str, str], str]) -> str:
    return path_of(storage.directory, storage.manifest.latest)


def _move_boundary(storage: ShapeStorage) -> None:
    moved = storage.manifest._replace(boundary=ShapeOffset(3, 0))
    write_manifest(storage.fs, storage.directory, moved)


_DAMAGES: dict[str, Callable[[ShapeStorage], None]] = {
    "log gone": lambda storage: storage.fs.remove(_compacted(storage, log_path)),
    "log empty": lambda storage: _cut(storage, _compacted(storage, log_path), 0),
    "index empty": lambda storage: _cut(storage, _compacted(storage, index_path), 0),
    "index cut": lambda storage: _cut(storage, _compacted(storage, index_path), CHUNK_BYTES),
    "index torn": lambda storage: _cut(storage, _compacted(storage, index_path), EDGE_BYTES),
    "boundary moved": _move_boundary,
    "live index empty": lambda storage: _cut(storage, _live(storage, index_path), 0),
    "live index gone": lambda storage: storage.fs.remove(_live(storage, index_path)),
    "live log gone": lambda storage: storage.fs.remove(_live(storage, log_path)),
}


@pytest.mark.parametrize("damage", _DAMAGES.values(), ids=_DAMAGES)
def test_a_log_that_lost_its_end_is_not_opened(
    storage: ShapeStorage, damage: Callable[[ShapeStorage], None]
) -> None:
    assert follow(open_storage(storage.fs)) == messages_of(ENTRIES)
    damage(storage)
    with pytest.raises(Corrupt):
        open_storage(storage.fs)
