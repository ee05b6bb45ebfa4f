"""Whatever can be built is read back the same, by every codec, and rebuilding keeps it."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from varve.records import (
    Batch,
    BinaryColumn,
    Codec,
    HeaderColumns,
    Record,
    TimestampType,
    build_batch,
    build_batch_from_columns,
    build_batch_of,
    rebuild_batch,
)

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
# Around the numbers where a varint of lengths gets another byte.
EDGE_SIZES = [0, 1, 63, 64, 65, 8191, 8192, 8193]

cells = st.none() | st.binary(max_size=80) | st.sampled_from(EDGE_SIZES).map(bytes)
timestamps = (
    st.just(-1)
    | st.integers(0, 2_000_000_000_000)
    | st.integers(-1, LONG_MAX)
    | st.sampled_from([0, 63, 64, 8191, 8192, LONG_MAX, LONG_MAX - 1])
)
headers = st.lists(st.tuples(st.text(max_size=8), cells), max_size=3).map(tuple)
records = st.builds(Record, cells, cells, headers | st.just(()), timestamps)
batches = st.lists(records, min_size=1, max_size=12)
codecs = st.sampled_from(list(Codec))


def _numbered(source: Sequence[Record], base_offset: int) -> list[Record]:
    return [
        Record(record.key, record.value, record.headers, record.timestamp, base_offset + index)
        for index, record in enumerate(source)
    ]


@given(batches, codecs, st.integers(0, LONG_MAX - 20), st.integers(-1, INT_MAX))
def test_what_is_built_is_read_back(
    source: list[Record], codec: Codec, base_offset: int, base_sequence: int
) -> None:
    built = build_batch(source, base_offset=base_offset, codec=codec, base_sequence=base_sequence)
    batch = Batch(built)
    assert batch.is_valid_crc()
    assert batch.header.size == len(built)
    assert batch.header.codec is codec
    assert batch.header.base_timestamp == source[0].timestamp
    assert batch.header.max_timestamp == max(record.timestamp for record in source)
    assert batch.records() == _numbered(source, base_offset)


@given(batches, codecs)
def test_columns_equal_records(source: list[Record], codec: Codec) -> None:
    columns = Batch(build_batch(source, codec=codec)).columns()
    assert len(columns) == len(source)
    for index, record in enumerate(source):
        assert columns.key(index) == record.key
        assert columns.value(index) == record.value
        assert columns.headers(index) == record.headers
    assert columns.timestamps.tolist() == [record.timestamp for record in source]


@given(batches)
def test_building_from_columns_equals_building_from_records(source: list[Record]) -> None:
    built = build_batch_from_columns(
        BinaryColumn.of([record.key for record in source]),
        BinaryColumn.of([record.value for record in source]),
        np.array([record.timestamp for record in source]),
        HeaderColumns.of([record.headers for record in source]),
    )
    assert built == build_batch(source)
    assert build_batch_of(Batch(built).columns()) == built


@given(batches, codecs, codecs, st.booleans(), st.none() | st.integers(-(2**63), LONG_MAX))
def test_rebuilding_keeps_all_but_the_codec(
    source: list[Record], first: Codec, second: Codec, transactional: bool, horizon: int | None
) -> None:
    plain = build_batch(
        source,
        base_offset=7,
        producer_id=3,
        producer_epoch=1,
        base_sequence=5,
        transactional=transactional,
        delete_horizon_ms=horizon,
    )
    through = rebuild_batch(rebuild_batch(plain, codec=first), codec=second)
    assert Batch(through).is_valid_crc()
    assert Batch(through).records() == Batch(plain).records() == _numbered(source, 7)
    assert rebuild_batch(through, codec=Codec.NONE) == plain


@given(batches, codecs, st.integers(0, LONG_MAX))
def test_log_append_time_survives_rebuilding(
    source: list[Record], codec: Codec, append_time: int
) -> None:
    built = build_batch(
        source,
        codec=codec,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        log_append_time=append_time,
    )
    assert {record.timestamp for record in Batch(built).records()} == {append_time}
    back = Batch(rebuild_batch(built, codec=Codec.NONE)).columns_as_sent().timestamps.tolist()
    assert back == [record.timestamp for record in source]


@given(st.data(), batches)
def test_holes_between_offsets_are_kept(data: st.DataObject, source: list[Record]) -> None:
    count = len(source)
    numbers = st.integers(0, INT_MAX) | st.sampled_from([0, 63, 64, 8191, 8192, INT_MAX])
    deltas = sorted(data.draw(st.lists(numbers, min_size=count, max_size=count, unique=True)))
    last = data.draw(st.integers(deltas[-1], INT_MAX))
    batch = Batch(build_batch(source, offset_deltas=deltas, last_offset_delta=last))
    assert batch.columns().offsets.tolist() == deltas
    assert batch.header.last_offset == last


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=300), codecs)
def test_long_batches_of_any_sizes_are_read_back(sizes: list[int], codec: Codec) -> None:
    values = [bytes([size % 251]) * size for size in sizes]
    built = build_batch_from_columns(None, BinaryColumn.of(values), 5, codec=codec)
    columns = Batch(built).columns()
    assert [columns.value(index) for index in range(len(values))] == values
    assert (columns.key_sizes == -1).all()
