"""Batches of log data ascend within the offsets of their segment, or the data is damaged."""

import struct
from itertools import pairwise

import numpy as np
import pytest

from varve.foundation.errors import Corrupt
from varve.jobs.source.record_blocks import BatchRange, RecordFilter, read_blocks
from varve.kernels.batch_layout import RecordColumn
from varve.records import Record, build_batch

BASE = 100


class BytesSource:
    name = "test"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, start: int, end: int) -> memoryview:
        return memoryview(self._data)[start:end]


def make(offsets: list[int]) -> tuple[BytesSource, list[int]]:
    """A batch of one record at each offset, and where they begin and end."""
    data, edges = b"", [0]
    for offset in offsets:
        batch = build_batch([Record(b"k", b"v")])
        data += struct.pack(">q", offset) + bytes(batch[8:])
        edges.append(len(data))
    return BytesSource(data), edges


def read(offsets: list[int], *, cuts: list[int], is_reversed: bool = False) -> list[int]:
    """The offsets that are read in batch_ranges cut at these batches, each chunk a byte or more."""
    source, edges = make(offsets)
    places = [edges[cut] for cut in (0, *cuts, len(offsets))]
    batch_ranges = [
        BatchRange(source, 0, start, end, RecordFilter(), base_offset=BASE, end_offset=BASE + 50)
        for start, end in pairwise(places)
    ]
    blocks = read_blocks(batch_ranges[::-1] if is_reversed else batch_ranges, chunk_bytes=40)
    found = [block.records[:, RecordColumn.OFFSET] for block in blocks]
    return [int(offset) for offset in np.concatenate(found)]


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("cuts", [[], [2], [1, 3]])
def test_batches_that_ascend_are_read(cuts: list[int], is_reversed: bool) -> None:
    offsets = [100, 101, 120, 148, 149]
    assert sorted(read(offsets, cuts=cuts, is_reversed=is_reversed)) == offsets


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("cuts", [[], [2], [1, 3]])
@pytest.mark.parametrize(
    "offsets",
    [
        [99, 101, 120, 148, 149],
        [100, 101, 120, 148, 150],
        [100, 149, 120, 148, 149],
        [100, 101, 101, 148, 149],
        [100, 101, 1 << 40, 148, 149],
        [100, 101, 120, 105, 149],
    ],
)
def test_a_batch_out_of_order_is_damage(
    offsets: list[int], cuts: list[int], is_reversed: bool
) -> None:
    with pytest.raises(Corrupt, match=r"test: batch with offsets .* should be"):
        read(offsets, cuts=cuts, is_reversed=is_reversed)
