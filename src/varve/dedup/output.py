"""Output batches from input batches: what is kept, as it came.

A batch that is kept as a whole goes on with its bytes as they are. Of others the kept records are
put into new batches with the codec they had, small ones of neighbouring batches together.

Invariant  key, value, headers, timestamp and order of every kept record stay. A batch from a log
           that stamps records itself becomes one with those timestamps as its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from varve.foundation.errors import RecordTooLarge
from varve.kernels.batch_layout import RecordColumn
from varve.records import (
    Batch,
    Codec,
    CommittedBatches,
    RecordColumns,
    TimestampType,
    build_batch_from_columns,
)
from varve.records.columns import Integers

Flags = npt.NDArray[np.bool_]

GATHERED_BYTES: Final = 512 << 10
"""So many bytes of records from several batches are put into one."""


class InputChunk(NamedTuple):
    """Batches with their records; those of batch i are rows [ends[i - 1], ends[i])."""

    batches: Sequence[Batch]
    columns: RecordColumns
    ends: Integers

    @classmethod
    def of(cls, fetched: CommittedBatches) -> "InputChunk":
        """Raises Corrupt for a record that cannot be parsed."""
        columns, ends = fetched.columns_by_batch()
        return cls(fetched.batches, columns, ends)


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The largest batch that a topic takes, and what it is called in a message."""

    topic: str
    max_bytes: int


@dataclass(slots=True)
class _Gathered:
    """Rows that wait to become a batch."""

    codec: Codec
    rows: list[Integers]
    size: int = 0


def build_kept_batches(
    chunk: InputChunk, kept: Flags, limit: BatchLimit
) -> list[bytes | bytearray]:
    """The batches of the kept rows, without a producer.

    Raises RecordTooLarge for a record that does not fit into a batch of the topic.
    """
    return list(_build(chunk, kept, limit))


def _build(chunk: InputChunk, kept: Flags, limit: BatchLimit) -> Iterator[bytes | bytearray]:
    sizes = (
        chunk.columns.table[:, RecordColumn.RECORD_END]
        - chunk.columns.table[:, RecordColumn.RECORD_START]
    )
    waiting: _Gathered | None = None
    start = 0
    for place, end in enumerate(chunk.ends.tolist()):
        rows = np.flatnonzero(kept[start:end]) + start
        is_whole = len(rows) == end - start and _is_fit(chunk, place, start, end, limit)
        start = end
        if not len(rows):
            continue
        codec = chunk.batches[place].header.codec
        is_full = waiting is not None and (
            is_whole or waiting.codec is not codec or waiting.size >= GATHERED_BYTES
        )
        if waiting is not None and is_full:
            yield from _pack(chunk.columns, np.concatenate(waiting.rows), waiting.codec, limit)
            waiting = None
        if is_whole:
            yield bytearray(chunk.batches[place].data)
            continue
        waiting = waiting or _Gathered(codec, [])
        waiting.rows.append(rows)
        waiting.size += int(sizes[rows].sum())
    if waiting is not None:
        yield from _pack(chunk.columns, np.concatenate(waiting.rows), waiting.codec, limit)


def _is_fit(chunk: InputChunk, place: int, start: int, end: int, limit: BatchLimit) -> bool:
    """Whether the batch of these rows may go on as it is."""
    header = chunk.batches[place].header
    return (
        end - start == header.records_count == header.last_offset_delta + 1
        and header.timestamp_type is TimestampType.CREATE_TIME
        and not header.has_delete_horizon
        and header.size <= limit.max_bytes
    )


def _pack(
    columns: RecordColumns, rows: Integers, codec: Codec, limit: BatchLimit
) -> Iterator[bytes | bytearray]:
    """The rows in one batch, or in halves where it would be too large."""
    data = _build_one(columns, rows, codec)
    if len(data) <= limit.max_bytes:
        yield data
        return
    if len(rows) == 1:
        raise RecordTooLarge(
            f"the record with offset {int(columns.offsets[rows[0]])} takes {len(data)} bytes as a "
            f"batch, more than the {limit.max_bytes} of topic {limit.topic} (max.message.bytes, "
            "segment.bytes): raise the setting"
        )
    half = len(rows) // 2
    yield from _pack(columns, rows[:half], codec, limit)
    yield from _pack(columns, rows[half:], codec, limit)


def _build_one(columns: RecordColumns, rows: Integers, codec: Codec) -> bytes:
    chosen = RecordColumns(columns.payload, columns.table[rows])
    return build_batch_from_columns(
        chosen.keys_column(),
        chosen.values_column(),
        chosen.timestamps,
        chosen.headers_column(),
        codec=codec,
    )
