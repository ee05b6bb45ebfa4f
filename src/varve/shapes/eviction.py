"""Evicts shapes beyond `shapes.max`, and beyond `shapes.max.bytes` of their files.

Invariant  the least recently read shape goes first, and none that is in use. A snapshot of more
           than half of the bytes is refused: it would evict all others each time it is requested.
Threads    any. Sizes are those of the last measurement, which maintenance, a large snapshot and a
           new shape at the limit start. `_lock` guards them; a shape is dropped without it.
"""

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import Unavailable
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.layout import (
    ShapeManifest,
    log_directory,
    metadata_directory,
    shape_directory,
)

if TYPE_CHECKING:
    from varve.shapes.engine import ShapeEngine

EVICTED_TOGETHER: Final = 100
"""The most shapes that are evicted for one new shape."""
_BLOCK_BYTES: Final = 4096
"""A file takes whole blocks."""


@dataclass(frozen=True, slots=True)
class _MeasuredShape:
    """Bytes of a shape's files: those of the live log, which grows, and those of the others."""

    manifest: ShapeManifest | None
    """None if the storage was not open."""
    is_complete: bool
    other_bytes: int
    live_bytes: int

    @property
    def size(self) -> int:
        return self.other_bytes + self.live_bytes


class ShapeEviction:
    """Keeps the shapes of an engine within their limits."""

    def __init__(self, engine: "ShapeEngine") -> None:
        self._engine = engine
        self._count_max = engine.settings.shapes_max
        self._bytes_max = engine.settings.bytes_max
        self._lock = threading.Lock()
        self._measured: dict[Shape, _MeasuredShape] = {}  # guarded by _lock
        self._total_bytes = 0  # replaced under _lock, read without

    @property
    def total_bytes(self) -> int:
        """The bytes of all shapes' files when they were last measured."""
        return self._total_bytes

    def make_room(self) -> None:
        """Evicts shapes for a new one; raises Unavailable if all of them are in use."""
        self._make_room_in_count()
        if self._total_bytes > self._bytes_max and self.enforce() > 0:
            raise Unavailable(
                f"the shapes take {self._total_bytes} bytes on disk and all of them are in use or "
                f"were just created; the limit is {self._bytes_max} (shapes.max.bytes): try again"
            )

    def _make_room_in_count(self) -> None:
        registry = self._engine.registry
        excess = len(registry) + 1 - self._count_max
        if excess <= 0:
            return
        # More than one if the limit was higher in an earlier run.
        count = min(excess, EVICTED_TOGETHER)
        evicted = registry.least_recently_read(self._engine.clock.now_ms(), count)
        if not evicted:
            raise Unavailable(
                f"there are {len(registry)} shapes and all of them are in use or were just "
                f"created; the limit is {self._count_max} (shapes.max): try again"
            )
        self._engine.removal.drop(evicted, DropReason.EVICTED)

    def enforce(self) -> int:
        """Measures all shapes, and evicts until they fit; returns the bytes that are too many."""
        evicted: list[Shape] = []
        with self._lock:
            self._measure_locked()
            excess = self._total_bytes - self._bytes_max
            for shape in self._by_last_read() if excess > 0 else ():
                if excess <= 0:
                    break
                evicted.append(shape)
                excess -= self._measured[shape].size
            self._total_bytes = self._bytes_max + excess
        if evicted:
            self._engine.removal.drop(evicted, DropReason.EVICTED)
        return excess

    def check_snapshot(self, snapshot_bytes: int) -> None:
        """Evicts others for a snapshot that is being written; raises Unavailable if it is too big.

        `snapshot_bytes` are those written so far.
        """
        if snapshot_bytes > self._bytes_max // 2:
            raise Unavailable(
                f"the snapshot has more than {self._bytes_max // 2} bytes, half of what all shapes "
                "may have (shapes.max.bytes): request fewer rows or columns, or raise the limit"
            )
        if self.enforce() > 0:
            raise Unavailable(
                f"the shapes take {self._total_bytes} bytes on disk and the others are in use; "
                f"the limit is {self._bytes_max} (shapes.max.bytes): try again later"
            )

    def _by_last_read(self) -> list[Shape]:
        now_ms = self._engine.clock.now_ms()
        evictable = [shape for shape in self._measured if shape.is_evictable(now_ms)]
        return sorted(evictable, key=lambda shape: shape.last_read)

    def _measure_locked(self) -> None:
        shapes, known = self._engine.registry.shapes(), self._measured
        self._measured = {shape: self._measure(shape, known.get(shape)) for shape in shapes}
        self._total_bytes = sum([measured.size for measured in self._measured.values()])

    def _measure(self, shape: Shape, known: _MeasuredShape | None) -> _MeasuredShape:
        """Lists the files only if some may be new since the last time."""
        storage, is_complete = shape.find_storage(), shape.is_snapshot_complete
        manifest = None if storage is None else storage.manifest
        live_bytes = 0 if storage is None else storage.live_bytes
        if known is not None and known.is_complete and known.manifest == manifest:
            if live_bytes == known.live_bytes:
                return known
            return _MeasuredShape(manifest, True, known.other_bytes, live_bytes)
        other_bytes = self._list_bytes(shape.handle) - live_bytes
        return _MeasuredShape(manifest, is_complete, max(0, other_bytes), live_bytes)

    def _list_bytes(self, handle: str) -> int:
        fs, directory = self._engine.fs, shape_directory(self._engine.root, handle)
        size = 0
        for path in (log_directory(directory), metadata_directory(directory)):
            # Without a directory the shape was not begun, or is being dropped.
            with suppress(OSError):
                size += sum([-(-file.size // _BLOCK_BYTES) for file in fs.scan(path)])
        return size * _BLOCK_BYTES
