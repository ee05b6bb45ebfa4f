"""A batch less its duplicates.

Invariant  offsets stay: those of the records that went are holes, as compaction leaves them, and
           first and last offset, producer and sequences are those of the batch as it was sent.
"""

import numpy as np
import numpy.typing as npt

from varve.commit_log.append_rules import CheckedBatch
from varve.records import (
    Batch,
    RecordColumns,
    TimestampType,
    build_batch_from_columns,
    decode_header,
    empty_batch,
)

Flags = npt.NDArray[np.bool_]


def thin(checked: CheckedBatch, batch: Batch, columns: RecordColumns, kept: Flags) -> CheckedBatch:
    """The batch with the kept records alone, at least one."""
    header = batch.header
    chosen = RecordColumns(columns.payload, columns.table[kept])
    data = build_batch_from_columns(
        chosen.keys_column(),
        chosen.values_column(),
        chosen.timestamps,
        chosen.headers_column(),
        base_offset=header.base_offset,
        codec=header.codec,
        timestamp_type=header.timestamp_type,
        log_append_time=_append_time(batch),
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        offset_deltas=chosen.offsets - header.base_offset,
        last_offset_delta=header.last_offset_delta,
    )
    return checked.thinned(data, decode_header(data).max_timestamp)


def empty(checked: CheckedBatch, batch: Batch) -> CheckedBatch:
    """The batch without records: what its producer's sequences go on from."""
    return checked.thinned(empty_batch(batch.header), batch.header.max_timestamp)


def _append_time(batch: Batch) -> int:
    is_stamped = batch.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    return batch.header.max_timestamp if is_stamped else -1
