"""A filtered batch keeps its survivors as they were, and the header fields Kafka keeps."""

from collections.abc import Iterable

import numpy as np
import pytest

from varve.kernels.batch_filter import KEEP_TIMESTAMP, Action, FilterStatus, rewrite_batches
from varve.kernels.batch_layout import HEADER_BYTES
from varve.records import Batch, Codec, Record, TimestampType, build_batch, empty_batch

BASE = 500


def _records(count: int = 20) -> list[Record]:
    return [
        Record(
            key=b"key-%d" % number,
            value=None if number % 7 == 3 else b"v" * number,
            headers=(("h", b"x"),) if number % 2 else (),
            timestamp=1000 + 40 * number,
        )
        for number in range(count)
    ]


def _rewrite(
    data: bytes,
    kept: Iterable[int],
    *,
    action: Action = Action.FILTER,
    horizon: int = KEEP_TIMESTAMP,
    room: int = 1 << 16,
    count: int | None = None,
) -> tuple[int, bytes]:
    """The batch rewritten as if it began at position 100 and its records at bit 5."""
    header = Batch(data).header
    keep = np.zeros(16, np.uint8)
    for number in kept:
        keep[(number + 5) >> 3] |= 1 << ((number + 5) & 7)
    out = np.zeros(room, np.uint8)
    records = header.records_count if count is None else count
    status, _, end = rewrite_batches(
        np.frombuffer(data, np.uint8),
        100,
        np.array([100], np.int64),
        np.array([len(data)], np.int64),
        np.array([header.base_offset], np.int64),
        np.array([records], np.int64),
        np.array([5], np.int64),
        np.array([action], np.uint8),
        np.array([horizon], np.int64),
        keep,
        0,
        1,
        out,
        0,
    )
    return status, out[:end].tobytes()


def _build(**fields: object) -> bytes:
    return build_batch(_records(), base_offset=BASE, leader_epoch=4, **fields)  # type: ignore[arg-type]  # plain fields


@pytest.mark.parametrize("kept", [(0,), (19,), (0, 1, 2), (5, 6, 9, 10, 11, 18), tuple(range(20))])
def test_survivors_keep_offset_time_key_value_and_headers(kept: tuple[int, ...]) -> None:
    data = _build()
    status, made = _rewrite(data, kept)
    assert status == FilterStatus.DONE
    batch, before = Batch(made), Batch(data)
    assert batch.is_valid_crc()
    assert batch.records() == [before.records()[number] for number in kept]
    assert batch.header.last_offset == before.header.last_offset
    assert batch.header.base_offset == BASE
    assert batch.header.base_timestamp == 1000 + 40 * kept[0]
    assert batch.header.max_timestamp == 1000 + 40 * kept[-1]


def test_producer_sequence_and_epoch_are_kept() -> None:
    data = _build(producer_id=9, producer_epoch=2, base_sequence=77, transactional=True)
    _, made = _rewrite(data, (4, 5))
    header = Batch(made).header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 77)
    assert header.is_transactional
    assert header.partition_leader_epoch == 4


def test_a_new_horizon_is_the_base_timestamp_and_times_stay() -> None:
    data = _build()
    _, made = _rewrite(data, (3, 4), horizon=10**12)
    batch = Batch(made)
    assert batch.header.delete_horizon_ms == 10**12
    assert [record.timestamp for record in batch.records()] == [1120, 1160]
    _, again = _rewrite(made, (0,))
    assert Batch(again).header.delete_horizon_ms == 10**12
    assert [record.timestamp for record in Batch(again).records()] == [1120]


def test_log_append_time_is_kept_for_batch_and_records() -> None:
    data = _build(timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=5000)
    _, made = _rewrite(data, (2, 3))
    header = Batch(made).header
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert (header.base_timestamp, header.max_timestamp) == (5000, 5000)
    assert {record.timestamp for record in Batch(made).records()} == {5000}


def test_a_copied_batch_is_the_same_bytes() -> None:
    data = _build(codec=Codec.ZSTD)
    assert _rewrite(data, (), action=Action.COPY) == (FilterStatus.DONE, data)


def test_a_skipped_batch_leaves_nothing() -> None:
    assert _rewrite(_build(), (), action=Action.SKIP) == (FilterStatus.DONE, b"")


def test_a_shell_is_the_empty_batch_kafka_writes() -> None:
    data = _build(producer_id=9, producer_epoch=2, base_sequence=77, codec=Codec.GZIP)
    status, made = _rewrite(data, (), action=Action.KEEP_HEADER)
    assert status == FilterStatus.DONE
    assert made == empty_batch(Batch(data).header)
    assert _rewrite(made, (), action=Action.KEEP_HEADER) == (FilterStatus.DONE, made)


def test_a_compressed_batch_is_left_to_the_caller() -> None:
    assert _rewrite(_build(codec=Codec.LZ4), (1,)) == (FilterStatus.COMPRESSED, b"")


def test_an_output_without_room_asks_for_more() -> None:
    data = _build()
    assert _rewrite(data, (1,), room=len(data)) == (FilterStatus.FULL, b"")
    assert _rewrite(data, (), room=len(data) - 1, action=Action.COPY) == (FilterStatus.FULL, b"")
    assert (
        _rewrite(data, (), room=HEADER_BYTES - 1, action=Action.KEEP_HEADER)[0] == FilterStatus.FULL
    )


def test_damage_is_found_before_anything_is_copied() -> None:
    data = bytearray(_build())
    data[-1] ^= 1
    for action in (Action.COPY, Action.FILTER, Action.KEEP_HEADER):
        assert _rewrite(bytes(data), (1,), action=action) == (FilterStatus.BAD_CRC, b"")


def test_another_batch_than_the_one_planned_is_noticed() -> None:
    assert _rewrite(_build(), (1,), count=19) == (FilterStatus.MISMATCH, b"")


def test_ranges_outside_the_buffers_are_refused() -> None:
    data = _build()
    one = np.zeros(1, np.int64)
    with pytest.raises(IndexError):
        rewrite_batches(
            np.frombuffer(data, np.uint8)[:-1],
            0,
            one,
            one + len(data),
            one + BASE,
            one + 20,
            one,
            np.array([Action.COPY], np.uint8),
            one,
            np.zeros(8, np.uint8),
            0,
            1,
            np.zeros(1 << 12, np.uint8),
            0,
        )
