"""A shape with a small log, changes to its rows, and a check of every reader."""

import random
from copy import copy
from random import Random
from typing import Any

from tests.support.shape_messages import (
    DELETE,
    INSERT,
    UPDATE,
    State,
    apply_message,
    make_entry,
    read_messages,
)
from varve.disk import FileSystem
from varve.foundation.clock import ManualClock
from varve.shapes.compaction.compactor import CompactionReport, Compactor
from varve.shapes.offset import SNAPSHOT_END, ShapeOffset
from varve.shapes.settings import CompactionSettings, StorageSettings
from varve.shapes.storage.log_writer import ShapeEntry
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.shapes.storage.snapshot import SnapshotWriter

ROOT = "/shapes"
HANDLE = "1234-5678"
SMALL = CompactionSettings(keep_chunks=1, min_cleanable_ratio=0)
STORAGE = StorageSettings(chunk_bytes=600, buffer_bytes=300)


class CompactionBench:
    """One shape on a file system; `state` is what its rows are."""

    def __init__(
        self,
        fs: FileSystem,
        *,
        settings: CompactionSettings = SMALL,
        storage_settings: StorageSettings = STORAGE,
        seed: int = 1,
    ) -> None:
        self.fs = fs
        self.clock = ManualClock()
        self.settings = storage_settings
        self.compactor = Compactor(settings, Random(5))
        self.storage = ShapeStorage.create(fs, ROOT, HANDLE, storage_settings, self.clock)
        SnapshotWriter(self.storage.snapshot).finish(b'{"headers":{"control":"snapshot-end"}}')
        self.random = random.Random(seed)
        self.state: State = {}
        self.states: dict[ShapeOffset, State] = {SNAPSHOT_END: {}}
        self.entries: list[ShapeEntry] = []
        self.tx = 0

    def put(self, key: str, **columns: Any) -> None:
        operation = UPDATE if key in self.state else INSERT
        self._append(operation, key, {"id": key, **columns})

    def remove(self, key: str) -> None:
        self._append(DELETE, key, {"id": key})

    def control(self, name: str) -> None:
        self._append(ord("c"), name, None)

    def change(self, count: int, keys: int = 4) -> None:
        """So many changes to so many rows, by chance."""
        for number in range(count):
            key = f"row {self.random.randrange(keys)}"
            if key in self.state and self.random.random() < 0.15:
                self.remove(key)
            else:
                self.put(key, **{self.random.choice("abc"): number})

    def _append(self, operation: int, key: str, value: dict[str, Any] | None) -> None:
        self.tx += 1
        entry = make_entry(ShapeOffset(self.tx, 0), operation, key, value)
        self.entries.append(entry)
        self.storage.append([entry])
        if value is not None:
            message = {"key": key, "value": value, "headers": {"operation": _NAMES[operation]}}
            apply_message(self.state, message)
        self.states[entry.offset] = {name: dict(row) for name, row in self.state.items()}

    def copy(self) -> "CompactionBench":
        """The same shape, to be opened from another disk; nothing that changes is shared."""
        bench = copy(self)
        bench.state = {key: dict(row) for key, row in self.state.items()}
        bench.states, bench.entries = dict(self.states), list(self.entries)
        bench.random = random.Random(self.tx)
        return bench

    @property
    def latest(self) -> ShapeOffset:
        return self.entries[-1].offset if self.entries else SNAPSHOT_END

    def replay(self) -> None:
        """Give all entries again: those that were lost in a crash are among them."""
        self.storage.append(self.entries[:])

    def compact(self, *, is_forced: bool = True) -> CompactionReport:
        self.storage.flush()
        self.clock.advance(1000)
        return self.compactor.compact(self.storage, now_ms=self.clock.now_ms(), is_forced=is_forced)

    def follow(self, storage: ShapeStorage, start: ShapeOffset, state: State) -> State:
        """What a client that had come to an offset ends with."""
        state = {key: dict(row) for key, row in state.items()}
        place, latest = start, storage.latest
        while place < latest:
            end = storage.chunk_end(place) or latest
            for message in read_messages(storage, place, end):
                apply_message(state, message)
            assert end > place
            place = end
        return state

    def check(self, storage: ShapeStorage | None = None, *, sample: int | None = None) -> None:
        """Clients at every offset there ever was, or some, end with the rows of the last."""
        storage = storage or self.storage
        expected = self.states[storage.latest]
        offsets = [offset for offset in self.states if offset <= storage.latest]
        if sample is not None and sample < len(offsets):
            offsets = [offsets[0], *self.random.sample(offsets, sample)]
        for offset in offsets:
            assert self.follow(storage, offset, self.states[offset]) == expected, offset

    def reopen(self, fs: FileSystem) -> ShapeStorage:
        return ShapeStorage.open(fs, ROOT, HANDLE, self.settings, self.clock)


_NAMES = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
