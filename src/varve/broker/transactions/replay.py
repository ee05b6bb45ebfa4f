"""What a partition of `__transaction_state` tells when it is read from its beginning.

Each step of a transaction is a batch of its own, so the records of many batches are parsed as if
they stood in one: a start after a busy day reads millions.

Invariant  of each id the last record counts.
Threads    runs off the loop, before the coordinator serves.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from varve.broker.transactions.state import Transaction
from varve.broker.transactions.transaction_record import decode_transaction
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

_READ_BYTES: Final = 4 << 20
_BATCHES_AT_ONCE: Final = 8_192
_CODEC: Final = 0x07
_CONTROL: Final = 0x20

_Pair = tuple[bytes, bytes | None]


def replay(log: Log) -> list[Transaction]:
    """Reads a whole partition; raises Corrupt, and UnsupportedFormat for what is too new."""
    where = str(log.topic_partition)
    last: dict[bytes, bytes | None] = {}
    offset = log.log_start_offset
    while True:
        found = log.read(start_offset=offset, max_bytes=_READ_BYTES)
        if not found.data:
            break
        for pairs in _read_pairs(found.data, where):
            last.update(pairs)
        offset = found.next_offset
    live = ((key, value) for key, value in last.items() if value is not None)
    decoded = (decode_transaction(key, value, where) for key, value in live)
    return [one for one in decoded if one is not None]


def _read_pairs(data: memoryview, where: str) -> Iterator[list[_Pair]]:
    """Keys and values in order, those of many batches at a time."""
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
        rows = rows[rows[:, Field.ATTRIBUTES] & _CONTROL == 0]
        if np.any(rows[:, Field.ATTRIBUTES] & _CODEC):
            yield _unpack(data, rows[:, Field.POSITION].tolist(), where)
        else:
            ends = (rows[:, Field.POSITION] + rows[:, Field.SIZE]).tolist()
            starts = (rows[:, Field.POSITION] + HEADER_BYTES).tolist()
            payload = b"".join([data[one:end] for one, end in zip(starts, ends, strict=True)])
            yield _parse(payload, int(rows[:, Field.RECORD_COUNT].sum()), where)


def _parse(payload: bytes, count: int, where: str) -> list[_Pair]:
    table = record_table(count)
    buffer = np.frombuffer(payload, np.uint8)
    status, index = parse_records(
        buffer, 0, buffer.size, count, 0, 0, NO_LOG_APPEND_TIMESTAMP, table
    )
    if status != RecordStatus.OK:
        raise Corrupt(f"{where}: record {index} of {count}: {describe(RecordStatus(status))}")
    columns = (
        table[:, field].tolist()
        for field in (
            RecordField.KEY_START,
            RecordField.KEY_SIZE,
            RecordField.VALUE_START,
            RecordField.VALUE_SIZE,
        )
    )
    return [
        (payload[key : key + max(0, key_size)], _cut(payload, value, value_size))
        for key, key_size, value, value_size in zip(*columns, strict=True)
    ]


def _cut(payload: bytes, start: int, size: int) -> bytes | None:
    return None if size < 0 else payload[start : start + size]


def _unpack(data: memoryview, positions: list[int], where: str) -> list[_Pair]:
    """Batches that somebody has compressed, one by one."""
    return [
        (record.key or b"", record.value)
        for position in positions
        for record in Batch(data, where, position=position).records()
    ]
