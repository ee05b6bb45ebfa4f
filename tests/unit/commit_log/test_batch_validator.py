"""What a leader demands of a batch: offsets, records, timestamps, sizes, codecs."""

from struct import pack_into
from typing import Any

import numpy as np
import pytest
import zstandard

from tests.support.log_bench import NOW_MS, make_batch, make_marker
from varve.commit_log import AppendOrigin, LogSettings
from varve.commit_log.batch_validator import BatchValidator, ValidatedBatch
from varve.foundation.errors import (
    Corrupt,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedFormat,
)
from varve.kernels.crc import crc32c
from varve.records import (
    DECOMPRESSED_BYTES_MAX,
    Batch,
    Codec,
    Record,
    TimestampType,
    build_batch,
    compress,
    decompress,
)

CODECS = list(Codec)
DAY_MS = 86_400_000


def check(
    data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT, **settings: Any
) -> ValidatedBatch:
    return BatchValidator(LogSettings(**settings), "topic-0").check(data, origin, NOW_MS)


def stored(data: bytes, **settings: Any) -> Batch:
    return Batch(bytes(check(data, **settings).data))


def patched(data: bytes, position: int, layout: str, value: int) -> bytes:
    """The batch with one header field changed and its CRC put right."""
    changed = bytearray(data)
    pack_into(layout, changed, position, value)
    pack_into(">I", changed, 17, crc32c(np.frombuffer(changed, np.uint8), 21, len(changed)))
    return bytes(changed)


def test_a_client_batch_must_have_base_offset_0() -> None:
    with pytest.raises(InvalidRecord, match="base offset 0, this one has 5"):
        check(make_batch(base_offset=5))


@pytest.mark.parametrize("count", [0, -1, 2, 4])
def test_the_record_count_must_equal_the_offset_span(count: int) -> None:
    with pytest.raises(InvalidRecord, match="record"):
        check(patched(make_batch(3), 57, ">i", count))


@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda codec: codec.name)
@pytest.mark.parametrize("zstd_size_is_known", [True, False])
def test_content_beyond_its_limit_is_refused(codec: Codec, zstd_size_is_known: bool) -> None:
    record = Record(b"k", bytes(3_000_000), timestamp=NOW_MS)
    batch = build_batch([record], codec=codec)
    if codec is Codec.ZSTD and not zstd_size_is_known:
        content = decompress(codec, batch[61:]).tobytes()
        frame = zstandard.ZstdCompressor(write_content_size=False).compress(content)
        batch = patched(batch[:61] + frame, 8, ">i", 61 + len(frame) - 12)
    check(batch, varve_batch_content_max_bytes=3_100_000)
    with pytest.raises(RecordTooLarge, match=r"varve\.batch\.content\.max\.bytes"):
        check(batch, varve_batch_content_max_bytes=2_999_999)
    check(batch, varve_batch_content_max_bytes=0, max_message_bytes=3_100_000)


def is_quick(batch: bytes, **settings: Any) -> bool:
    validator = BatchValidator(LogSettings(**settings), "topic-0")
    found = validator.check_if_quick(batch, AppendOrigin.CLIENT, NOW_MS)
    if found is not None:
        assert bytes(found.data) == bytes(check(batch, **settings).data)
    return found is not None


@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda codec: codec.name)
def test_a_check_is_quick_unless_a_batch_unpacks_to_much_or_is_rebuilt(codec: Codec) -> None:
    usual = build_batch(
        [Record(b"%d" % number, b"some value " * 9, timestamp=NOW_MS) for number in range(500)],
        codec=codec,
    )
    assert is_quick(usual)
    assert is_quick(usual, compression_type=codec.name.lower())
    assert not is_quick(usual, compression_type="uncompressed")
    assert not is_quick(build_batch([Record(b"k", bytes(3_000_000))], codec=codec))
    if codec in (Codec.GZIP, Codec.ZSTD):  # with the others tiny records take some bytes each
        assert not is_quick(build_batch([Record(b"", b"")] * 50_000, codec=codec))
    other = Codec.ZSTD if codec is Codec.GZIP else Codec.GZIP
    assert not is_quick(usual, compression_type=other.name.lower())


