"""What a log changes in a batch it was handed, and what it leaves."""

import pytest

from varve.foundation.errors import InvalidRequest
from varve.records import (
    Batch,
    Codec,
    Record,
    TimestampType,
    assign_offsets,
    build_batch,
    rebuild_batch,
    with_log_append_time,
    with_max_timestamp,
)

RECORDS = [Record(b"a", b"1", timestamp=5), Record(None, None, (("h", b"x"),), timestamp=9)]
BATCH = build_batch(
    RECORDS, producer_id=4, producer_epoch=2, base_sequence=7, transactional=True, leader_epoch=3
)


def test_assigned_offsets_leave_the_crc_valid() -> None:
    stamped = assign_offsets(BATCH, 1000, 8)
    header = Batch(stamped).header
    assert Batch(stamped).is_valid_crc()
    assert (header.base_offset, header.partition_leader_epoch) == (1000, 8)
    assert stamped[16:] == BATCH[16:]


def test_bytes_are_copied_and_a_bytearray_changed_in_place() -> None:
    own = bytearray(BATCH)
    assert assign_offsets(own, 5, 0) is own
    assert Batch(BATCH).header.base_offset == 0


@pytest.mark.parametrize(("offset", "epoch"), [(-1, 0), (2**63 - 1, 0), (0, 2**31)])
def test_offsets_and_epochs_that_do_not_fit_are_refused(offset: int, epoch: int) -> None:
    own = bytearray(BATCH)
    with pytest.raises(InvalidRequest):
        assign_offsets(own, offset, epoch)
    assert own == BATCH


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


def test_rebuilding_into_create_time_takes_the_append_time_for_every_record() -> None:
    appended = with_log_append_time(BATCH, 777)
    batch = Batch(
        rebuild_batch(appended, codec=Codec.NONE, timestamp_type=TimestampType.CREATE_TIME)
    )
    assert batch.columns_as_sent().timestamps.tolist() == [777, 777]


def test_rebuilding_keeps_control_and_delete_horizon() -> None:
    source = build_batch(RECORDS, delete_horizon_ms=900, control=True)
    assert rebuild_batch(source, codec=Codec.NONE) == source
