"""Builds output batches from the kept records of input batches.

A batch whose records are all kept is copied unchanged. The kept records of other batches are put
into new batches with the same codec, those of small adjacent batches together.

Invariant  key, value, headers, timestamp and order of every kept record stay. A batch with log
           append time becomes one with these timestamps as create time.
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
    RecordColumns,
    TimestampType,
    build_batch_of,
)
from varve.records.columns import Integers

Flags = npt.NDArray[np.bool_]

GATHERED_BYTES: Final = 512 << 10
"""Records of several batches are put into one batch up to about this size."""


class InputChunk(NamedTuple):
    """Batches with their records; those of batch i are rows [ends[i - 1], ends[i])."""

    batches: Sequence[Batch]
    columns: RecordColumns
    ends: Integers


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The largest batch that a topic accepts, and the topic's name for errors."""

    topic: str
    max_bytes: int


@dataclass(slots=True)
class _Gathered:
    """Rows of several batches, to be put into one."""

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
    gathered: _Gathered | None = None
    start = 0
    for index, end in enumerate(chunk.ends.tolist()):
        rows = np.flatnonzero(kept[start:end]) + start
        is_whole = len(rows) == end - start and _can_copy(chunk, index, start, end, limit)
        start = end
        if not len(rows):
            continue
        codec = chunk.batches[index].header.codec
        is_full = gathered is not None and (
            is_whole or gathered.codec is not codec or gathered.size >= GATHERED_BYTES
        )
        if gathered is not None and is_full:
            yield from _pack(chunk.columns, np.concatenate(gathered.rows), gathered.codec, limit)
            gathered = None
        if is_whole:
            yield bytearray(chunk.batches[index].data)
            continue
        gathered = gathered or _Gathered(codec, [])
        gathered.rows.append(rows)
        gathered.size += int(sizes[rows].sum())
    if gathered is not None:
        yield from _pack(chunk.columns, np.concatenate(gathered.rows), gathered.codec, limit)


def _can_copy(chunk: InputChunk, index: int, start: int, end: int, limit: BatchLimit) -> bool:
    """Whether the batch of these rows can be copied unchanged."""
    header = chunk.batches[index].header
    return (
        end - start == header.records_count == header.last_offset_delta + 1
        and header.timestamp_type is TimestampType.CREATE_TIME
        and not header.has_delete_horizon
        and header.size <= limit.max_bytes
    )


def _pack(
    columns: RecordColumns, rows: Integers, codec: Codec, limit: BatchLimit
) -> Iterator[bytes | bytearray]:
    """The rows in one batch, or split in halves if that would be too large."""
    data = _build_batch(columns, rows, codec)
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


def _build_batch(columns: RecordColumns, rows: Integers, codec: Codec) -> bytes:
    return build_batch_of(RecordColumns(columns.payload, columns.table[rows]), codec=codec)