def test_content_that_no_reader_would_unpack_is_refused() -> None:
    batch = build_batch([Record(b"k", b"v", timestamp=NOW_MS)], codec=Codec.ZSTD)
    frame = zstandard.ZstdCompressor().compress(bytes(DECOMPRESSED_BYTES_MAX + 1))
    bomb = patched(batch[:61] + frame, 8, ">i", 49 + len(frame))
    with pytest.raises(RecordTooLarge, match=r"268435457 bytes.*send smaller batches"):
        check(bomb, max_message_bytes=2 * DECOMPRESSED_BYTES_MAX)


@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda codec: codec.name)
def test_a_compressed_batch_has_at_most_so_many_records(codec: Codec) -> None:
    batch = make_batch(5, codec=codec)
    check(batch, varve_batch_records_max=5)
    with pytest.raises(RecordTooLarge, match=r"5 records exceeds varve\.batch\.records\.max = 4"):
        check(batch, varve_batch_records_max=4)


@pytest.mark.parametrize("origin", list(AppendOrigin))
@pytest.mark.parametrize("delta", [-10, -1, 0, 1, 3, 2**31 - 1])
def test_the_offset_span_must_equal_the_record_count(delta: int, origin: AppendOrigin) -> None:
    with pytest.raises(InvalidRecord, match="span"):
        check(patched(make_batch(3), 23, ">i", delta), origin)


def test_a_client_may_not_write_control_batches() -> None:
    with pytest.raises(InvalidRecord, match="control"):
        check(make_marker(committed=True))


def test_a_coordinator_may_write_control_batches() -> None:
    checked = check(make_marker(committed=False), AppendOrigin.COORDINATOR)
    assert checked.marker is not None
    assert not checked.marker.committed


def test_a_marker_is_never_compressed() -> None:
    data = make_marker(committed=True)
    assert bytes(check(data, AppendOrigin.COORDINATOR, compression_type="zstd").data) == data


def test_a_marker_in_a_log_append_time_topic_is_stamped() -> None:
    checked = check(
        patched(make_marker(committed=True), 35, ">q", 5),
        AppendOrigin.COORDINATOR,
        message_timestamp_type="LogAppendTime",
    )
    header = Batch(bytes(checked.data)).header
    assert (header.max_timestamp, header.timestamp_type) == (NOW_MS, TimestampType.LOG_APPEND_TIME)
    assert checked.max_timestamp == NOW_MS


def test_a_producer_id_needs_a_sequence() -> None:
    with pytest.raises(InvalidRecord, match="base sequence -1"):
        check(make_batch(producer_id=7, producer_epoch=0, base_sequence=-1))


def test_several_batches_in_one_append_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="exactly one batch"):
        check(make_batch() + make_batch())


def test_an_empty_append_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="no batch"):
        check(b"")


def test_a_wrong_crc_is_refused() -> None:
    data = bytearray(make_batch())
    data[-1] ^= 1
    with pytest.raises(Corrupt, match="CRC"):
        check(bytes(data))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused_with_a_remedy(magic: int) -> None:
    data = bytearray(make_batch())
    data[16] = magic
    with pytest.raises(UnsupportedFormat, match="format 2"):
        check(bytes(data))


def test_a_torn_batch_is_refused() -> None:
    with pytest.raises(Corrupt):
        check(make_batch()[:-1])


@pytest.mark.parametrize("number", [5, 6, 7])
def test_an_unknown_codec_is_refused(number: int) -> None:
    with pytest.raises(InvalidRecord, match=f"codec number {number}"):
        check(patched(make_batch(), 21, ">h", number))


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_do_not_parse_are_refused(codec: Codec) -> None:
    with pytest.raises(InvalidRecord):
        check(patched(patched(make_batch(2, codec=codec), 57, ">i", 3), 23, ">i", 2))


