"""Byte vectors of spec/kafka-log.md §1.12: building gives them, reading understands them."""

from tests.support.record_bytes import CLEANED, COMMIT, EMPTY, TWO_RECORDS
from varve.records import (
    Batch,
    BatchHeader,
    ControlRecord,
    ControlType,
    Record,
    build_batch,
    decode_control_record,
    decode_header,
    empty_batch,
    end_transaction_marker,
)

FIRST = Record(b"k1", b"v1", timestamp=1000, offset=0)
SECOND = Record(b"k2", None, (("h", b"x"),), timestamp=1005, offset=1)


def test_two_records_are_built_byte_for_byte() -> None:
    assert build_batch([FIRST, SECOND], leader_epoch=0) == TWO_RECORDS


def test_two_records_are_read() -> None:
    batch = Batch(TWO_RECORDS)
    assert batch.is_valid_crc()
    assert batch.records() == [FIRST, SECOND]
    assert (batch.header.size, batch.header.last_offset, batch.header.next_offset) == (85, 1, 2)
    assert (batch.header.base_timestamp, batch.header.max_timestamp) == (1000, 1005)
    assert not batch.header.has_producer_id
    assert batch.header.last_sequence == -1


def test_cleaned_batch_with_delete_horizon_is_built_byte_for_byte() -> None:
    built = build_batch([SECOND], leader_epoch=0, offset_deltas=[1], delete_horizon_ms=90_000)
    assert built == CLEANED


def test_cleaned_batch_gives_true_timestamps_though_deltas_count_from_the_horizon() -> None:
    batch = Batch(CLEANED)
    assert batch.is_valid_crc()
    assert batch.records() == [SECOND]
    assert batch.header.delete_horizon_ms == 90_000
    assert (batch.header.last_offset_delta, batch.header.records_count) == (1, 1)


def test_commit_marker_is_built_byte_for_byte_and_read() -> None:
    built = end_transaction_marker(
        committed=True,
        producer_id=9,
        producer_epoch=1,
        coordinator_epoch=7,
        timestamp=2000,
        base_offset=2,
        leader_epoch=0,
    )
    assert built == COMMIT
    batch = Batch(COMMIT)
    assert batch.header.is_control
    assert batch.header.is_transactional
    (record,) = batch.records()
    assert decode_control_record(record.key or b"", record.value) == ControlRecord(
        ControlType.COMMIT, 0, 7
    )


def test_empty_retained_batch_is_built_byte_for_byte_and_read() -> None:
    original = BatchHeader(3, 49, 4, 2, 0, 0x44, 2, 777, 1234, 23, 5, 10, 2)
    assert empty_batch(original) == EMPTY
    batch = Batch(EMPTY)
    assert batch.is_valid_crc()
    assert batch.records() == []
    assert len(batch.columns()) == 0
    assert (batch.header.last_offset, batch.header.last_sequence) == (5, 12)


def test_empty_batch_keeps_timestamp_type_transactional_and_control_bits_only() -> None:
    header = decode_header(COMMIT)._replace(attributes=0x7C)
    assert decode_header(empty_batch(header)).attributes == 0x38
