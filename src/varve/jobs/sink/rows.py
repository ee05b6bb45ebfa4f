"""Rows to be written, as Arrow has them, made the columns that batches are built from.

Invariant  cells are neither copied nor made Python objects; a row that cannot be written is refused
           with the reason, before anything is staged of its chunk.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import InvalidRecord
from varve.records import BinaryColumn, EncodedHeaders, HeaderColumns
from varve.records.columns import Integers

NO_TIMESTAMP: Final = -1

WRITTEN_COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition", "topic")
"""The columns that are written; the log assigns the others again."""
_MICROSECONDS: Final = 1000


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Columns of the same length; timestamp -1 is to be the time of the commit.

    `partitions` holds -1 where none is asked for.
    """

    keys: BinaryColumn | None
    values: BinaryColumn | None
    headers: EncodedHeaders | None
    timestamps: Integers
    partitions: Integers

    def __len__(self) -> int:
        return len(self.timestamps)


def make_rows(table: pa.Table, topic: str) -> SinkRows:
    """The columns of a chunk; raises InvalidRecord for a row that is not for the topic."""
    columns = {
        name: _whole(table.column(name)) for name in table.column_names if name in WRITTEN_COLUMNS
    }
    if "topic" in columns:
        _check_topic(columns["topic"], topic)
    return SinkRows(
        _cells(columns["key"]) if "key" in columns else None,
        _cells(columns["value"]) if "value" in columns else None,
        _headers(columns["headers"]) if "headers" in columns else None,
        _timestamps(columns.get("timestamp"), len(table)),
        _partitions(columns.get("partition"), len(table)),
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        found = pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], column.type)
    return found


def _check_topic(column: pa.Array, topic: str) -> None:
    others = column.filter(pc.fill_null(pc.not_equal(column, topic), True))
    if len(others):
        raise InvalidRecord(
            f"{len(others)} rows have topic {others[0].as_py()!r:.260}, and the write is to "
            f"{topic}: drop the column, or write the rows of each topic by themselves"
        )


def _flat(buffer: pa.Buffer | None, dtype: type[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(b"" if buffer is None else buffer, dtype)


def _cells(column: pa.Array) -> BinaryColumn:
    wide = column.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    edges = _flat(offsets, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    if not len(edges):
        edges = np.zeros(1, np.int64)
    return BinaryColumn(_flat(data, np.uint8), edges, _valid(wide))


def _valid(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    if not column.null_count:
        return None
    found: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _headers(column: pa.Array) -> EncodedHeaders | None:
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(counts.astype(np.int64))
    if not len(ends) or not ends[-1]:
        return None
    pairs = column.flatten()
    if pairs.null_count:
        raise InvalidRecord("a header is null: leave it out of the array")
    keys, values = _cells(pairs.field("key")), _cells(pairs.field("value"))
    return HeaderColumns(ends, keys, values).encode()


def _timestamps(column: pa.Array | None, count: int) -> Integers:
    if column is None:
        return np.full(count, NO_TIMESTAMP, np.int64)
    micros = pc.fill_null(column.cast(pa.int64()), NO_TIMESTAMP).to_numpy(zero_copy_only=False)
    times: Integers = micros.astype(np.int64) // _MICROSECONDS
    if column.null_count == 0 and count and times.min() < 0:
        raise _too_old(times)
    valid = _valid(column)
    if valid is not None:
        if times[valid].size and times[valid].min() < 0:
            raise _too_old(times[valid])
        times = np.where(valid, times, NO_TIMESTAMP)
    return times


def _too_old(times: Integers) -> InvalidRecord:
    return InvalidRecord(
        f"timestamp {int(times.min())} ms is before 1970, which a record cannot have: make it null "
        "to get the time of the commit"
    )


def _partitions(column: pa.Array | None, count: int) -> Integers:
    if column is None:
        return np.full(count, -1, np.int64)
    wide = column.cast(pa.int64())
    lowest = pc.min(wide).as_py()
    if lowest is not None and lowest < 0:
        raise InvalidRecord(
            f"a row asks for partition {lowest}; the first is 0, and null leaves the choice to key"
        )
    found: Integers = pc.fill_null(wide, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
