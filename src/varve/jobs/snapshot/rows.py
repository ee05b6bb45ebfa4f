"""Rows of a snapshot: their columns, how new ones replace old ones, and their Parquet bytes.

Invariant  the rows of a file are in order of their keys, each of which occurs once; the same rows
           give the same bytes, as long as the Parquet writer is the same.
"""

import io
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import Corrupt
from varve.jobs.snapshot.document import DATA_FOLDER, SnapshotFile
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.columns import STANDARD_COLUMNS

_GROUP_BYTES: Final = 16 << 20
_GROUP_ROWS_MIN: Final = 1024
_COMPRESSION: Final = "zstd"
_STATISTICS: Final = ["partition", "offset", "timestamp", "key"]


def make_columns() -> ArrowColumns:
    """Builds rows: all columns of a topic but its name."""
    return ArrowColumns(name for name in STANDARD_COLUMNS if name != "topic")


def column_types() -> dict[str, str]:
    """The columns by name, with their types in Arrow's words."""
    return {field.name: str(field.type) for field in make_columns().schema}


def merge_rows(tables: Sequence[pa.Table], *, start_offset: int) -> pa.Table:
    """The latest row of each key, by key; without tombstones and without rows below the start."""
    rows = pa.concat_tables(tables)
    order = pc.sort_indices(rows, sort_keys=[("key", "ascending"), ("offset", "descending")])
    rows = rows.take(order)
    keys = rows.column("key").combine_chunks()
    if len(keys) > 1:
        is_other = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
        is_first = pa.concat_arrays([pa.array([True]), _flat(is_other)])
        rows = rows.filter(is_first)
    is_there = pc.is_valid(rows.column("value"))
    return rows.filter(pc.and_(is_there, pc.greater_equal(rows.column("offset"), start_offset)))


def _flat(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def write_rows(rows: pa.Table) -> bytes:
    """Rows as a Parquet file."""
    rows = rows.combine_chunks()
    group_rows = max(_GROUP_ROWS_MIN, _GROUP_BYTES * len(rows) // max(rows.nbytes, 1))
    out = io.BytesIO()
    pq.write_table(
        rows,
        out,
        row_group_size=group_rows,
        compression=_COMPRESSION,
        use_dictionary=["partition", "timestampType"],
        write_statistics=_STATISTICS,
    )
    return out.getvalue()


def describe(rows: pa.Table, data: bytes, *, partition: int, bucket: int) -> SnapshotFile:
    """What a document says of a file; its name is derived from its bytes."""
    digest = sha256(data).hexdigest()
    offsets = pc.min_max(rows.column("offset")).as_py()
    return SnapshotFile(
        path=f"{DATA_FOLDER}/{partition:05}-{bucket:05}-{digest[:32]}.parquet",
        partition=partition,
        bucket=bucket,
        rows=len(rows),
        size=len(data),
        sha256=digest,
        min_offset=offsets["min"],
        max_offset=offsets["max"],
    )


def open_rows(data: bytes, file: SnapshotFile, where: str) -> pq.ParquetFile:
    """A file whose bytes are those that its document names; raises Corrupt."""
    found = sha256(data).hexdigest()
    if found != file.sha256:
        raise Corrupt(
            f"{where}: {file.path!r} has SHA-256 {found[:16]}… and {len(data)} bytes, its snapshot "
            f"says {file.sha256[:16]}… and {file.size}: put it back from a copy, or take a full "
            "snapshot (--full), from which later ones go on"
        )
    return pq.ParquetFile(pa.BufferReader(data))