# Sizes


def test_a_batch_as_large_as_max_message_bytes_is_taken() -> None:
    data = make_batch()
    assert bytes(check(data, max_message_bytes=len(data)).data) == data


@pytest.mark.parametrize("origin", [AppendOrigin.CLIENT, AppendOrigin.COORDINATOR])
def test_a_batch_above_max_message_bytes_is_refused(origin: AppendOrigin) -> None:
    data = make_batch()
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        check(data, origin, max_message_bytes=len(data) - 1)


def test_max_message_bytes_holds_after_recompression_too() -> None:
    data = make_batch(100, value=bytes(100), codec=Codec.GZIP)
    with pytest.raises(RecordTooLarge, match="stored as none"):
        check(data, max_message_bytes=len(data), compression_type="uncompressed")


# Timestamps


def test_create_time_takes_any_timestamp_by_default() -> None:
    for time in (-NOW_MS, 10 * 365 * DAY_MS):
        assert check(make_batch(time=time)).max_timestamp == NOW_MS + time


@pytest.mark.parametrize("codec", CODECS)
def test_a_timestamp_too_old_is_refused(codec: Codec) -> None:
    bounds: dict[str, Any] = {"message_timestamp_before_max_ms": 1000}
    check(make_batch(time=-1000, codec=codec), **bounds)
    with pytest.raises(InvalidTimestamp, match="before"):
        check(make_batch(time=-1001, codec=codec), **bounds)


@pytest.mark.parametrize("codec", CODECS)
def test_a_timestamp_too_far_ahead_is_refused(codec: Codec) -> None:
    bounds: dict[str, Any] = {"message_timestamp_after_max_ms": 1000}
    check(make_batch(time=1000, codec=codec), **bounds)
    with pytest.raises(InvalidTimestamp, match="after"):
        check(make_batch(time=1001, codec=codec), **bounds)


def test_every_record_of_the_batch_is_within_bounds() -> None:
    old_among_new = [Record(b"k", b"v", timestamp=t) for t in (NOW_MS, NOW_MS - 2000, NOW_MS)]
    with pytest.raises(InvalidTimestamp):
        check(build_batch(old_among_new), message_timestamp_before_max_ms=1000)


def test_records_without_a_timestamp_meet_every_bound() -> None:
    bounds: dict[str, Any] = {
        "message_timestamp_before_max_ms": 0,
        "message_timestamp_after_max_ms": 0,
    }
    assert check(make_batch(time=-1), **bounds).max_timestamp == -1


@pytest.mark.parametrize("codec", CODECS)
def test_the_max_timestamp_is_set_to_the_records_real_one(codec: Codec) -> None:
    lying = patched(make_batch(3, codec=codec), 35, ">q", NOW_MS + DAY_MS)
    batch = stored(lying)
    assert batch.header.max_timestamp == NOW_MS
    assert batch.is_valid_crc()


def test_the_max_timestamp_is_none_when_no_record_has_one() -> None:
    batch = stored(patched(make_batch(time=-1), 35, ">q", NOW_MS))
    assert batch.header.max_timestamp == -1
    assert batch.is_valid_crc()


def test_create_time_refuses_a_log_append_time_batch_without_a_time() -> None:
    flagged = patched(patched(make_batch(), 21, ">h", 8), 35, ">q", -1)
    with pytest.raises(InvalidTimestamp):
        check(flagged)


def test_create_time_bounds_a_log_append_time_batch_by_its_own_time() -> None:
    flagged = patched(patched(make_batch(), 21, ">h", 8), 35, ">q", NOW_MS - 5000)
    with pytest.raises(InvalidTimestamp, match="before"):
        check(flagged, message_timestamp_before_max_ms=1000)


