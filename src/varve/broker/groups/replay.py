"""What a partition of `__consumer_offsets` tells when it is read from its beginning.

Invariant  of each key the last record counts. A record of a transaction counts from its commit on,
           and only where no later record of its key stands in the log; one of a transaction that
           has not ended is told apart, by its producer.
Threads    runs off the loop, before the coordinator serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from varve.broker.groups.record_types import (
    RecordType,
    decode_key,
    decode_value,
    find_format,
)
from varve.broker.state_scan import CONTROL, TRANSACTIONAL, ScannedRecords, scan_records
from varve.commit_log import Log
from varve.records import ControlType, decode_control_record
from varve.wire import Message

_Record = tuple[int, bytes, bytes | None]  # offset, key, value

_NOTHING: Final = (-1, None)


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
    """Gathers the last record of each key: its offset and its value."""

    def __init__(self) -> None:
        self.last: dict[bytes, tuple[int, bytes | None]] = {}
        self.open: dict[int, list[_Record]] = {}

    def take(self, records: ScannedRecords) -> None:
        for offset, producer_id, attributes, key, value in zip(
            records.offsets,
            records.producer_ids,
            records.attributes,
            records.keys,
            records.values,
            strict=True,
        ):
            if attributes & CONTROL:
                self._end(producer_id, decode_control_record(key, value).type)
            elif key is None:
                continue
            elif attributes & TRANSACTIONAL:
                self.open.setdefault(producer_id, []).append((offset, key, value))
            else:
                self.last[key] = offset, value

    def _end(self, producer_id: int, type: ControlType) -> None:
        written = self.open.pop(producer_id, [])
        if type is ControlType.COMMIT:
            for offset, key, value in written:
                if self.last.get(key, _NOTHING)[0] < offset:
                    self.last[key] = offset, value


def replay(log: Log) -> Replayed:
    """Reads a whole partition."""
    reader = _Reader()
    for records in scan_records(log):
        reader.take(records)
    live = [
        (offset, key, value) for key, (offset, value) in reader.last.items() if value is not None
    ]
    live.sort()
    pending = [(record, owner) for owner, records in reader.open.items() for record in records]
    return Replayed(_decode_all([(one, -1) for one in live]), _decode_all(pending))


def _decode_all(records: Sequence[tuple[_Record, int]]) -> list[ReplayedRecord]:
    decoded = [_decode(record, producer_id) for record, producer_id in records]
    return [one for one in decoded if one is not None]


def _decode(record: _Record, producer_id: int) -> ReplayedRecord | None:
    """None for a record of a type or version that is not known here."""
    offset, key_bytes, value_bytes = record
    format = find_format(key_bytes)
    if format is None:
        return None
    value = None if value_bytes is None else decode_value(format, value_bytes)
    if value is None and value_bytes is not None:
        return None
    key = decode_key(format, key_bytes)
    return ReplayedRecord(format.record_type, key, value, offset, producer_id)
