"""Packing rows for the operator, unpacking what goes on: nothing is lost, changed or reordered."""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest

from varve.dedup.rules import DedupRules, Verdict, Verdicts, make_routes, parse_id_source
from varve.spark.deduplication import deduplicate as dedup_rows
from varve.spark.deduplication.deduplicate import (
    BUCKET,
    ID,
    ROWS,
    TIME,
    Packer,
    decode_batch,
    make_result,
    unpack,
)

SECRET = (3, 4)
FORWARD = make_routes(DedupRules(by=parse_id_source("key"), before_ms=1, after_ms=1, lateness_ms=1))


def make_rows(count: int, *, start: int = 0) -> pa.RecordBatch:
    """Rows of two partitions with nested, missing and empty cells."""
    numbers = range(start, start + count)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([n % 2 for n in numbers], pa.int32()),
            "offset": pa.array([n // 2 for n in numbers], pa.int64()),
            "value": pa.array([None if n % 5 == 0 else b"v" * (n % 7) for n in numbers]),
            "headers": pa.array(
                [[{"key": "h", "value": None}] * (n % 3) for n in numbers], headers
            ),
            ID: pa.array([None if n % 4 == 0 else b"id %d" % n for n in numbers], pa.binary()),
            TIME: pa.array([None if n % 6 == 0 else n for n in numbers], pa.int64()),
        }
    )


def pass_through(batches: list[pa.RecordBatch], verdict: Verdict, routes: Verdicts) -> pa.Table:
    packed: dict[int, list[pa.RecordBatch]] = {}
    for row in Packer((5, 6, 7), SECRET).pack(batches):
        cell = row.column(ROWS)[0].as_buffer()
        packed.setdefault(row.column(BUCKET)[0].as_py(), []).append(decode_batch(cell))
    assert set(packed) == {5, 6, 7}
    columns: list[bytes] = []
    for parts in packed.values():
        verdicts: Verdicts = np.full(sum(part.num_rows for part in parts), verdict, np.uint8)
        frame = make_result(parts, verdicts, routes)
        columns += [cell for cell in frame[ROWS] if cell is not None]
    told = pa.RecordBatch.from_pydict({ROWS: pa.array(columns, pa.binary())})
    return pa.Table.from_batches(unpack([told]))


@pytest.mark.parametrize("limit", [1, 500, 1 << 20])
def test_what_is_packed_comes_out_by_partition_and_offset(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_PACKED_BYTES", "_UNPACKED_BYTES"):
        monkeypatch.setattr(dedup_rows, name, limit)
    rows = [make_rows(60, start=60), make_rows(60)]
    found = pass_through(rows, Verdict.KEPT, FORWARD)
    expected = pa.Table.from_batches(rows).drop_columns([ID, TIME])
    assert found.equals(expected.sort_by([("partition", "ascending"), ("offset", "ascending")]))


def test_a_slice_of_a_batch_is_packed_as_itself() -> None:
    rows = make_rows(90).slice(30, 45)
    found = pass_through([rows], Verdict.LATE, FORWARD)
    assert found.num_rows == 45
    assert sorted(found["offset"].to_pylist()) == sorted(rows["offset"].to_pylist())


def test_nothing_comes_of_nothing() -> None:
    assert list(Packer((1,), SECRET).pack([])) == []
    assert list(unpack([])) == []
