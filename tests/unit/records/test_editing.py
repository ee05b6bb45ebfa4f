"""Header fields of an encoded batch are changed with a valid CRC, or not at all."""

from typing import Any

import pytest

from varve.foundation.errors import InvalidRequest
from varve.records import (
    Batch,
    Codec,
    Producer,
    Record,
    TimestampType,
    build_batch,
    edit_batch,
    rebuild_batch,
    stamp_producer,
    stamp_producer_all,
    with_log_append_time,
    with_max_timestamp,
)

RECORDS = [Record(b"a", b"1", timestamp=5), Record(None, None, (("h", b"x"),), timestamp=9)]
BATCH = build_batch(
    RECORDS, producer_id=4, producer_epoch=2, base_sequence=7, transactional=True, leader_epoch=3
)


def test_assigned_offsets_leave_the_crc_valid() -> None:
    stamped = edit_batch(BATCH, base_offset=1000, leader_epoch=8)
    header = Batch(stamped).header
    assert Batch(stamped).is_valid_crc()
    assert (header.base_offset, header.partition_leader_epoch) == (1000, 8)
    assert stamped[16:] == BATCH[16:]


def test_bytes_are_copied_and_a_bytearray_changed_in_place() -> None:
    own = bytearray(BATCH)
    assert edit_batch(own, base_offset=5, leader_epoch=0) is own
    assert Batch(BATCH).header.base_offset == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": -1},
        {"base_offset": 2**63 - 1},
        {"leader_epoch": 2**31},
        {"max_timestamp": -2},
        {"max_timestamp": 2**63},
        {"base_timestamp": 2**63},
        {"producer": Producer(2**63, 0)},
        {"producer": Producer(1, 2**15)},
        {"base_sequence": 2**31},
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_changes_nothing(fields: dict[str, Any]) -> None:
    own = bytearray(BATCH)
    with pytest.raises(InvalidRequest):
        edit_batch(own, **{"transactional": False, "leader_epoch": 1, **fields})
    assert own == BATCH


def test_an_edit_of_nothing_changes_nothing() -> None:
    assert edit_batch(BATCH) == BATCH


def test_every_field_is_written_at_its_place_with_one_valid_crc() -> None:
    batch = Batch(
        edit_batch(
            BATCH,
            base_offset=10,
            leader_epoch=4,
            timestamp_type=TimestampType.CREATE_TIME,
            base_timestamp=100,
            max_timestamp=104,
            producer=Producer(7, 8),
            base_sequence=9,
            transactional=False,
        )
    )
    header = batch.header
    assert batch.is_valid_crc()
    assert (header.base_offset, header.partition_leader_epoch) == (10, 4)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 8, 9)
    assert not header.is_transactional
    assert [record.timestamp for record in batch.records()] == [100, 104]


def test_a_stamped_batch_belongs_to_the_producer_and_looks_unappended() -> None:
    appended = edit_batch(BATCH, base_offset=50, leader_epoch=8, transactional=False)
    own = bytearray(appended)
    stamped = stamp_producer(own, Producer(11, 3), 20)
    header = Batch(stamped).header
    assert stamped is own
    assert Batch(stamped).is_valid_crc()
    assert (header.base_offset, header.partition_leader_epoch) == (0, -1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 3, 20)
    assert header.is_transactional
    assert [record.timestamp for record in Batch(stamped).records()] == [5, 9]


def test_an_idempotent_producer_stamps_without_a_transaction() -> None:
    stamped = stamp_producer(BATCH, Producer(11, 3), 0, transactional=False)
    assert not Batch(stamped).header.is_transactional
    assert Batch(BATCH).header.is_transactional


def test_the_default_timestamp_is_for_batches_without_timestamps_only() -> None:
    untimed = build_batch([Record(b"a", b"1"), Record(b"b", b"2")])
    stamped = Batch(stamp_producer(untimed, Producer(1, 0), 0, default_timestamp=1234))
    assert stamped.is_valid_crc()
    assert [record.timestamp for record in stamped.records()] == [1234, 1234]
    timed = Batch(stamp_producer(BATCH, Producer(1, 0), 0, default_timestamp=1234))
    assert [record.timestamp for record in timed.records()] == [5, 9]


def test_sequences_count_the_offsets_of_the_batches_and_wrap() -> None:
    holey = build_batch(RECORDS, offset_deltas=[0, 4], last_offset_delta=6)
    stamped, following = stamp_producer_all([BATCH, holey, BATCH], Producer(1, 0), 2**31 - 3)
    sequences = [Batch(batch).header.base_sequence for batch in stamped]
    assert sequences == [2**31 - 3, 2**31 - 1, 6]
    assert following == 8


def test_log_append_time_sets_flag_max_and_crc_and_keeps_deltas() -> None:
    batch = Batch(with_log_append_time(BATCH, 777))
    assert batch.is_valid_crc()
    assert batch.header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in batch.records()] == [777, 777]
    assert batch.columns_as_sent().timestamps.tolist() == [5, 9]


def test_max_timestamp_is_corrected_under_create_time() -> None:
    batch = Batch(with_max_timestamp(with_log_append_time(BATCH, 777), 9))
    assert batch.is_valid_crc()
    assert with_max_timestamp(BATCH, 9) == BATCH
    assert batch.header.timestamp_type is TimestampType.CREATE_TIME
    assert [record.timestamp for record in batch.records()] == [5, 9]


def test_rebuilding_keeps_producer_fields_and_renumbers() -> None:
    holey = build_batch(
        RECORDS,
        base_offset=10,
        offset_deltas=[2, 5],
        last_offset_delta=8,
        producer_id=4,
        producer_epoch=2,
        base_sequence=7,
        transactional=True,
        leader_epoch=3,
    )
    batch = Batch(rebuild_batch(holey, codec=Codec.ZSTD, level=1))
    assert batch.is_valid_crc()
    header = batch.header
    assert header.codec is Codec.ZSTD
    assert [record.offset for record in batch.records()] == [10, 11]
    assert header.last_offset_delta == 1
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 2, 7)
    assert header.is_transactional
    assert header.partition_leader_epoch == 3


def test_rebuilding_keeps_append_time_and_the_deltas_below_it() -> None:
    appended = bytes(with_log_append_time(BATCH, 777))
    assert rebuild_batch(appended, codec=Codec.NONE) == appended


def test_rebuilding_keeps_control_and_delete_horizon() -> None:
    source = build_batch(RECORDS, delete_horizon_ms=900, control=True)
    assert rebuild_batch(source, codec=Codec.NONE) == source
