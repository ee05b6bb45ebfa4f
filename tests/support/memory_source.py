"""A topic in memory as the source of a feed, which a test compacts and cuts as it likes."""

from collections.abc import Mapping

import numpy as np

from varve.foundation.errors import NotFound, OffsetOutOfRange
from varve.kernels.batch_layout import RecordColumn
from varve.records import Batch, RecordColumns, build_batch
from varve.records.record import Record
from varve.shapes.feed.source import SourceRead


class MemorySource:
    """Partitions as lists of offset, key and value."""

    place = "memory"

    def __init__(
        self, topic: str = "orders", *, partitions: int = 1, batch_records: int = 3
    ) -> None:
        self.topic = topic
        self.logs: list[list[tuple[int, bytes, bytes | None]]] = [[] for _ in range(partitions)]
        self.starts = [0] * partitions
        self.ends = [0] * partitions
        self.tombstones_ms: int | None = None
        self.is_missing = False
        self._batch_records = batch_records

    def append(self, partition: int, key: bytes, value: bytes | None) -> int:
        offset = self.ends[partition]
        self.logs[partition].append((offset, key, value))
        self.ends[partition] = offset + 1
        return offset

    def add_partition(self) -> None:
        self.logs.append([])
        self.starts.append(0)
        self.ends.append(0)

    def compact(self, partition: int) -> None:
        """Keeps the last record of each key; the last of all stays, as it does in a log."""
        last = {key: offset for offset, key, _ in self.logs[partition]}
        self.logs[partition] = [one for one in self.logs[partition] if last[one[1]] == one[0]]

    def state(self) -> dict[bytes, bytes]:
        """The last value of each key."""
        found: dict[bytes, bytes] = {}
        for log in self.logs:
            for _, key, value in log:
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
        return found

    def topic_id(self) -> str:
        return "memory"

    def partition_count(self) -> int:
        return len(self.logs)

    def bounds(self, partition: int) -> tuple[int, int]:
        self._check_there()
        return self.starts[partition], self.ends[partition]

    def read(
        self, positions: Mapping[int, int], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, SourceRead]:
        self._check_there()
        found = {}
        for number, start in positions.items():
            if not self.starts[number] <= start <= self.ends[number]:
                raise OffsetOutOfRange(f"{self.topic}-{number} has no offset {start}")
            if start < self.ends[number]:
                found[number] = self._read(number, start)
        return found

    def tombstone_retention_ms(self) -> int | None:
        return self.tombstones_ms

    def close(self) -> None:
        """Nothing is held."""

    def _check_there(self) -> None:
        if self.is_missing:
            raise NotFound(f"{self.place} has no topic {self.topic}")

    def _read(self, number: int, start: int) -> SourceRead:
        end = self.ends[number]
        wanted = [one for one in self.logs[number] if one[0] >= start]
        if len(wanted) > self._batch_records:
            end = wanted[self._batch_records][0]
            wanted = wanted[: self._batch_records]
        columns = [_columns(wanted)] if wanted else []
        return SourceRead(columns, end, self.ends[number])


def _columns(records: list[tuple[int, bytes, bytes | None]]) -> RecordColumns:
    batch = build_batch([Record(key=key, value=value, timestamp=1) for _, key, value in records])
    columns = Batch(batch).columns()
    table = columns.table.copy()
    table[:, RecordColumn.OFFSET] = np.array([offset for offset, _, _ in records], np.int64)
    return RecordColumns(columns.payload, table)
