"""What building refuses, and what goes into the header."""

import numpy as np
import pytest

from varve.foundation.errors import Corrupt, InvalidRecord, InvalidRequest, StoreError
from varve.records import (
    Batch,
    BinaryColumn,
    Codec,
    HeaderColumns,
    Record,
    TimestampType,
    build_batch,
    build_batch_from_columns,
)
from varve.records.columns import EncodedHeaders

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def test_batch_without_records_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="empty_batch"):
        build_batch([])
    with pytest.raises(InvalidRecord, match="empty_batch"):
        build_batch_from_columns(None, None, 1)


def test_null_header_key_is_refused() -> None:
    headers = ((None, b"x"),)
    with pytest.raises(InvalidRecord, match="header key"):
        build_batch([Record(b"k", b"v", headers)])  # type: ignore[arg-type]  # the point of the test


def test_null_header_key_in_columns_is_refused() -> None:
    headers = HeaderColumns([1], BinaryColumn.of([None]), BinaryColumn.of([b"x"]))
    with pytest.raises(InvalidRecord, match="key is null"):
        build_batch_from_columns(None, None, [1], headers)


def test_header_key_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="UTF-8"):
        build_batch([Record(b"k", b"v", (("\ud800", b"x"),))])


@pytest.mark.parametrize("timestamp", [-2, -(2**63), 2**63])
def test_timestamps_below_minus_one_or_beyond_64_bits_are_refused(timestamp: int) -> None:
    with pytest.raises(InvalidRecord, match="timestamp"):
        build_batch([Record(b"k", b"v", timestamp=timestamp)])
    with pytest.raises(InvalidRecord, match="timestamp"):
        build_batch_from_columns(None, BinaryColumn.of([b"v"]), timestamp)


@pytest.mark.parametrize("deltas", [[0, 0], [1, 0], [-1, 0], [0, INT_MAX + 1]])
def test_offset_deltas_that_do_not_ascend_within_int_are_refused(deltas: list[int]) -> None:
    with pytest.raises(InvalidRecord, match="offset delta"):
        build_batch([Record(b"a", b"b"), Record(b"c", b"d")], offset_deltas=deltas)


def test_last_offset_delta_below_the_last_record_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="last offset delta"):
        build_batch([Record(b"a", b"b"), Record(b"c", b"d")], last_offset_delta=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_epoch": 2**15},
        {"base_sequence": 2**31},
        {"leader_epoch": -(2**31) - 1},
        {"producer_id": 2**63},
        {"base_offset": -1},
        {"base_offset": 2**63},
        {"last_offset_delta": 2**31},
        {"delete_horizon_ms": 2**63},
        {"timestamp_type": TimestampType.LOG_APPEND_TIME},
        {"timestamp_type": TimestampType.LOG_APPEND_TIME, "log_append_time": 2**63},
    ],
)
def test_fields_that_do_not_fit_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        build_batch([Record(b"k", b"v")], **fields)  # type: ignore[arg-type]  # any of many types


def test_columns_of_different_lengths_are_refused() -> None:
    one, two = BinaryColumn.of([b"a"]), BinaryColumn.of([b"a", b"b"])
    with pytest.raises(InvalidRequest, match="2 cells"):
        build_batch_from_columns(one, two, [1])
    with pytest.raises(InvalidRequest, match="1 cells"):
        build_batch_from_columns(one, two, [1, 2])
    with pytest.raises(InvalidRequest, match="1 offset deltas"):
        build_batch_from_columns(None, two, [1, 2], offset_deltas=[0])
    with pytest.raises(InvalidRequest, match="0 cells"):
        build_batch_from_columns(BinaryColumn.of([]), two, [1, 2])


@pytest.mark.parametrize(
    ("start", "size"), [(0, 4), (3, 1), (-1, 1), (0, -2), (2**62, 2**62), (LONG_MAX, 1), (4, 0)]
)
def test_cells_outside_their_column_are_refused(start: int, size: int) -> None:
    cells = BinaryColumn.at(b"abc", starts=[start], sizes=[size])
    with pytest.raises(InvalidRecord):
        build_batch_from_columns(None, cells, [1])
    with pytest.raises(InvalidRecord):
        build_batch_from_columns(cells, None, [1])
    with pytest.raises(InvalidRecord):
        build_batch_from_columns(None, None, [1], EncodedHeaders(cells, np.array([0])))
    with pytest.raises(InvalidRecord):
        build_batch_from_columns(None, None, [1], HeaderColumns([1], BinaryColumn.of([b""]), cells))


def test_size_beyond_int_max_is_refused_without_allocating_it() -> None:
    cells = BinaryColumn.at(np.zeros(1, np.uint8), starts=[0], sizes=[INT_MAX + 1])
    with pytest.raises(InvalidRecord, match="INT_MAX"):
        build_batch_from_columns(None, cells, [1])


def test_records_together_beyond_int_max_are_refused_without_allocating_them() -> None:
    chunk = np.zeros(1 << 20, np.uint8)
    many = BinaryColumn.at(chunk, starts=np.zeros(2048, np.int64), sizes=np.full(2048, 1 << 20))
    with pytest.raises(InvalidRecord, match="several batches"):
        build_batch_from_columns(None, many, 1)


