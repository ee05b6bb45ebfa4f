"""Walking a data file in chunks gives every whole batch once, whatever the chunks cut through."""

import numpy as np
import pytest

from tests.support.log_bench import NOW_MS, Bench, make_batch
from varve.commit_log import segment_reader
from varve.commit_log.segment_reader import BatchWalk, find_largest_timestamp
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.disk import File
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.batch_layout import BatchColumn, ScanStatus


def written(bench: Bench, data: bytes) -> File:
    bench.fs.make_directory("data/topic-0")
    bench.write(0, ".log", data)
    return bench.fs.open(bench.path(0, ".log"))


def walk_all(walk: BatchWalk) -> list[tuple[int, int, int]]:
    """Position, base offset and size of each batch; its bytes are compared on the way."""
    found = []
    for table in walk:
        for row in range(len(table.rows)):
            batch = table.bytes_of(row)
            position, size = table.rows[row, [BatchColumn.POSITION, BatchColumn.SIZE]].tolist()
            base_offset = int(table.rows[row, BatchColumn.BASE_OFFSET])
            assert int.from_bytes(batch[:8], "big") == base_offset
            assert len(batch) == size
            found.append((position, base_offset, size))
    return found


@pytest.mark.parametrize("chunk_bytes", [64, 200, 1000, 4 << 20])
def test_every_batch_is_found_once(
    bench: Bench, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "CHUNK_BYTES", chunk_bytes)
    batches = [make_batch(base_offset=i, value=bytes(i * 37 % 500)) for i in range(60)]
    file = written(bench, b"".join(batches))
    walk = BatchWalk(file, start=0, end=file.size(), verify_crc=True)
    sizes = [len(batch) for batch in batches]
    positions = np.cumsum([0, *sizes[:-1]]).tolist()
    assert walk_all(walk) == list(zip(positions, range(60), sizes, strict=True))
    assert (walk.status, walk.position) == (ScanStatus.END, file.size())


def test_more_batches_than_a_table_has_rows_are_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "_TABLE_ROWS", 7)
    file = written(bench, b"".join(make_batch(base_offset=i) for i in range(50)))
    walk = BatchWalk(file, start=0, end=file.size(), verify_crc=True)
    assert [offset for _, offset, _ in walk_all(walk)] == list(range(50))


@pytest.mark.parametrize("chunk_bytes", [64, 4 << 20])
@pytest.mark.parametrize("cut", [1, 30, 70])
def test_a_torn_tail_ends_the_walk_before_it(
    bench: Bench, chunk_bytes: int, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "CHUNK_BYTES", chunk_bytes)
    whole, torn = make_batch(), make_batch(base_offset=1)
    file = written(bench, whole + torn[:-cut])
    walk = BatchWalk(file, start=0, end=file.size(), verify_crc=True)
    assert len(walk_all(walk)) == 1
    assert (walk.status, walk.position) == (ScanStatus.INCOMPLETE, len(whole))
    walk.check_ended("here")


def test_a_size_beyond_the_file_does_not_ask_for_its_memory(bench: Bench) -> None:
    huge = bytearray(make_batch())
    huge[8:12] = (2**31 - 1).to_bytes(4, "big")
    file = written(bench, bytes(huge) + bytes(5 << 20))
    walk = BatchWalk(file, start=0, end=file.size(), verify_crc=True)
    assert walk_all(walk) == []
    assert walk.status == ScanStatus.INCOMPLETE


def test_what_stops_a_walk_is_named_with_its_place(bench: Bench) -> None:
    good = make_batch()
    bad = bytearray(make_batch(base_offset=1))
    for position, value, error in ((16, 1, UnsupportedFormat), (16, 9, Corrupt), (30, 1, Corrupt)):
        broken = bytearray(bad)
        broken[position] = value
        file = written(bench, good + bytes(broken))
        walk = BatchWalk(file, start=0, end=file.size(), verify_crc=True)
        assert len(walk_all(walk)) == 1
        with pytest.raises(error, match=f"somewhere: position {len(good)}"):
            walk.check_ended("somewhere")


def test_a_range_is_walked_alone(bench: Bench) -> None:
    size = len(make_batch())
    file = written(bench, b"".join(make_batch(base_offset=i) for i in range(5)))
    walk = BatchWalk(file, start=size, end=3 * size, verify_crc=False)
    assert [offset for _, offset, _ in walk_all(walk)] == [1, 2]


def test_the_largest_timestamp_is_that_of_its_earliest_batch(bench: Bench) -> None:
    times = (3, 8, 8, 5)
    file = written(bench, b"".join(make_batch(base_offset=i, time=t) for i, t in enumerate(times)))
    indexes = TimeIndex(0, 1000), OffsetIndex(0, 1000)
    assert find_largest_timestamp(file, *indexes, size=file.size()) == (NOW_MS + 8, 1)


def test_the_search_begins_at_the_last_time_entry(bench: Bench) -> None:
    size = len(make_batch())
    file = written(bench, b"".join(make_batch(base_offset=i, time=i) for i in range(4)))
    time_index, offset_index = TimeIndex(0, 1000), OffsetIndex(0, 1000)
    time_index.append(NOW_MS + 99, 2)
    offset_index.append(2, 2 * size)
    assert find_largest_timestamp(file, time_index, offset_index, size=4 * size) == (NOW_MS + 99, 2)
