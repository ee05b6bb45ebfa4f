"""A topic in memory that a feed reads, and that a test compacts and cuts as it likes."""

from collections.abc import Mapping
from uuid import UUID

from varve.foundation.errors import NotFound, OffsetOutOfRange
from varve.records import BatchHeader, CommittedBatches, build_batch, decode_header
from varve.records.batch import Record
from varve.records.building import empty_batch
from varve.topics import OffsetRange, Position, TopicInfo


class MemoryTopic:
    """Reads itself: partitions are lists of offset, key and value, and each record is a batch."""

    cluster_name = "memory"

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

    def info(self) -> TopicInfo:
        self._check_there()
        return TopicInfo(self.topic, UUID(int=7), len(self.logs))

    def settings(self) -> Mapping[str, str]:
        if self.tombstones_ms is None:
            return {"cleanup.policy": "delete"}
        return {"cleanup.policy": "compact", "delete.retention.ms": str(self.tombstones_ms)}

    def offsets(self, partition: int) -> OffsetRange:
        self._check_there()
        return OffsetRange(self.starts[partition], self.ends[partition])

    def fetch(
        self, positions: Mapping[int, Position], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, CommittedBatches]:
        self._check_there()
        found = {}
        for number, (start, _) in positions.items():
            if not self.starts[number] <= start <= self.ends[number]:
                raise OffsetOutOfRange(f"{self.topic}-{number} has no offset {start}")
            if start < self.ends[number]:
                found[number] = self._read(number, start)
        return found

    def find_batch_before(self, partition: int, offset: int) -> BatchHeader | None:
        for record in self.logs[partition]:
            if record[0] == offset - 1:
                return decode_header(_batch(record))
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _check_there(self) -> None:
        if self.is_missing:
            raise NotFound(f"{self.cluster_name} has no topic {self.topic}")

    def _read(self, number: int, start: int) -> CommittedBatches:
        batches = [_batch(one) for one in self.logs[number] if one[0] >= start]
        end = self.ends[number]
        if not batches or self.logs[number][-1][0] + 1 < end:
            # What was removed at the end leaves an empty batch, which holds the last offset.
            batches.append(empty_batch(decode_header(_batch((end - 1, b"", b"")))))
        batches = batches[: self._batch_records]
        return CommittedBatches(
            b"".join(batches), start_offset=start, end_offset=self.ends[number], where=self.topic
        )


def _batch(record: tuple[int, bytes, bytes | None]) -> bytes:
    offset, key, value = record
    return build_batch([Record(key=key, value=value, timestamp=1)], base_offset=offset)
