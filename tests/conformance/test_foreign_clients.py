"""Batches exchanged both ways with the record code of kafka-python and aiokafka.

aiokafka has it twice, in Cython and in Python; both take part.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import aiokafka.record.memory_records as aiokafka_memory
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varve.records import (
    Batch,
    Codec,
    Record,
    TimestampType,
    build_batch,
    edit_batch,
    end_transaction_marker,
    with_log_append_time,
)

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 has marked as deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records as kafka_records
    import kafka.record.memory_records as kafka_memory

# mypy sees two classes of one name, one compiled; what is called is the same.
BUILDERS: dict[str, Callable[..., Any]] = {
    "kafka-python": kafka_records.DefaultRecordBatchBuilder,
    "aiokafka": aiokafka_records.DefaultRecordBatchBuilder,
    "aiokafka-python": aiokafka_records._DefaultRecordBatchBuilderPy,
}
READERS: dict[str, Callable[..., Any]] = {
    "kafka-python": kafka_memory.MemoryRecords,
    "aiokafka": aiokafka_memory.MemoryRecords,
    "aiokafka-python": aiokafka_memory._MemoryRecordsPy,
}

builders = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
readers = pytest.mark.parametrize("read", READERS.values(), ids=READERS)
codecs = pytest.mark.parametrize("codec", list(Codec))

RECORDS = [
    Record(b"key", b"value " * 400, timestamp=1_700_000_000_000),
    Record(None, b"no key", timestamp=1_700_000_000_005),
    Record(b"tombstone", None, timestamp=1_699_999_999_000),
    Record(
        b"", b"", (("empty", b""), ("null", None), ("é", bytes(200))), timestamp=1_700_000_100_000
    ),
    Record(None, None, timestamp=1_700_000_000_000),
] * 40


def _build_foreign(
    build: Callable[..., Any], records: Sequence[Record], codec: Codec, **fields: int
) -> bytes:
    builder = build(
        magic=2,
        compression_type=int(codec),
        is_transactional=fields.get("transactional", 0),
        producer_id=fields.get("producer_id", -1),
        producer_epoch=fields.get("producer_epoch", -1),
        base_sequence=fields.get("base_sequence", -1),
        batch_size=1 << 30,
    )
    for offset, record in enumerate(records):
        assert builder.append(
            offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    return bytes(builder.build())


def _read_foreign(read: Callable[..., Any], data: bytes) -> tuple[Any, list[Record]]:
    memory = read(data)
    batch = memory.next_batch()
    assert batch.validate_crc()
    records = [
        Record(record.key, record.value, tuple(record.headers), record.timestamp, record.offset)
        for record in batch
    ]
    assert memory.next_batch() is None
    return batch, records


def _numbered(records: Sequence[Record], base_offset: int = 0) -> list[Record]:
    return [
        Record(record.key, record.value, record.headers, record.timestamp, base_offset + index)
        for index, record in enumerate(records)
    ]


@builders
@codecs
def test_foreign_batches_are_read(build: Callable[..., Any], codec: Codec) -> None:
    batch = Batch(_build_foreign(build, RECORDS, codec))
    assert batch.is_valid_crc()
    assert batch.header.codec is codec
    assert batch.records() == _numbered(RECORDS)
    assert batch.header.max_timestamp == 1_700_000_100_000


@builders
def test_plain_batches_are_equal_byte_for_byte(build: Callable[..., Any]) -> None:
    theirs = _build_foreign(
        build,
        RECORDS,
        Codec.NONE,
        transactional=1,
        producer_id=77,
        producer_epoch=3,
        base_sequence=9,
    )
    ours = build_batch(
        RECORDS,
        transactional=True,
        producer_id=77,
        producer_epoch=3,
        base_sequence=9,
        leader_epoch=_leader_epoch(theirs),
    )
    assert ours == theirs


def _leader_epoch(batch: bytes) -> int:
    """Clients leave 0 or -1 in a field that is the broker's to fill, outside the CRC."""
    return Batch(batch).header.partition_leader_epoch