def test_records_to_compress_beyond_what_is_read_back_are_refused() -> None:
    chunk = np.zeros(1 << 20, np.uint8)
    many = BinaryColumn.at(chunk, starts=np.zeros(256, np.int64), sizes=np.full(256, 1 << 20))
    with pytest.raises(InvalidRecord, match="several batches"):
        build_batch_from_columns(None, many, 1, codec=Codec.ZSTD)


@pytest.mark.parametrize(
    ("offsets", "valid"),
    [([], None), ([0, 2, 1], None), ([0, 1], [True, False]), ([0.5, 1.5], None), ([[0, 1]], None)],
)
def test_malformed_columns_are_refused(offsets: list[int], valid: list[bool] | None) -> None:
    flags = None if valid is None else np.array(valid)
    with pytest.raises(InvalidRequest):
        BinaryColumn(b"abc", offsets, flags)


def test_cells_that_are_no_bytes_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        BinaryColumn.of(["text"])  # type: ignore[list-item]  # the point of the test
    with pytest.raises(InvalidRequest):
        BinaryColumn.of([None, 7])  # type: ignore[list-item]  # the point of the test
    with pytest.raises(InvalidRequest, match="cell 1 is of type bytearray"):
        BinaryColumn.of([b"", bytearray(1)])  # type: ignore[list-item]  # likewise


def test_column_by_offsets_and_validity_equals_column_of_cells() -> None:
    by_offsets = BinaryColumn(
        np.frombuffer(b"aabbb", np.uint8),
        np.array([0, 2, 2, 5, 5], np.int32),
        np.array([True, True, True, False]),
    )
    expected = build_batch_from_columns(None, BinaryColumn.of([b"aa", b"", b"bbb", None]), 7)
    assert build_batch_from_columns(None, by_offsets, 7) == expected


def test_writable_and_read_only_columns_build_the_same() -> None:
    data = np.frombuffer(b"xyz", np.uint8)
    writable = data.copy()
    offsets = np.array([0, 1, 3], np.int64)
    first = build_batch_from_columns(None, BinaryColumn(data, offsets), 7)
    assert first == build_batch_from_columns(None, BinaryColumn(writable, offsets), 7)
    assert writable.flags.writeable


def test_built_batch_is_bytes_of_its_own() -> None:
    records = [Record(b"k", b"v")]
    first, second = build_batch(records), build_batch(records)
    assert type(first) is bytes
    assert first == second
    assert first is not second
    assert hash(first) == hash(second)


def test_batch_cut_short_or_with_wrong_count_is_corrupt() -> None:
    built = build_batch([Record(b"k", b"v"), Record(b"k", b"w")])
    with pytest.raises(Corrupt, match="are there"):
        Batch(built[:-1])
    for count in (-1, 1, 3, INT_MAX):
        changed = bytearray(built)
        changed[57:61] = count.to_bytes(4, "big", signed=True)
        with pytest.raises(Corrupt):
            Batch(changed).columns()


def test_count_of_zero_does_not_touch_the_payload() -> None:
    changed = bytearray(build_batch([Record(b"k", b"v")], codec=Codec.GZIP))
    changed[57:61] = bytes(4)
    changed[61:] = b"\xff" * (len(changed) - 61)
    assert Batch(changed).records() == []


def test_batch_is_taken_from_the_middle_of_a_buffer() -> None:
    first, second = build_batch([Record(b"a", b"1")]), build_batch([Record(b"b", b"2")])
    batch = Batch(first + second + b"tail", position=len(first))
    assert batch.is_valid_crc()
    assert batch.columns().key(0) == b"b"


def test_changed_byte_breaks_the_crc() -> None:
    changed = bytearray(build_batch([Record(b"k", b"v")]))
    changed[-2] ^= 1
    assert not Batch(changed).is_valid_crc()


def test_header_keys_that_are_no_utf_8_show_replacement_characters() -> None:
    headers = HeaderColumns([1], BinaryColumn.of([b"\xff"]), BinaryColumn.of([None]))
    batch = Batch(build_batch_from_columns(None, None, [1], headers))
    assert batch.records()[0].headers == (("\ufffd", None),)


def test_every_refusal_is_an_error_of_ours() -> None:
    assert issubclass(InvalidRecord, StoreError)


def test_columns_tell_parts_and_hash_keys_under_the_topic_id() -> None:
    records = [Record(b"k", b"v", (("h", None),)), Record(None, None), Record(b"k", b"")]
    columns = Batch(build_batch(records, base_offset=40, codec=Codec.LZ4)).columns()
    assert columns.offsets.tolist() == [40, 41, 42]
    assert columns.key_sizes.tolist() == [1, -1, 1]
    assert columns.value_sizes.tolist() == [1, -1, 0]
    assert columns.header_counts.tolist() == [1, 0, 0]
    assert [columns.key(i) for i in range(3)] == [b"k", None, b"k"]
    assert [columns.value(i) for i in range(3)] == [b"v", None, b""]
    assert columns.headers(0) == (("h", None),)
    hashes = columns.hash_keys(bytes(range(16)))
    assert hashes[0].tolist() == hashes[2].tolist() != [0, 0]
    assert hashes[1].tolist() == [0, 0]
    assert columns.hash_keys(bytes(16))[0].tolist() != hashes[0].tolist()
    with pytest.raises(InvalidRequest, match="16 bytes"):
        columns.hash_keys(b"short")
