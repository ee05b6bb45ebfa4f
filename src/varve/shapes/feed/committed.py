"""The committed records of what a log or a server gave for a read, as columns.

Aborted transactions are dropped as Kafka's consumer does it: each begins at its first offset and
ends at its producer's next abort marker.

Invariant  only records of whole batches with a good CRC come out, at the start asked for or behind,
           without control batches and without those of aborted transactions.
"""

from collections.abc import Iterable
from typing import NamedTuple

from varve.foundation.errors import Corrupt
from varve.records import HEADER_BYTES, Batch, ControlType, RecordColumns, decode_control_record
from varve.records.header import LENGTH_OVERHEAD, PREFIX


class Committed(NamedTuple):
    """Records, and the offset behind the last whole batch, committed or not."""

    columns: list[RecordColumns]
    next_offset: int


def read_committed(
    data: memoryview, aborted: Iterable[tuple[int, int]], *, start: int, where: str
) -> Committed:
    """Walks an answer; `aborted` has pairs of producer id and first offset.

    The last batch of an answer may be cut; what is there of it is asked for again.
    """
    waiting = sorted(aborted, key=lambda one: one[1], reverse=True)
    aborting: set[int] = set()
    found: list[RecordColumns] = []
    next_offset, position, end = start, 0, len(data)
    while position + HEADER_BYTES <= end:
        size = PREFIX.unpack_from(data, position)[1] + LENGTH_OVERHEAD
        if position + size > end:
            break
        batch = _checked(data, position, where)
        position += size
        header = batch.header
        next_offset = max(next_offset, header.next_offset)
        while waiting and waiting[-1][1] <= header.last_offset:
            aborting.add(waiting.pop()[0])
        if header.is_control:
            if header.producer_id in aborting and _is_abort(batch):
                aborting.discard(header.producer_id)
            continue
        is_aborted = header.is_transactional and header.producer_id in aborting
        if header.last_offset >= start and header.records_count and not is_aborted:
            found.append(_from(batch.columns(), header.base_offset, start))
    return Committed(found, next_offset)


def _checked(data: memoryview, position: int, where: str) -> Batch:
    batch = Batch(data, where, position=position)
    if not batch.is_valid_crc():
        raise Corrupt(
            f"{where}: the batch with offset {batch.header.base_offset} does not match its CRC; "
            "run `varve check` on the directory to see what is broken"
        )
    return batch


def _from(columns: RecordColumns, base_offset: int, start: int) -> RecordColumns:
    if base_offset >= start:
        return columns
    return RecordColumns(columns.payload, columns.table[columns.offsets >= start])


def _is_abort(batch: Batch) -> bool:
    columns = batch.columns()
    if not len(columns):
        return False
    return decode_control_record(columns.key(0), columns.value(0)).type is ControlType.ABORT
