"""All records of a log from its beginning, quickly.

Most batches of the internal topics hold one record, so the records of many batches are parsed as
if they stood in one: a start after a busy day reads millions.

Invariant  every byte read is accounted for; a batch whose checksum does not match is Corrupt.
Threads    any; runs off the loop.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.commit_log import Log
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import (
    NO_LOG_APPEND_TIMESTAMP,
    BatchColumn,
    RecordColumn,
    RecordStatus,
    ScanStatus,
    status_text,
)
from varve.kernels.batch_scan import batch_table, scan_batches
from varve.kernels.record_parse import parse_records, record_table
from varve.records import HEADER_BYTES, Batch

CONTROL: Final = 0x20
TRANSACTIONAL: Final = 0x10

_READ_BYTES: Final = 4 << 20
_BATCHES_AT_ONCE: Final = 8_192
_CODEC: Final = 0x07

_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ScannedRecords:
    """Records of some batches in the order of their offsets, a list for each of their parts.

    The producer and the attributes are those of a record's batch.
    """

    offsets: list[int]
    producer_ids: list[int]
    attributes: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]

    def since(self, offset: int) -> "ScannedRecords":
        """Those at an offset or after it."""
        first = bisect_left(self.offsets, offset)
        return ScannedRecords(
            self.offsets[first:],
            self.producer_ids[first:],
            self.attributes[first:],
            self.keys[first:],
            self.values[first:],
        )


def scan_records(log: Log) -> Iterator[ScannedRecords]:
    """All records from the log's beginning on, those of control batches too."""
    where = str(log.topic_partition)
    start = offset = log.log_start_offset
    while True:
        found = log.read(start_offset=offset, max_bytes=_READ_BYTES)
        if not found.data:
            return
        for records in _scan(found.data, where):
            # The first batch may begin before the log does.
            is_early = records.offsets and records.offsets[0] < start
            yield records.since(start) if is_early else records
        offset = found.next_offset


def _scan(data: memoryview, where: str) -> Iterator[ScannedRecords]:
    buffer = np.frombuffer(data, np.uint8)
    table = batch_table(_BATCHES_AT_ONCE)
    position = 0
    while position < len(data):
        count, position, status = scan_batches(buffer, position, len(data), True, table)
        if status not in (ScanStatus.FULL, ScanStatus.END):
            raise Corrupt(
                f"{where}: {status_text(status)} at position {position} of what was read; "
                "run `varve check` on the directory to see what is broken"
            )
        rows = table[:count]
        if np.any(rows[:, BatchColumn.ATTRIBUTES] & _CODEC):
            yield from _unpack(data, rows, where)
        else:
            yield _parse(data, rows, where)


def _parse(data: memoryview, rows: _Rows, where: str) -> ScannedRecords:
    ends = (rows[:, BatchColumn.POSITION] + rows[:, BatchColumn.SIZE]).tolist()
    starts = (rows[:, BatchColumn.POSITION] + HEADER_BYTES).tolist()
    payload = b"".join([data[start:end] for start, end in zip(starts, ends, strict=True)])
    counts = rows[:, BatchColumn.RECORD_COUNT]
    count = int(counts.sum())
    table = record_table(count)
    buffer = np.frombuffer(payload, np.uint8)
    status, index = parse_records(
        buffer, 0, buffer.size, count, 0, 0, NO_LOG_APPEND_TIMESTAMP, table
    )
    if status != RecordStatus.OK:
        raise Corrupt(f"{where}: record {index} of {count}: {status_text(RecordStatus(status))}")
    offsets = table[:, RecordColumn.OFFSET] + np.repeat(rows[:, BatchColumn.BASE_OFFSET], counts)
    return ScannedRecords(
        offsets.tolist(),
        np.repeat(rows[:, BatchColumn.PRODUCER_ID], counts).tolist(),
        np.repeat(rows[:, BatchColumn.ATTRIBUTES], counts).tolist(),
        _cut(payload, table, RecordColumn.KEY_START, RecordColumn.KEY_SIZE),
        _cut(payload, table, RecordColumn.VALUE_START, RecordColumn.VALUE_SIZE),
    )


def _cut(
    payload: bytes, table: _Rows, start: RecordColumn, size: RecordColumn
) -> list[bytes | None]:
    starts, sizes = table[:, start], table[:, size]
    return [
        payload[one:end] if end >= one else None
        for one, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    ]


def _unpack(data: memoryview, rows: _Rows, where: str) -> Iterator[ScannedRecords]:
    """Batches among which somebody has compressed one, one by one."""
    for position in rows[:, BatchColumn.POSITION].tolist():
        batch = Batch(data, where, position=position)
        records = list(batch.records())
        yield ScannedRecords(
            [one.offset for one in records],
            [batch.header.producer_id] * len(records),
            [batch.header.attributes] * len(records),
            [one.key for one in records],
            [one.value for one in records],
        )
