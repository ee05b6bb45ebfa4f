"""All records of a log from its beginning, quickly.

Most batches of `__consumer_offsets` hold one record, so the records of many batches are parsed as
if they stood in one: a start after a busy day reads millions.

Invariant  every byte read is accounted for; a batch whose checksum does not match is Corrupt.
Threads    any; runs off the loop.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.commit_log import Log
from varve.foundation.errors import Corrupt
from varve.kernels.batch_scan import Field, batch_table, scan_batches
from varve.kernels.record_parse import (
    NO_LOG_APPEND_TIMESTAMP,
    RecordField,
    parse_records,
    record_table,
)
from varve.kernels.status import RecordStatus, ScanStatus, describe
from varve.records import HEADER_BYTES, Batch

CONTROL: Final = 0x20
TRANSACTIONAL: Final = 0x10

# Offset, producer id, attributes of the batch, key, value: a plain tuple, one per record.
ScannedRecord = tuple[int, int, int, bytes | None, bytes | None]

_READ_BYTES: Final = 4 << 20
_BATCHES_AT_ONCE: Final = 8_192
_CODEC: Final = 0x07

_Rows = npt.NDArray[np.int64]


def scan_records(log: Log) -> Iterator[ScannedRecord]:
    """Records in the order of their offsets, those of control batches too."""
    where = str(log.topic_partition)
    offset = log.log_start_offset
    while True:
        found = log.read(start_offset=offset, max_bytes=_READ_BYTES)
        if not found.data:
            return
        for record in _scan(found.data, where):
            # The first batch may begin before the log does.
            if record[0] >= offset:
                yield record
        offset = found.next_offset


def _scan(data: memoryview, where: str) -> Iterator[ScannedRecord]:
    buffer = np.frombuffer(data, np.uint8)
    table = batch_table(_BATCHES_AT_ONCE)
    position = 0
    while position < len(data):
        count, position, status = scan_batches(buffer, position, len(data), True, table)
        if status not in (ScanStatus.FULL, ScanStatus.END):
            raise Corrupt(
                f"{where}: {describe(ScanStatus(status))} at position {position} of what was read; "
                "run `varve check` on the directory to see what is broken"
            )
        rows = table[:count]
        if np.any(rows[:, Field.ATTRIBUTES] & _CODEC):
            yield from _unpack(data, rows, where)
        else:
            yield from _parse(data, rows, where)


def _parse(data: memoryview, rows: _Rows, where: str) -> Iterator[ScannedRecord]:
    ends = (rows[:, Field.POSITION] + rows[:, Field.SIZE]).tolist()
    starts = (rows[:, Field.POSITION] + HEADER_BYTES).tolist()
    payload = b"".join([data[start:end] for start, end in zip(starts, ends, strict=True)])
    counts = rows[:, Field.RECORD_COUNT]
    count = int(counts.sum())
    records = record_table(count)
    status, index = parse_records(
        np.frombuffer(payload, np.uint8),
        0,
        len(payload),
        count,
        0,
        0,
        NO_LOG_APPEND_TIMESTAMP,
        records,
    )
    if status != RecordStatus.OK:
        raise Corrupt(f"{where}: record {index} of {count}: {describe(RecordStatus(status))}")
    offsets = records[:, RecordField.OFFSET] + np.repeat(rows[:, Field.BASE_OFFSET], counts)
    cells = (
        records[:, one].tolist()
        for one in (
            RecordField.KEY_START,
            RecordField.KEY_SIZE,
            RecordField.VALUE_START,
            RecordField.VALUE_SIZE,
        )
    )
    producers = np.repeat(rows[:, Field.PRODUCER_ID], counts).tolist()
    attributes = np.repeat(rows[:, Field.ATTRIBUTES], counts).tolist()
    for offset, producer_id, bits, key, key_size, value, value_size in zip(
        offsets.tolist(), producers, attributes, *cells, strict=True
    ):
        yield (
            offset,
            producer_id,
            bits,
            None if key_size < 0 else payload[key : key + key_size],
            None if value_size < 0 else payload[value : value + value_size],
        )


def _unpack(data: memoryview, rows: _Rows, where: str) -> Iterator[ScannedRecord]:
    """Batches among which somebody has compressed one, one by one."""
    for position in rows[:, Field.POSITION].tolist():
        batch = Batch(data, where, position=position)
        header = batch.header
        for record in batch.records():
            yield record.offset, header.producer_id, header.attributes, record.key, record.value
