"""A topic's rows: those on disk, those that changed since, and recently read ones.

Changed rows are in memory, in layers. `seal` closes a layer; a checkpoint writes the layers up to a
mark and drops them.

Invariant  the row of a key is in the newest layer that has it, else in the recently read rows, else
           on disk. A layer that was cleared hides all older ones, and the disk.
Crash      layers are lost; the feed reads them again from the positions on disk.
Threads    one applies, one writes checkpoints, any read views. `_lock` guards layers and recently
           read rows; it is never held during I/O except to start a scan.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from varve.foundation.closing import Closing
from varve.foundation.errors import InvalidRequest
from varve.shapes.feed.row import Row, split_rows
from varve.shapes.feed.table_store import TableScan, TableState, TableStore
from varve.shapes.offset import ShapeOffset

_RECENT_ROWS: Final = 1 << 15
_RECENT_BYTES: Final = 32 << 20
"""Rows of a generation of recently read ones, and bytes of their keys and texts; two generations
are kept in memory."""
_VIEW_ROWS: Final = 1_000
_VIEW_BYTES: Final = 4 << 20
"""Rows that a view splits into columns at a time, and bytes of their texts."""


class MemLayer:
    """Rows that changed since the previous mark, as texts; None for a deleted row."""

    __slots__ = ("byte_count", "is_cleared", "rows", "state")

    def __init__(self) -> None:
        self.rows: dict[str, bytes | None] = {}
        self.is_cleared = False
        self.byte_count = 0
        self.state: TableState | None = None


class TopicTable:
    """The table of one topic."""

    def __init__(
        self,
        store: TableStore,
        *,
        recent_rows: int = _RECENT_ROWS,
        recent_bytes: int = _RECENT_BYTES,
    ) -> None:
        self._store = store
        self._recent_rows_max = recent_rows
        self._recent_bytes_max = recent_bytes
        self._lock = threading.Lock()
        self._layers = [MemLayer()]  # guarded by _lock; the newest is last and only grows
        self._first_mark = 0  # guarded by _lock
        self._recent: dict[str, bytes | None] = {}  # guarded by _lock
        self._recent_bytes = 0  # guarded by _lock
        self._previous_generation: dict[str, bytes | None] = {}  # guarded by _lock
        self._position = ShapeOffset(0, 0)  # guarded by _lock
        self._views: set[TableView] = set()  # guarded by _lock

    @property
    def unflushed_rows(self) -> int:
        """Changed rows that are not on disk."""
        with self._lock:
            return sum(len(layer.rows) for layer in self._layers)

    @property
    def unflushed_bytes(self) -> int:
        """About the bytes of their records."""
        with self._lock:
            return sum(layer.byte_count for layer in self._layers)

    @property
    def damage(self) -> str | None:
        """The damage that a read found on disk, in any thread."""
        return self._store.damage

    @property
    def position(self) -> ShapeOffset:
        """The position of the last change that was applied."""
        with self._lock:
            return self._position

    def move_to(self, position: ShapeOffset) -> None:
        """Sets the position of a table that was just opened or loaded."""
        with self._lock:
            self._position = position

    # Reading and changing rows: one thread

    def find_rows(self, keys: Sequence[str]) -> dict[str, bytes | None]:
        """The current row of each key, None where there is none."""
        current: dict[str, bytes | None] = {}
        missing: list[str] = []
        with self._lock:
            layers = self._visible_locked()
            for key in keys:
                if key in current:
                    continue
                for rows in layers:
                    if key in rows:
                        current[key] = rows[key]
                        break
                else:
                    current[key] = None
                    missing.append(key)
            if self._is_cleared_locked():
                return current
        if missing:
            missing.sort()
            read = dict(zip(missing, self._store.get_rows(missing), strict=True))
            current.update(read)
            with self._lock:
                self._keep_recent_locked(read)
        return current

    def apply(
        self,
        rows: Mapping[str, bytes | None],
        *,
        position: ShapeOffset,
        byte_count: int,
        is_cleared: bool = False,
    ) -> None:
        """Adds changed rows; with `is_cleared` all others are deleted."""
        with self._lock:
            newest = self._layers[-1]
            if is_cleared:
                newest.rows.clear()
                newest.is_cleared = True
                self._clear_recent_locked()
            newest.rows.update(rows)
            newest.byte_count += byte_count
            self._position = position

    def _visible_locked(self) -> list[dict[str, bytes | None]]:
        """The rows to search, the newest first."""
        visible = []
        for layer in reversed(self._layers):
            visible.append(layer.rows)
            if layer.is_cleared:
                return visible
        return [*visible, self._recent, self._previous_generation]

    def _is_cleared_locked(self) -> bool:
        return any(layer.is_cleared for layer in self._layers)

    def _keep_recent_locked(self, rows: Mapping[str, bytes | None]) -> None:
        """Keeps the last of these rows, as many as fit a generation."""
        left_out = len(rows) - self._recent_rows_max
        if left_out > 0:
            self._clear_recent_locked()
        for key, text in islice(rows.items(), max(0, left_out), None):
            self._recent[key] = text
            self._recent_bytes += len(key) + len(text or b"")
            is_full = len(self._recent) >= self._recent_rows_max
            if is_full or self._recent_bytes >= self._recent_bytes_max:
                self._recent, self._recent_bytes, self._previous_generation = {}, 0, self._recent

    def _clear_recent_locked(self) -> None:
        self._recent, self._recent_bytes, self._previous_generation = {}, 0, {}

    # Checkpoints: one thread

    def seal(self, state: TableState) -> int:
        """Closes the current layer and returns its mark; `state` is that of the table with it."""
        with self._lock:
            self._layers[-1].state = state
            self._layers.append(MemLayer())
            return self._first_mark + len(self._layers) - 2

    def checkpoint(self, mark: int) -> None:
        """Writes the changes before a mark; durable on return. A mark may be written twice."""
        with self._lock:
            count = mark - self._first_mark + 1
            if count > len(self._layers) - 1:
                raise InvalidRequest(f"table {self._store.path} has no mark {mark}")
            layers = self._layers[: max(0, count)]
        if not layers:
            return
        rows, is_cleared = _merge(layers)
        state = layers[-1].state
        assert state is not None
        self._store.write(rows, state, is_cleared=is_cleared)
        with self._lock:
            del self._layers[: len(layers)]
            self._first_mark += len(layers)
            if not self._is_cleared_locked():
                self._keep_recent_locked(rows)

    # Views: any thread

    def view(self) -> "TableView":
        """The rows at the current position; the caller closes it."""
        with self._lock:
            rows, is_cleared = _merge(self._layers)
            view = TableView(self, self._store.scan(), rows, is_cleared, self._position)
            self._views.add(view)
            return view

    def remove_view(self, view: "TableView") -> None:
        with self._lock:
            self._views.discard(view)

    def close(self) -> None:
        """Closes all views; changes after the last checkpoint are lost."""
        with self._lock:
            views = list(self._views)
        for view in views:
            view.close()
        self._store.close()


class TableView(Closing):
    """All rows at one position, whatever is applied or written later."""

    def __init__(
        self,
        table: TopicTable,
        scan: TableScan,
        changed: Mapping[str, bytes | None],
        is_cleared: bool,
        position: ShapeOffset,
    ) -> None:
        self.position = position
        self._table = table
        self._scan = scan
        self._changed = changed
        self._is_cleared = is_cleared

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Each key with its row, in no particular order."""
        changed = self._changed
        if not self._is_cleared:
            for part in self._scan.parts():
                for pair in part:
                    if pair[0] not in changed:
                        yield pair
        for chunk in _split([(key, text) for key, text in changed.items() if text is not None]):
            rows = split_rows([text for _, text in chunk])
            for (key, _), row in zip(chunk, rows, strict=True):
                assert row is not None  # layers have the texts of rows
                yield key, row

    def close(self) -> None:
        """Closes the scan; closing twice is harmless."""
        self._scan.close()
        self._table.remove_view(self)


def _split(pairs: Sequence[tuple[str, bytes]]) -> Iterator[Sequence[tuple[str, bytes]]]:
    """Some rows at a time."""
    start, size = 0, 0
    for at, (_, text) in enumerate(pairs):
        size += len(text)
        if at - start + 1 == _VIEW_ROWS or size >= _VIEW_BYTES:
            yield pairs[start : at + 1]
            start, size = at + 1, 0
    if start < len(pairs):
        yield pairs[start:]


def _merge(layers: Sequence[MemLayer]) -> tuple[dict[str, bytes | None], bool]:
    """The rows of all layers, and whether they hide everything older."""
    rows: dict[str, bytes | None] = {}
    is_cleared = False
    for layer in layers:
        if layer.is_cleared:
            rows.clear()
            is_cleared = True
        rows.update(layer.rows)
    return rows, is_cleared
