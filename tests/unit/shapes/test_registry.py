"""Handles are given once, whatever happens to the clock or the file.

Carries S5.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from varve.foundation.clock import ManualClock
from varve.foundation.errors import Unavailable
from varve.shapes.definition import define
from varve.shapes.offset import ShapeOffset
from varve.shapes.registry import FILE_NAME, ShapeRegistry


def test_a_shape_is_listed_once_its_snapshot_is_complete(tmp_path: Path) -> None:
    registry = ShapeRegistry.open(str(tmp_path), ManualClock())
    handle = registry.new_handle(define("t"))
    assert registry.rows() == []
    registry.complete({handle: ShapeOffset(7, 0)})
    registry.close()
    (shape,) = ShapeRegistry.open(str(tmp_path), ManualClock()).rows()
    assert (shape.handle, shape.comparable, shape.start) == (
        handle,
        define("t").comparable,
        ShapeOffset(7, 0),
    )


def test_shapes_without_a_snapshot_are_forgotten_at_the_start(tmp_path: Path) -> None:
    registry = ShapeRegistry.open(str(tmp_path), ManualClock())
    handle = registry.new_handle(define("t"))
    assert registry.remove_incomplete() == [handle]
    assert registry.remove_incomplete() == []
    registry.new_handle(define("t"))


def test_a_handle_is_never_given_again_h23(tmp_path: Path) -> None:
    clock = ManualClock()
    registry = ShapeRegistry.open(str(tmp_path), clock)
    seen = set()
    for _ in range(3):
        handle = registry.new_handle(define("t"))
        seen.add(handle)
        registry.remove([handle])
        clock.advance(-3_600_000)
    registry.close()
    seen.add(ShapeRegistry.open(str(tmp_path), clock).new_handle(define("t")))
    assert len(seen) == 4
    assert all(handle[:4].isdigit() for handle in seen)


def test_one_definition_has_one_row(tmp_path: Path) -> None:
    """A new shape takes the row of the one before, whose drop may not have come so far."""
    registry = ShapeRegistry.open(str(tmp_path), ManualClock())
    first = registry.new_handle(define("t"))
    registry.complete({first: ShapeOffset(3, 0)})
    second = registry.new_handle(define("t"))
    assert registry.rows() == []
    registry.remove([first])
    assert registry.remove_incomplete() == [second]


def test_a_file_that_is_no_database_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all" * 100)
    registry = ShapeRegistry.open(str(tmp_path), ManualClock())
    assert registry.rows() == []
    registry.new_handle(define("t"))
    assert [path.name for path in tmp_path.glob("*.unreadable-*")] != []


@pytest.mark.parametrize("page", range(2, 12))
def test_a_registry_with_a_damaged_page_is_moved_aside(tmp_path: Path, page: int) -> None:
    """Each table has a tree of pages, and its unique definitions another one."""
    registry = ShapeRegistry.open(str(tmp_path), ManualClock())
    for number in range(200):
        handle = registry.new_handle(define("t", where=f"n = {number}"))
        registry.complete({handle: ShapeOffset(number, 0)})
    registry.close()
    path = tmp_path / FILE_NAME
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    assert len(data) >= 12 * size
    data[(page - 1) * size : page * size] = b"\xa5" * size
    path.write_bytes(data)
    assert ShapeRegistry.open(str(tmp_path), ManualClock()).rows() == []
    assert len(list(tmp_path.glob("*.unreadable-*"))) == 1


def test_a_registry_of_another_version_is_moved_aside(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert ShapeRegistry.open(str(tmp_path), ManualClock()).rows() == []
    assert len(list(tmp_path.glob("*.unreadable-*"))) == 1


def test_what_is_complete_or_removed_is_so_for_good(tmp_path: Path) -> None:
    registry = ShapeRegistry.open(str(tmp_path), ManualClock())
    handles = [registry.new_handle(define("t", where=f"n = {number}")) for number in range(3)]
    said: list[str] = []
    registry._connection.set_trace_callback(said.append)
    registry.complete({handle: ShapeOffset(3, 0) for handle in handles})
    registry.new_handle(define("t"))
    registry.remove(handles)
    assert [item for item in said if "synchronous" in item or item == "COMMIT"] == [
        "PRAGMA synchronous = FULL",
        "COMMIT",
        "PRAGMA synchronous = NORMAL",
        "COMMIT",
        "PRAGMA synchronous = FULL",
        "COMMIT",
    ]


def test_a_removal_that_fails_is_made_up_for_by_the_next_change(tmp_path: Path) -> None:
    registry = ShapeRegistry.open(str(tmp_path), ManualClock())
    gone = registry.new_handle(define("t"))
    other = sqlite3.connect(tmp_path / FILE_NAME)
    registry._connection.execute("PRAGMA busy_timeout = 0")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        registry.remove([gone])
    other.rollback()
    other.close()
    assert registry.new_handle(define("t")) != gone
    assert len(registry.remove_incomplete()) == 1


class _Failing(sqlite3.Connection):
    """A connection that SQLite refuses some statements on."""

    refused: ClassVar[set[str]] = set()

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql.split()[0] in self.refused:
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *arguments)


@pytest.mark.parametrize(
    "refused", [{"PRAGMA"}, {"BEGIN"}, {"SELECT"}, {"COMMIT"}, {"COMMIT", "ROLLBACK"}]
)
def test_whatever_fails_is_an_error_of_ours_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: set[str]
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=_Failing))
    registry = ShapeRegistry.open(str(tmp_path), ManualClock())
    handle = registry.new_handle(define("t"))
    monkeypatch.setattr(_Failing, "refused", refused)
    tries: list[Callable[[], object]] = [
        lambda: registry.new_handle(define("u")),
        lambda: registry.remove([handle]),
        registry.rows,
    ]
    failed = 0
    for item in tries:
        try:
            item()
        except Unavailable:
            failed += 1
    assert failed >= 1
    monkeypatch.undo()
    other = registry.new_handle(define("v"))
    registry.complete({other: ShapeOffset(1, 0)})
    assert [shape.handle for shape in registry.rows()] == [other]


def test_a_registry_that_was_closed_is_unavailable(tmp_path: Path) -> None:
    registry = ShapeRegistry.open(str(tmp_path), ManualClock())
    registry.close()
    for item in (registry.rows, registry.remove_incomplete, lambda: registry.remove(["abcd"])):
        with pytest.raises(Unavailable, match="closed"):
            item()