def test_create_time_stores_a_log_append_time_batch_as_create_time() -> None:
    batch = stored(patched(make_batch(), 21, ">h", 8))
    assert batch.header.timestamp_type is TimestampType.CREATE_TIME
    assert batch.is_valid_crc()


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_sets_the_flag_and_the_time(codec: Codec) -> None:
    data = make_batch(3, time=-5000, codec=codec)
    batch = stored(data, message_timestamp_type="LogAppendTime")
    header = batch.header
    assert (header.max_timestamp, header.timestamp_type) == (NOW_MS, TimestampType.LOG_APPEND_TIME)
    assert header.base_timestamp == Batch(data).header.base_timestamp
    assert batch.is_valid_crc()
    assert {record.timestamp for record in batch.records()} == {NOW_MS}


def test_log_append_time_ignores_the_bounds() -> None:
    check(
        make_batch(time=-DAY_MS),
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms=1,
    )


def test_log_append_time_refuses_a_batch_that_claims_it() -> None:
    with pytest.raises(InvalidTimestamp, match="LogAppendTime"):
        check(patched(make_batch(), 21, ">h", 8), message_timestamp_type="LogAppendTime")


# Keys


@pytest.mark.parametrize("policy", [("compact",), ("compact", "delete")])
@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_topic_demands_keys(policy: tuple[str, ...], codec: Codec) -> None:
    with pytest.raises(InvalidRecord, match="record 0 of the batch has no key"):
        check(make_batch(key=None, codec=codec), cleanup_policy=policy)


def test_an_empty_key_is_a_key() -> None:
    check(make_batch(key=b""), cleanup_policy=("compact",))


def test_keys_are_optional_elsewhere() -> None:
    check(make_batch(key=None))


def test_a_timestamp_error_outranks_a_missing_key() -> None:
    with pytest.raises(InvalidTimestamp):
        check(
            make_batch(key=None, time=-5000),
            cleanup_policy=("compact",),
            message_timestamp_before_max_ms=1000,
        )


# Codecs


@pytest.mark.parametrize("codec", CODECS)
def test_compression_type_producer_keeps_the_bytes(codec: Codec) -> None:
    data = make_batch(10, codec=codec)
    assert bytes(check(data).data) == data


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_stored_with_the_topics_codec(source: Codec, target: str) -> None:
    records = [
        Record(b"k%d" % i, None if i % 3 else b"v" * i, (("h", b"x"),), NOW_MS + i)
        for i in range(9)
    ]
    data = build_batch(records, codec=source, producer_id=4, producer_epoch=1, base_sequence=2)
    batch = stored(data, compression_type=target)
    expected = Codec.NONE if target == "uncompressed" else Codec[target.upper()]
    assert batch.header.codec is expected
    assert batch.is_valid_crc()
    assert batch.records() == Batch(data).records()
    header, sent = batch.header, Batch(data).header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 2)
    assert header.max_timestamp == sent.max_timestamp
    if source is expected:
        assert bytes(check(data, compression_type=target).data) == data


def test_compressed_records_with_gaps_in_their_offsets_are_renumbered() -> None:
    plain = make_batch(3)
    payload = bytearray(plain[61:])
    payload[len(payload) // 3 + 3] = 8  # the second record's offset delta, zig-zag for 4
    packed = compress(Codec.GZIP, bytes(payload))
    sized = plain[:8] + (49 + len(packed)).to_bytes(4, "big") + plain[12:61] + packed
    gapped = patched(sized, 21, ">h", Codec.GZIP)
    assert [record.offset for record in Batch(gapped).records()] == [0, 4, 2]
    batch = stored(gapped)
    assert [record.offset for record in batch.records()] == [0, 1, 2]
    assert (batch.header.codec, batch.header.last_offset_delta) == (Codec.GZIP, 2)
    assert batch.is_valid_crc()
