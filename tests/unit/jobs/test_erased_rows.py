"""Which rows of a copy are to be erased."""

import pickle

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest

from varve.jobs.derived_outputs import ErasedFile, ErasedOutput, ErasedRows


def _wanted(keys: frozenset[bytes] = frozenset()) -> ErasedRows:
    offsets = {0: np.array([3, 9], np.int64), 2: np.array([], np.int64)}
    return ErasedRows(keys, offsets)


def _find(wanted: ErasedRows, keys: pa.Array | None = None) -> list[bool]:
    partitions = pa.array([0, 0, 1, 0, 2], pa.int32())
    offsets = pa.array([3, 4, 9, 9, 3], pa.int64())
    return [bool(one) for one in wanted.find(partitions, offsets, keys)]


def test_a_row_matches_by_its_partition_and_offset() -> None:
    assert _find(_wanted()) == [True, False, False, True, False]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string()])
@pytest.mark.parametrize("more", [0, 100])
def test_a_row_matches_by_its_key_however_many_are_wanted(kind: pa.DataType, more: int) -> None:
    wanted = _wanted(frozenset([b"ann", *(b"%d" % one for one in range(more))]))
    keys = pa.array(["bob", "ann", None, "cy", ""], kind)
    assert _find(wanted, keys) == [True, True, False, True, False]


def test_a_chunked_column_is_looked_at_as_a_whole() -> None:
    column = pa.chunked_array([[0, 0], [0]], pa.int32())
    found = _wanted().find(column, pa.chunked_array([[1], [3, 9]]), None)
    assert found.tolist() == [False, True, True]


def test_no_rows_and_nothing_wanted_match_nothing() -> None:
    none = pa.array([], pa.int64())
    assert _wanted(frozenset([b"a"])).find(none, none, pa.array([], pa.binary())).tolist() == []
    nothing = ErasedRows(frozenset(), {})
    assert nothing.is_empty
    assert _find(nothing, pa.array([b"a"] * 5)) == [False] * 5


def test_what_is_wanted_travels_to_executors() -> None:
    wanted = pickle.loads(pickle.dumps(_wanted(frozenset([b"ann"]))))
    assert wanted.keys == {b"ann"}
    assert _find(wanted) == [True, False, False, True, False]


def test_what_became_of_an_output_is_told_as_json() -> None:
    file = ErasedFile("a.parquet", 10, "00", 2)
    output = ErasedOutput("table-1", 1, (file,), (), ("a.parquet",), ("a backup",))
    assert output.to_json()["files_before"] == [
        {"path": "a.parquet", "size": 10, "sha256": "00", "rows": 2}
    ]
