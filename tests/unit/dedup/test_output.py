"""Batches of the output: kept records as they came."""

from collections.abc import Sequence

import numpy as np
import pytest

from varve.dedup.output import BatchLimit, InputChunk, build_kept_batches
from varve.foundation.errors import RecordTooLarge
from varve.records import (
    HEADER_BYTES,
    Batch,
    BinaryColumn,
    Codec,
    CommittedBatches,
    Record,
    TimestampType,
    build_batch,
    build_batch_from_columns,
)

LIMIT = BatchLimit("out", 1 << 20)


def records_of(start: int, count: int) -> list[Record]:
    return [
        Record(
            key=None if number % 3 == 0 else b"k%d" % number,
            value=None if number % 5 == 0 else b"v%d" % number,
            headers=(("h", b"%d" % number), ("n", None)) if number % 2 else (),
            timestamp=1_000 - number,
            offset=number,
        )
        for number in range(start, start + count)
    ]


def batch_of(records: Sequence[Record], codec: Codec = Codec.NONE) -> bytes:
    return build_batch(records, base_offset=records[0].offset, codec=codec)


def make_chunk(batches: Sequence[bytes], *, start_offset: int) -> InputChunk:
    part = CommittedBatches(b"".join(batches), start_offset=start_offset).first_part()
    return InputChunk(part.batches.batches, part.columns, part.ends)


def kept_of(chunk: InputChunk, offsets: set[int]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    return np.array([item in offsets for item in chunk.columns.offsets.tolist()], np.bool_)


def plain(records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [(item.key, item.value, item.headers, item.timestamp) for item in records]


def read(batches: Sequence[bytes | bytearray]) -> list[tuple[object, ...]]:
    return [row for item in batches for row in plain(Batch(bytes(item)).records())]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_that_is_kept_whole_goes_on_with_its_bytes(codec: Codec) -> None:
    batch = batch_of(records_of(7, 20), codec)
    chunk = make_chunk([batch], start_offset=7)
    (created,) = build_kept_batches(chunk, np.ones(20, np.bool_), LIMIT)
    assert bytes(created)[HEADER_BYTES:] == bytes(batch)[HEADER_BYTES:]


@pytest.mark.parametrize("codec", list(Codec))
def test_kept_records_keep_all_they_have_and_their_order(codec: Codec) -> None:
    records = records_of(0, 30)
    chunk = make_chunk(
        [batch_of(records[:20], codec), batch_of(records[20:], codec)], start_offset=0
    )
    expected = {0, 3, 4, 15, 21, 22, 29}
    created = build_kept_batches(chunk, kept_of(chunk, expected), LIMIT)
    assert read(created) == plain([item for item in records if item.offset in expected])
    headers = [Batch(bytes(item)).header for item in created]
    assert len(headers) == 1, "neighbours are put together"
    assert headers[0].codec is codec
    assert headers[0].last_offset_delta + 1 == headers[0].records_count == len(expected)


def test_a_whole_batch_between_mixed_ones_keeps_its_place() -> None:
    records = records_of(0, 30)
    parts = [batch_of(records[at : at + 10]) for at in (0, 10, 20)]
    chunk = make_chunk(parts, start_offset=0)
    expected = {1, 5, *range(10, 20), 29}
    created = build_kept_batches(chunk, kept_of(chunk, expected), LIMIT)
    assert len(created) == 3
    assert read(created) == plain([item for item in records if item.offset in expected])


def test_records_before_the_position_are_no_part_of_a_chunk() -> None:
    records = records_of(0, 20)
    chunk = make_chunk([batch_of(records[:10]), batch_of(records[10:])], start_offset=6)
    assert chunk.columns.offsets.tolist() == list(range(6, 20))
    assert chunk.ends.tolist() == [4, 14]
    created = build_kept_batches(chunk, np.ones(14, np.bool_), LIMIT)
    assert read(created) == plain(records[6:])


def test_an_empty_chunk_has_no_batches() -> None:
    chunk = make_chunk([], start_offset=3)
    assert len(chunk.columns) == 0
    assert build_kept_batches(chunk, np.ones(0, np.bool_), LIMIT) == []


def test_records_that_a_log_stamped_keep_that_time_as_their_own() -> None:
    data = build_batch(
        records_of(0, 5), timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=77
    )
    chunk = make_chunk([data], start_offset=0)
    (created,) = build_kept_batches(chunk, np.ones(5, np.bool_), LIMIT)
    batch = Batch(bytes(created))
    assert batch.header.timestamp_type is TimestampType.CREATE_TIME
    assert [item.timestamp for item in batch.records()] == [77] * 5


def test_a_compacted_batch_loses_its_holes() -> None:
    data = build_batch_from_columns(
        BinaryColumn.of([b"a", b"b"]),
        BinaryColumn.of([b"1", b"2"]),
        [5, 6],
        base_offset=10,
        offset_deltas=[1, 4],
        last_offset_delta=9,
    )
    chunk = make_chunk([data], start_offset=0)
    assert chunk.columns.offsets.tolist() == [11, 14]
    (created,) = build_kept_batches(chunk, np.ones(2, np.bool_), LIMIT)
    assert Batch(bytes(created)).header.last_offset_delta == 1
    assert read([created]) == [(b"a", b"1", (), 5), (b"b", b"2", (), 6)]


def test_a_batch_beyond_the_limit_of_the_output_is_split() -> None:
    records = [Record(b"k", bytes(300), timestamp=1, offset=at) for at in range(16)]
    chunk = make_chunk([batch_of(records)], start_offset=0)
    created = build_kept_batches(chunk, np.ones(16, np.bool_), BatchLimit("out", 1_500))
    assert max(map(len, created)) <= 1_500
    assert read(created) == plain(records)


def test_a_record_beyond_the_limit_of_the_output_is_refused_by_its_offset() -> None:
    records = [
        Record(b"k", bytes(size), timestamp=1, offset=at) for at, size in ((4, 10), (5, 900))
    ]
    chunk = make_chunk([batch_of(records)], start_offset=0)
    with pytest.raises(RecordTooLarge, match=r"offset 5 .*more than the 500 of topic out"):
        build_kept_batches(chunk, np.ones(2, np.bool_), BatchLimit("out", 500))
