"""Rebuilds producer state and aborted transactions from stored batches.

Invariant  replay follows the rules of replication: nothing stored is refused, no sequence is
           checked.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from varve.commit_log.producer_state import BatchSummary, Marker, Origin, ProducerStates
from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.txn_index import AbortedTransaction, TransactionIndex
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn
from varve.records import (
    Batch,
    ControlType,
    decode_control_record,
    increment_sequence,
)

_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_BATCHES_KEPT: Final = 5


def summarize_row(row: list[int], batch: memoryview | None, where: str) -> BatchSummary:
    """What producer state needs of one scanned batch.

    `batch` is needed for control batches only.
    """
    attributes = row[BatchColumn.ATTRIBUTES]
    base_sequence = row[BatchColumn.BASE_SEQUENCE]
    delta = row[BatchColumn.LAST_OFFSET] - row[BatchColumn.BASE_OFFSET]
    is_control = bool(attributes & _CONTROL)
    return BatchSummary(
        base_offset=row[BatchColumn.BASE_OFFSET],
        last_offset=row[BatchColumn.LAST_OFFSET],
        producer_id=row[BatchColumn.PRODUCER_ID],
        producer_epoch=row[BatchColumn.PRODUCER_EPOCH],
        base_sequence=base_sequence,
        last_sequence=-1 if base_sequence < 0 else increment_sequence(base_sequence, delta),
        max_timestamp=row[BatchColumn.MAX_TIMESTAMP],
        is_transactional=bool(attributes & _TRANSACTIONAL),
        is_control=is_control,
        marker=decode_marker(batch, where) if is_control and batch is not None else None,
    )


def decode_marker(batch: memoryview, where: str) -> Marker | None:
    """The end-of-transaction marker in a control batch.

    None for an emptied one or another control type.
    """
    records = Batch(bytes(batch), where=where).records()
    if not records or records[0].key is None:
        return None
    control = decode_control_record(records[0].key, records[0].value)
    if control.type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    return Marker(
        committed=control.type == ControlType.COMMIT,
        coordinator_epoch=-1 if control.coordinator_epoch is None else control.coordinator_epoch,
    )


def count_before_bad_marker(table: BatchTable, *, where: str) -> int:
    """How many batches precede the first marker that cannot be read; all when there is none."""
    is_control = (table.rows[:, BatchColumn.ATTRIBUTES] & _CONTROL) != 0
    for row in np.flatnonzero(is_control & (table.rows[:, BatchColumn.PRODUCER_ID] >= 0)):
        try:
            decode_marker(table.bytes_of(int(row)), where)
        except Corrupt:
            return int(row)
    return len(table.rows)


def replay_batches(
    table: BatchTable,
    producers: ProducerStates,
    txn_index: TransactionIndex | None,
    *,
    where: str,
) -> None:
    """Applies the batches of a table; with a transaction index.

    Aborted transactions are recorded in it.
    """
    for row in _rows_that_matter(table.rows):
        fields = table.rows[row].tolist()
        is_control = fields[BatchColumn.ATTRIBUTES] & _CONTROL
        summary = summarize_row(fields, table.bytes_of(int(row)) if is_control else None, where)
        plan = producers.check_and_plan([summary], Origin.REPLICATION)
        producers.apply(plan)
        for completed in plan.completed:
            if txn_index is not None and completed.is_aborted:
                txn_index.append(
                    AbortedTransaction(
                        producer_id=completed.producer_id,
                        first_offset=completed.first_offset,
                        last_offset=completed.last_offset,
                        last_stable_offset=producers.last_stable_offset_of(completed),
                    )
                )
            producers.complete(completed)


def _rows_that_matter(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """The rows that leave a trace in producer state, in order.

    Of a producer's data batches these are its last five, which are remembered, and those that may
    open a transaction: the first, and any behind a marker or a batch outside a transaction.
    """
    with_producer = np.flatnonzero(rows[:, BatchColumn.PRODUCER_ID] >= 0)
    if not with_producer.size:
        return with_producer
    order = np.argsort(rows[with_producer, BatchColumn.PRODUCER_ID], kind="stable")
    grouped = with_producer[order]
    producer_ids = rows[grouped, BatchColumn.PRODUCER_ID]
    attributes = rows[grouped, BatchColumn.ATTRIBUTES]
    is_control = (attributes & _CONTROL) != 0
    continues = (attributes & _TRANSACTIONAL) != 0
    continues[1:] &= continues[:-1] & ~is_control[:-1] & (producer_ids[1:] == producer_ids[:-1])
    continues[:1] = False
    may_open = ((attributes & _TRANSACTIONAL) != 0) & ~continues
    data = np.flatnonzero(~is_control)
    data_ids = producer_ids[data]
    group_ends = np.searchsorted(data_ids, data_ids, side="right")
    is_recent = np.zeros(grouped.size, np.bool_)
    is_recent[data] = group_ends - np.arange(data.size) <= _BATCHES_KEPT
    return np.sort(grouped[is_control | may_open | is_recent])
