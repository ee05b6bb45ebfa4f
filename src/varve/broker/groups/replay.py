"""What a partition of `__consumer_offsets` tells when it is read from its beginning.

Invariant  of each key the last record counts. A record of a transaction counts from its commit on,
           and only where no later record of its key stands in the log; one of a transaction that
           has not ended is told apart, by its producer.
Threads    runs off the loop, before the coordinator serves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from varve.broker.groups.record_types import (
    RecordType,
    decode_key,
    decode_value,
    find_format,
)
from varve.commit_log import Log
from varve.records import Batch, ControlType, Record, decode_control_record
from varve.wire import Message

_READ_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class ReplayedRecord:
    """A live record, where it stands in its partition, and who wrote it in an open transaction."""

    record_type: RecordType
    key: Message
    value: Message | None
    offset: int
    producer_id: int = -1


@dataclass(frozen=True, slots=True)
class Replayed:
    """Live records in the order of the log, and those that wait for the end of a transaction."""

    records: list[ReplayedRecord]
    pending: list[ReplayedRecord]


class _Reader:
    """Gathers the last record of each key."""

    def __init__(self) -> None:
        self.last: dict[bytes, Record] = {}
        self.open: dict[int, list[Record]] = {}

    def take(self, batch: Batch, start_offset: int) -> None:
        header = batch.header
        records = [one for one in batch.records() if one.offset >= start_offset]
        if header.is_control:
            for record in records:
                self._end(header.producer_id, decode_control_record(record.key, record.value).type)
        elif header.is_transactional:
            mine = self.open.setdefault(header.producer_id, [])
            mine.extend(one for one in records if one.key is not None)
        else:
            self._show(records)

    def _end(self, producer_id: int, type: ControlType) -> None:
        if type is ControlType.COMMIT:
            self._show(self.open.pop(producer_id, []))
        elif type is ControlType.ABORT:
            self.open.pop(producer_id, None)

    def _show(self, records: list[Record]) -> None:
        for record in records:
            if record.key is None:
                continue
            shown = self.last.get(record.key)
            if shown is None or shown.offset < record.offset:
                self.last[record.key] = record


def replay(log: Log) -> Replayed:
    """Reads a whole partition."""
    reader = _Reader()
    offset = log.log_start_offset
    while True:
        found = log.read(start_offset=offset, max_bytes=_READ_BYTES)
        if not found.data:
            break
        for batch in _batches(found.data, str(log.topic_partition)):
            reader.take(batch, offset)
        offset = found.next_offset
    live = [one for one in reader.last.values() if one.value is not None]
    live.sort(key=lambda one: one.offset)
    pending = [(record, owner) for owner, records in reader.open.items() for record in records]
    return Replayed(_decode_all([(one, -1) for one in live]), _decode_all(pending))


def _batches(data: memoryview, where: str) -> Iterator[Batch]:
    position = 0
    while position < len(data):
        batch = Batch(data, where, position=position)
        yield batch
        position += batch.header.size


def _decode_all(records: list[tuple[Record, int]]) -> list[ReplayedRecord]:
    decoded = [_decode(record, producer_id) for record, producer_id in records]
    return [one for one in decoded if one is not None]


def _decode(record: Record, producer_id: int) -> ReplayedRecord | None:
    """None for a record of a type or version that is not known here."""
    assert record.key is not None
    format = find_format(record.key)
    if format is None:
        return None
    value = None if record.value is None else decode_value(format, record.value)
    if value is None and record.value is not None:
        return None
    key = decode_key(format, record.key)
    return ReplayedRecord(format.record_type, key, value, record.offset, producer_id)
