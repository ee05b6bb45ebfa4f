"""Reads a partition as people want it: visible records only, in order, each checked.

Invariant  a read ends where the log ended, for its isolation, when it began; it never gives a
           record outside [start, end), of an aborted transaction, or of a batch with a wrong CRC.
Threads    any; each read stands for itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from varve.commit_log import Isolation, Log
from varve.embedded.stored_record import StoredRecord
from varve.foundation.errors import InvalidRequest, OffsetOutOfRange
from varve.foundation.settings import LONG_MAX
from varve.records import Batch, CommittedBatches, RecordColumns


@dataclass(frozen=True, slots=True)
class ReadRange:
    """What to read of one log: offsets [start, end) under an isolation."""

    log: Log
    partition: int
    start: int
    end: int
    isolation: Isolation


def read_range(
    log: Log, partition: int, *, start: int | None, end: int | None, isolation: str
) -> ReadRange:
    """The range asked for, cut at what is visible now.

    Raises OffsetOutOfRange for a start outside the log.
    """
    try:
        level = Isolation(isolation)
    except ValueError:
        raise InvalidRequest(
            f"isolation {isolation!r} is unknown; use read_uncommitted or read_committed"
        ) from None
    log_start, log_end = log.log_start_offset, log.end_offset
    if start is None:
        start = log_start
    elif not log_start <= start <= log_end:
        raise OffsetOutOfRange(
            f"{log.topic_partition}: offset {start} is outside the log, which holds "
            f"{log_start} to {log_end}; read from one of these"
        )
    visible = log.last_stable_offset if level is Isolation.READ_COMMITTED else log.high_watermark
    return ReadRange(log, partition, start, visible if end is None else min(end, visible), level)


def batches_of(wanted: ReadRange) -> Iterator[Batch]:
    """The batches that hold records of the range, whole and as stored, without control batches."""
    offset = wanted.start
    while offset < wanted.end:
        fetched = wanted.log.read(start_offset=offset, isolation=wanted.isolation)
        if not fetched.data:
            return
        batches = CommittedBatches(
            fetched.data,
            fetched.aborted,
            start_offset=offset,
            where=str(wanted.log.topic_partition),
        )
        for batch in batches:
            if batch.header.base_offset >= wanted.end:
                return
            yield batch
        offset = fetched.next_offset


def columns_of(wanted: ReadRange) -> Iterator[RecordColumns]:
    """The records of the range as columns, a batch at a time; none is empty."""
    for batch in batches_of(wanted):
        columns = columns_within(batch, start=wanted.start, end=wanted.end)
        if len(columns):
            yield columns


def columns_within(batch: Batch, *, start: int, end: int = LONG_MAX) -> RecordColumns:
    """The records of a batch with offsets [start, end)."""
    columns = batch.columns()
    if start <= batch.header.base_offset and batch.header.last_offset < end:
        return columns
    inside = (columns.offsets >= start) & (columns.offsets < end)
    return RecordColumns(columns.payload, columns.table[inside])


def records_of(wanted: ReadRange) -> Iterator[StoredRecord]:
    """The records of the range."""
    for columns in columns_of(wanted):
        yield from stored_records(columns, wanted.partition)


def stored_records(columns: RecordColumns, partition: int) -> Iterator[StoredRecord]:
    """The records in the columns, as objects."""
    payload = columns.payload.tobytes()
    for index, row in enumerate(columns.table.tolist()):
        offset, timestamp, key, key_size, value, value_size, _, header_count, _, _ = row
        yield StoredRecord(
            partition,
            offset,
            timestamp,
            None if key_size < 0 else payload[key : key + key_size],
            None if value_size < 0 else payload[value : value + value_size],
            columns.headers(index) if header_count else (),
        )
