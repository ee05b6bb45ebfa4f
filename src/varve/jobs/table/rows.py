"""Records as rows of a table: good ones, deleted ones, and those for the side table.

Invariant  every record is in exactly one of the two; upserted rows keep one for each key of a
           partition, the newest that could be read.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

from varve.jobs.table.decode import Decoder
from varve.jobs.table.schema import (
    DELETED,
    KEY,
    OFFSET,
    PARTITION,
    REASON,
    TIMESTAMP,
    VALUE,
)
from varve.kernels.hashes import murmur3_cells

SOURCE: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
"""The columns that are read of a topic."""

NO_KEY: Final = "no key: a table of keys cannot tell which row it is"


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of the table, with `_deleted`, and of its side table."""

    good: pa.Table
    bad: pa.Table


def split_rows(batch: pa.RecordBatch, decoder: Decoder, *, is_keyed: bool) -> SplitRows:
    """A batch of the source, opened; without keys there is nothing to upsert by."""
    bad_at: list[npt.NDArray[np.int64]] = []
    reasons: list[str] = []
    rows = np.arange(len(batch), dtype=np.int64)
    if is_keyed:
        has_key = _flags(batch["key"].is_valid())
        bad_at.append(rows[~has_key])
        reasons += [NO_KEY] * len(bad_at[0])
        rows = rows[has_key]
    values = batch["value"]
    has_value = _flags(values.is_valid())[rows]
    filled, deleted = rows[has_value], rows[~has_value]
    decoded = decoder.decode(values.take(pa.array(filled)), batch["headers"].take(pa.array(filled)))
    bad_at.append(filled[decoded.is_bad])
    reasons += decoded.reasons
    kept = filled[~decoded.is_bad]
    columns = dict(zip(decoder.names, decoded.columns, strict=True))
    good = _lay(batch, kept, deleted, columns)
    return SplitRows(good, _make_bad(batch, np.concatenate(bad_at), reasons))


def _lay(
    batch: pa.RecordBatch,
    kept: npt.NDArray[np.int64],
    deleted: npt.NDArray[np.int64],
    columns: dict[str, pa.Array],
) -> pa.Table:
    """Rows in the order of their records; deleted ones have no value."""
    order = np.sort(np.concatenate([kept, deleted]))
    if len(deleted):
        slots = np.searchsorted(kept, order)
        is_deleted = np.isin(order, deleted, assume_unique=True)
        places = pa.array(np.where(is_deleted, 0, slots), mask=is_deleted)
        columns = {name: _take(array, places) for name, array in columns.items()}
    else:
        is_deleted = np.zeros(len(order), np.bool_)
    record = {**_record_columns(batch, order), DELETED: pa.array(is_deleted)}
    return pa.table({**record, **columns})


def _take(array: pa.Array, places: pa.Array) -> pa.Array:
    return pa.nulls(len(places), array.type) if not len(array) else array.take(places)


def _make_bad(batch: pa.RecordBatch, rows: npt.NDArray[np.int64], reasons: list[str]) -> pa.Table:
    order = np.argsort(rows, kind="stable")
    columns = _record_columns(batch, rows[order])
    columns[VALUE] = batch["value"].take(pa.array(rows[order]))
    columns[REASON] = pa.array([reasons[slot] for slot in order.tolist()], pa.string())
    return pa.table(columns)


def _record_columns(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    names = {PARTITION: "partition", OFFSET: "offset", TIMESTAMP: "timestamp", KEY: "key"}
    is_all = len(rows) == len(batch)
    places = pa.array(rows)
    return {
        column: batch[name] if is_all else batch[name].take(places)
        for column, name in names.items()
    }


def keep_newest(rows: pa.Table) -> pa.Table:
    """One row for each key of a partition: that of the highest offset; in order of offsets."""
    if len(rows) < 2:
        return rows
    rows = rows.take(pc.sort_indices(rows, sort_keys=[(OFFSET, "ascending")]))
    number = pa.array(np.arange(len(rows)))
    keys = pa.table({PARTITION: rows[PARTITION], KEY: rows[KEY], "number": number})
    last = keys.group_by([PARTITION, KEY]).aggregate([("number", "max")])["number_max"]
    if len(last) == len(rows):
        return rows
    return rows.take(pa.array(np.sort(last.to_numpy())))


def find_buckets(keys: pa.ChunkedArray, count: int) -> npt.NDArray[np.int32]:
    """Iceberg's bucket of each key, none of which is null."""
    parts = [_hash(chunk) for chunk in keys.chunks]
    hashes = np.concatenate(parts) if parts else np.empty(0, np.uint32)
    return ((hashes & 0x7FFFFFFF) % count).astype(np.int32)


def _hash(keys: pa.Array) -> npt.NDArray[np.uint32]:
    small = keys.cast(pa.binary())
    hashes = np.empty(len(small), np.uint32)
    _, offsets, data = small.buffers()
    cells = np.frombuffer(offsets, np.int32)[small.offset : small.offset + len(small) + 1]
    bytes_ = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    murmur3_cells(bytes_, cells, hashes)
    return hashes


def _flags(array: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return found
