"""Buckets of keys are those of Iceberg."""

import mmh3
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from hypothesis import given
from hypothesis import strategies as st

from varve.jobs.table.tasks import find_buckets
from varve.kernels.hashes import murmur3_cells


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_hashes_are_those_of_murmur3(keys: list[bytes]) -> None:
    data = np.frombuffer(b"".join(keys) or b"\0", np.uint8)
    offsets = np.cumsum([0, *map(len, keys)]).astype(np.int32)
    hashes = np.empty(len(keys), np.uint32)
    murmur3_cells(data, offsets, hashes)
    assert hashes.tolist() == [mmh3.hash(key, signed=False) for key in keys]


def test_buckets_of_a_sliced_column_are_right() -> None:
    keys = [b"a", b"bb", b"", b"dddd", b"eeeee"]
    column = pa.chunked_array(
        [pa.array(keys, pa.large_binary())[1:], pa.array([b"x"], pa.large_binary())]
    )
    wanted = [(mmh3.hash(key) & 0x7FFFFFFF) % 7 for key in [*keys[1:], b"x"]]
    assert find_buckets(column, 7).tolist() == wanted