@readers
@codecs
def test_our_batches_are_read_by_others(read: Callable[..., Any], codec: Codec) -> None:
    built = build_batch(
        RECORDS,
        base_offset=500,
        codec=codec,
        transactional=True,
        producer_id=77,
        producer_epoch=3,
        base_sequence=9,
    )
    batch, records = _read_foreign(read, built)
    assert records == _numbered(RECORDS, 500)
    assert batch.compression_type == codec
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 9)
    assert batch.next_offset == 500 + len(RECORDS)


@readers
@pytest.mark.parametrize(
    ("codec", "level"), [(Codec.GZIP, 9), (Codec.LZ4, 1), (Codec.LZ4, 17), (Codec.ZSTD, 19)]
)
def test_our_batches_of_other_levels_are_read_by_others(
    read: Callable[..., Any], codec: Codec, level: int
) -> None:
    _, records = _read_foreign(read, build_batch(RECORDS, codec=codec, level=level))
    assert records == _numbered(RECORDS)


@readers
def test_stamped_batches_are_read_by_others(read: Callable[..., Any]) -> None:
    stamped = with_log_append_time(
        edit_batch(build_batch(RECORDS), base_offset=10**12, leader_epoch=6), 1_800_000_000_000
    )
    batch, records = _read_foreign(read, bytes(stamped))
    assert batch.timestamp_type == TimestampType.LOG_APPEND_TIME
    assert {record.timestamp for record in records} == {1_800_000_000_000}
    assert [record.offset for record in records] == [
        10**12 + index for index in range(len(RECORDS))
    ]


@readers
@pytest.mark.parametrize("committed", [True, False])
def test_transaction_markers_are_control_batches_to_others(
    read: Callable[..., Any], committed: bool
) -> None:
    marker = end_transaction_marker(
        committed=committed, producer_id=5, producer_epoch=2, coordinator_epoch=8, timestamp=77
    )
    batch, records = _read_foreign(read, marker)
    assert batch.is_control_batch
    assert batch.is_transactional
    assert records[0].key == bytes([0, 0, 0, int(committed)])


@readers
def test_cleaned_batches_are_read_by_others(read: Callable[..., Any]) -> None:
    cleaned = build_batch(
        RECORDS[:2], base_offset=7, offset_deltas=[3, 8], last_offset_delta=11, codec=Codec.ZSTD
    )
    batch, records = _read_foreign(read, cleaned)
    assert [record.offset for record in records] == [10, 15]
    assert batch.next_offset == 19


cells = st.none() | st.binary(max_size=70) | st.sampled_from([63, 64, 8191, 8192]).map(bytes)
any_records = st.builds(
    Record,
    cells,
    cells,
    st.lists(st.tuples(st.text(max_size=5), cells), max_size=2).map(tuple),
    # Their builders take 0 for "no timestamp yet", and their varints end at 63 bits.
    st.integers(1, 2**62 - 1),
)


@settings(max_examples=50)
@given(st.lists(any_records, min_size=1, max_size=80))
def test_any_plain_batch_is_equal_byte_for_byte(records: list[Record]) -> None:
    for build in BUILDERS.values():
        theirs = _build_foreign(build, records, Codec.NONE)
        assert build_batch(records, leader_epoch=_leader_epoch(theirs)) == theirs


@settings(max_examples=50)
@given(st.lists(any_records, min_size=1, max_size=30), st.sampled_from(list(Codec)))
def test_any_batch_goes_both_ways(records: list[Record], codec: Codec) -> None:
    for build in BUILDERS.values():
        assert Batch(_build_foreign(build, records, codec)).records() == _numbered(records)
    ours = build_batch(records, codec=codec)
    for read in READERS.values():
        assert _read_foreign(read, ours)[1] == _numbered(records)
