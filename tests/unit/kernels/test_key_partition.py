"""Keys of a column go where Kafka's default partitioner puts each of them."""

import numpy as np

from varve.embedded.topic import partition_of
from varve.kernels.hashes import partition_keys
from varve.records import BinaryColumn


def test_every_key_has_the_partition_of_its_own() -> None:
    keys = [None if size % 7 == 3 else b"k" * size for size in range(40)]
    column = BinaryColumn.of(keys)
    found = np.full(len(keys), -1, np.int64)
    assert partition_keys(column.data, column.starts, column.sizes, 5, found) == -1
    assert found.tolist() == [-1 if key is None else partition_of(key, 5) for key in keys]


def test_a_cell_outside_its_column_is_named() -> None:
    column = BinaryColumn.at(b"abc", starts=[0, 2], sizes=[2, 2])
    found = np.full(2, -1, np.int64)
    assert partition_keys(column.data, column.starts, column.sizes, 5, found) == 1
