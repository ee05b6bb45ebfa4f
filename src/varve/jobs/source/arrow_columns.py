"""Converts blocks of records to Arrow record batches, and keeps the newest row of each key.

Invariant  kernels copy keys, values and headers once, without a Python object per record. A field
           that a record lacks (no timestamp, no producer) is null.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import Corrupt, InvalidRecord, InvalidRequest
from varve.jobs.source.record_blocks import RecordBlock
from varve.kernels.batch_layout import (
    LOG_APPEND_TIME_BIT,
    BatchColumn,
    RecordColumn,
    RecordStatus,
    status_text,
)
from varve.kernels.record_columns import (
    HEADER_CELL_COUNT,
    column_offsets,
    copy_cells,
    find_header_cells,
)

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
STANDARD_COLUMNS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
EXTRA_COLUMNS: Final[dict[str, pa.DataType]] = {
    "producerId": pa.int64(),
    "producerEpoch": pa.int32(),
    "sequence": pa.int32(),
    "leaderEpoch": pa.int32(),
    "isTransactional": pa.bool_(),
    "batchOffset": pa.int64(),
    "size": pa.int32(),
}
ALL_COLUMNS: Final = {**STANDARD_COLUMNS, **EXTRA_COLUMNS}


def check_column(name: str) -> None:
    """Raises InvalidRequest for an unknown column."""
    if name not in ALL_COLUMNS:
        raise InvalidRequest(f"there is no column {name!r:.80} (columns: {', '.join(ALL_COLUMNS)})")


def list_columns(extra: Sequence[str] = ()) -> list[str]:
    """The standard columns and the requested extra ones."""
    for name in extra:
        check_column(name)
    return list(dict.fromkeys([*STANDARD_COLUMNS, *extra]))


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, ALL_COLUMNS[name]) for name in names])


Numbers = npt.NDArray[np.int64]

_BATCH_BYTES: Final = 16 << 20
"""Records of one Arrow batch, approximately; its 32-bit column offsets allow 2 GiB."""
_TRANSACTIONAL: Final = 0x10
_SEQUENCE_COUNT: Final = 1 << 31  # Kafka: sequences wrap to 0 after 2^31 - 1
_MILLISECONDS_MAX: Final = ((1 << 63) - 1) // 1000  # fits microseconds in 64 bits
_NO_TIMESTAMP: Final = -1


class ArrowColumns:
    """Builds Arrow record batches of the named columns."""

    def __init__(self, names: Iterable[str]) -> None:
        self.schema: pa.Schema = arrow_schema(names)

    def batches(
        self, block: RecordBlock, chosen: Numbers, *, topic: str, partition: int
    ) -> Iterator[pa.RecordBatch]:
        """The chosen records of a block, in batches of about `_BATCH_BYTES`."""
        for part in _split_rows(block, chosen):
            columns = _BatchColumns(block, part, topic, partition)
            arrays = [columns.column(field.name, field.type) for field in self.schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _split_rows(block: RecordBlock, chosen: Numbers) -> Iterator[Numbers]:
    """Splits the chosen rows into runs of about `_BATCH_BYTES`."""
    if not chosen.size:
        return
    records = block.records
    sizes = records[chosen, RecordColumn.RECORD_END] - records[chosen, RecordColumn.RECORD_START]
    groups = np.cumsum(sizes) // _BATCH_BYTES
    edges = np.flatnonzero(np.diff(groups)) + 1
    yield from np.split(chosen, edges) if edges.size else (chosen,)


class _BatchColumns:
    """Builds the columns of one Arrow record batch."""

    def __init__(self, block: RecordBlock, chosen: Numbers, topic: str, partition: int) -> None:
        self._block = block
        self._chosen = chosen
        self._topic = topic
        self._partition = partition

    def column(self, name: str, type: pa.DataType) -> pa.Array:
        """Builds one of ALL_COLUMNS."""
        match name:
            case "topic":
                return self._topics(type)
            case "partition":
                return pa.array(np.full(len(self._chosen), self._partition, np.int32), type)
            case "offset":
                return pa.array(self._record(RecordColumn.OFFSET), type)
            case "timestamp":
                times = self._record(RecordColumn.TIMESTAMP)
                clipped = np.clip(times, -_MILLISECONDS_MAX, _MILLISECONDS_MAX) * 1000
                return _fixed(clipped, type, is_null=times == _NO_TIMESTAMP)
            case "timestampType":
                flags = self._batch(BatchColumn.ATTRIBUTES) & LOG_APPEND_TIME_BIT
                return pa.array((flags != 0).astype(np.int32), type)
            case "key":
                return self._cells(type, RecordColumn.KEY_START, RecordColumn.KEY_SIZE)
            case "value":
                return self._cells(type, RecordColumn.VALUE_START, RecordColumn.VALUE_SIZE)
            case "headers":
                return self._headers(type)
            case "producerId":
                return _nullable(self._batch(BatchColumn.PRODUCER_ID), type)
            case "producerEpoch":
                return _nullable(self._batch(BatchColumn.PRODUCER_EPOCH), type)
            case "sequence":
                first = self._batch(BatchColumn.BASE_SEQUENCE)
                delta = self._record(RecordColumn.OFFSET) - self._batch(BatchColumn.BASE_OFFSET)
                return _nullable(np.where(first < 0, -1, (first + delta) % _SEQUENCE_COUNT), type)
            case "leaderEpoch":
                return _nullable(self._batch(BatchColumn.LEADER_EPOCH), type)
            case "isTransactional":
                return pa.array((self._batch(BatchColumn.ATTRIBUTES) & _TRANSACTIONAL) != 0, type)
            case "batchOffset":
                return pa.array(self._batch(BatchColumn.BASE_OFFSET), type)
            case "size":
                start = self._record(RecordColumn.RECORD_START)
                sizes = self._record(RecordColumn.RECORD_END) - start
                return pa.array(sizes.astype(np.int32), type)
        raise AssertionError(f"{name} is not a column")

    def _topics(self, type: pa.DataType) -> pa.Array:
        text = self._topic.encode()
        count = len(self._chosen)
        offsets = np.arange(count + 1, dtype=np.int32) * len(text)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text * count)]
        return pa.Array.from_buffers(type, count, buffers)

    def _headers(self, type: pa.DataType) -> pa.Array:
        counts = self._record(RecordColumn.HEADERS_COUNT)
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        cells = np.empty((int(offsets[-1]), HEADER_CELL_COUNT), np.int64)
        block = self._block
        status = find_header_cells(block.payload, block.records, self._chosen, cells)
        if status != RecordStatus.OK:
            raise Corrupt(f"{self._topic}-{self._partition}: headers: {status_text(status)}")
        pair = type.value_type
        rows = np.arange(len(cells))
        keys = _as_text(_gather(block.payload, cells, 0, 1, rows, pa.binary()))
        values = _gather(block.payload, cells, 2, 3, rows, pair.field("value").type)
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(pair))
        buffers = [None, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(type, len(counts), buffers, children=[pairs])

    def _record(self, field: RecordColumn) -> Numbers:
        record: Numbers = self._block.records[self._chosen, field]
        return record

    def _batch(self, field: BatchColumn) -> Numbers:
        batch: Numbers = self._block.batches[self._block.owners[self._chosen], field]
        return batch

    def _cells(self, type: pa.DataType, start: RecordColumn, size: RecordColumn) -> pa.Array:
        block = self._block
        return _gather(block.payload, block.records, int(start), int(size), self._chosen, type)


def _nullable(values: Numbers, type: pa.DataType) -> pa.Array:
    """A column of numbers, with those below 0 as null."""
    width = np.int32 if type == pa.int32() else np.int64
    return _fixed(values.astype(width), type, is_null=values < 0)


def _fixed(
    values: npt.NDArray[Any], type: pa.DataType, *, is_null: npt.NDArray[np.bool_]
) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(type, len(values), [_validity(is_null), data])


def _gather(
    payload: npt.NDArray[np.uint8],
    cells: npt.NDArray[np.int64],
    start_field: int,
    size_field: int,
    chosen: Numbers,
    type: pa.DataType,
) -> pa.Array:
    """The chosen cells of a table as a binary column."""
    offsets = np.empty(len(chosen) + 1, np.int32)
    total = column_offsets(cells, size_field, chosen, offsets)
    if total < 0:
        raise InvalidRecord(f"{len(chosen)} records have more than 2 GiB in one column")
    data = np.empty(total, np.uint8)
    copy_cells(payload, cells, start_field, chosen, offsets, data)
    validity = _validity(cells[chosen, size_field] < 0)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(type, len(chosen), buffers)


def _validity(is_null: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    if not is_null.any():
        return None
    return pa.py_buffer(np.packbits(~is_null, bitorder="little"))


def _as_text(keys: pa.Array) -> pa.Array:
    """Header keys as text; invalid UTF-8 is replaced by U+FFFD, as in Kafka."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())


# Rows by key


def keep_newest(rows: pa.Table, keys: Sequence[str], *, offset: str) -> pa.Table:
    """Keeps the row with the highest offset of each key, ordered by offset.

    A key may consist of several columns.
    """
    order = pc.sort_indices(rows[offset])
    numbered = rows.select(keys).take(order)
    numbered = numbered.append_column("number", pa.array(np.arange(len(rows))))
    last = numbered.group_by(list(keys)).aggregate([("number", "max")])["number_max"]
    return rows.take(order.take(pa.array(np.sort(last.to_numpy()))))


def split_by_bucket(
    rows: pa.Table, buckets: npt.NDArray[np.integer[Any]]
) -> Iterator[tuple[int, pa.Table]]:
    """Yields each non-empty bucket in ascending order, with its rows in their original order."""
    order = np.argsort(buckets, kind="stable")
    rows = rows.take(pa.array(order))
    numbers, starts = np.unique(buckets[order], return_index=True)
    ends = [*starts[1:].tolist(), len(rows)]
    for bucket, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
        yield bucket, rows.slice(start, end - start)
