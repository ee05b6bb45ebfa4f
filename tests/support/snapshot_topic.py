"""A topic of which snapshots are taken in this process, into a store that may fail."""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.source_topic import SourceTopic
from tests.support.store_access import StoreAccess
from varve.foundation.clock import Clock, SystemClock
from varve.jobs.snapshot.snapshot import SnapshotResult, SnapshotRun, SnapshotSettings
from varve.jobs.snapshot.store import Snapshot, SnapshotStore
from varve.jobs.source.options import Mode, Offsets, SourceOptions
from varve.jobs.source.topic_source import open_partitions
from varve.jobs.tasks import LocalRunner, TaskRunner
from varve.object_store import MemoryObjectStore, ObjectStore

Rows = dict[tuple[int, bytes], tuple[int, bytes]]
"""Offset and value by partition and key."""

SMALL = SnapshotSettings(bucket_bytes=200, buckets=4, split_bytes=300, range_bytes=96, grace_ms=0)
"""So that a few records make several pieces, ranges and buckets."""
URL = "memory:place"
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""For directories that live as long as a test: waiting for a disk tells nothing about snapshots."""


@dataclass
class SnapshotTopic:
    """A topic and a place for its snapshots."""

    topic: SourceTopic
    store: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    settings: SnapshotSettings = SMALL
    clock: Clock = field(default_factory=SystemClock)
    seed: int = 0
    is_hot: bool = True

    def take(
        self,
        *,
        at: Offsets = None,
        at_ms: int | None = None,
        store: ObjectStore | None = None,
        settings: SnapshotSettings | None = None,
        runner: TaskRunner | None = None,
    ) -> SnapshotResult:
        """A run as a new process makes it."""
        self.seed += 1
        given = settings or self.settings
        self.topic.flush()
        options = SourceOptions(
            topic="orders",
            address=self.topic.options().address,
            directories=(self.topic.kit.path,) if self.is_hot else (),
            mode=Mode.LATEST,
            ending=at,
            ending_ms=at_ms,
            split_bytes=given.split_bytes,
        )
        return SnapshotRun(
            options,
            StoreAccess(store or self.store),
            URL,
            {},
            given,
            runner=runner or LocalRunner(),
            clock=self.clock,
            random=random.Random(self.seed),
        ).run(open_partitions(options))

    @property
    def place(self) -> SnapshotStore:
        return SnapshotStore(self.store)

    def open(self, snapshot: int | None = None) -> Snapshot:
        return Snapshot(URL, self.store, self.place.get(snapshot))

    def rows(self, snapshot: int | None = None) -> Rows:
        return rows_of(self.open(snapshot))

    def model(self, *, at: Callable[[int], int] | int | None = None) -> Rows:
        """What a dict holds after reading each partition up to an offset."""
        state: Rows = {}
        for number in range(len(self.topic.topic.partitions)):
            end = at(number) if callable(at) else at
            records = self.topic.topic.read(partition=number, isolation="read_committed")
            apply(state, number, [one for one in records if end is None or one.offset < end])
        return state


def apply(state: Rows, partition: int, records: list[Any]) -> None:
    """Records in order on top of a state, as a consumer does it."""
    for one in records:
        if one.key is None:
            continue
        if one.value is None:
            state.pop((partition, one.key), None)
        else:
            state[partition, one.key] = (one.offset, one.value)


def rows_of(snapshot: Snapshot) -> Rows:
    found: Rows = {}
    for row in snapshot.read().to_pylist():
        place = (row["partition"], row["key"])
        assert place not in found, "a key stands twice"
        found[place] = (row["offset"], row["value"])
    return found
