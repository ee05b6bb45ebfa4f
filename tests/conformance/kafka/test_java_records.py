"""Kafka's record code reads the batches varve builds, and judges broken ones as varve does."""

import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from tests.conformance.tools.shell import JavaShell, from_text, records_of, to_text
from varve.foundation.errors import StoreError
from varve.kernels.crc import crc32c
from varve.records import (
    Batch,
    Codec,
    Record,
    TimestampType,
    build_batch,
    decode_control_record,
    empty_batch,
    end_transaction_marker,
)

pytestmark = pytest.mark.java

NOW_MS = 1_700_000_000_000
MUTATIONS_PER_BATCH = 400
# Kafka reads snappy streams of a version below 1 too; varve refuses them.
SNAPPY_VERSION = range(69, 73)


def _edge_records() -> list[Record]:
    return [
        Record(None, None, timestamp=NOW_MS),
        Record(b"", b"", timestamp=NOW_MS - 5_000_000_000),
        Record(b"key", None, timestamp=0),
        Record(None, b"value", timestamp=NOW_MS + 2**40),
        Record(b"\x00\xff", bytes(range(256)) * 3, timestamp=NOW_MS),
        Record(
            b"headers",
            b"v",
            (("a", b"1"), ("a", None), ("", b""), ("ключ ✓", b"\xff" * 200)),
            timestamp=NOW_MS,
        ),
    ]


def _many_records() -> list[Record]:
    return [
        Record(b"key %d" % (number % 7), b"value %d " % number * 30, timestamp=NOW_MS + number)
        for number in range(400)
    ]


def _large_records(codec: Codec) -> list[Record]:
    noise = random.Random(int(codec)).randbytes(150_000)
    return [Record(b"noise", noise), Record(b"plain", b"many blocks " * 30_000)]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("level", [None, 1, 9])
def test_kafka_reads_the_records_of_our_batches(
    kafka_log: JavaShell, codec: Codec, level: int | None
) -> None:
    chosen = level if codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD) else None
    for records in (_edge_records(), _many_records(), _large_records(codec)):
        batch = build_batch(
            records,
            base_offset=1_000,
            codec=codec,
            level=chosen,
            leader_epoch=7,
            producer_id=2**40,
            producer_epoch=3,
            base_sequence=2**31 - 3,
            transactional=True,
        )
        answer = kafka_log.call("parse", batch=to_text(batch))
        assert records_of(answer) == [
            Record(r.key, r.value, r.headers, r.timestamp, 1_000 + number)
            for number, r in enumerate(records)
        ]


def test_kafka_reads_log_append_time_of_our_batches(kafka_log: JavaShell) -> None:
    batch = build_batch(
        _edge_records(),
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        log_append_time=NOW_MS + 99,
    )
    answer = kafka_log.call("parse", batch=to_text(batch))
    assert {row["timestamp_type"] for row in answer["records"]} == {"LogAppendTime"}
    assert {row["timestamp"] for row in answer["records"]} == {NOW_MS + 99}


@pytest.mark.parametrize("committed", [True, False])
def test_kafka_reads_our_transaction_markers(kafka_log: JavaShell, committed: bool) -> None:
    marker = end_transaction_marker(
        committed=committed,
        producer_id=9,
        producer_epoch=1,
        coordinator_epoch=7,
        timestamp=NOW_MS,
        base_offset=5,
    )
    (row,) = kafka_log.call("parse", batch=to_text(marker))["records"]
    assert row["control"] is True
    key = from_text(row["key"])
    assert key is not None
    assert decode_control_record(key, from_text(row["value"])).coordinator_epoch == 7


def test_kafka_reads_our_emptied_batches(kafka_log: JavaShell) -> None:
    original = Batch(build_batch(_many_records(), codec=Codec.ZSTD, producer_id=1)).header
    answer = kafka_log.call("parse", batch=to_text(empty_batch(original)))
    assert (answer["batches"], answer["records"]) == (1, [])


@pytest.mark.parametrize("codec", Codec)
def test_broken_batches_with_a_right_checksum_are_judged_as_kafka_judges_them(
    kafka_log: JavaShell, codec: Codec
) -> None:
    disagreements = []
    for mutated in _mutations(codec):
        ours, theirs = _our_verdict(mutated), _kafka_verdict(kafka_log, mutated)
        if ours != theirs:
            disagreements.append((mutated.hex(), ours, theirs))
    assert disagreements == []


def _mutations(codec: Codec) -> Iterator[bytes]:
    """Batches with single bytes of the records area or the header's count changed."""
    chance = random.Random(int(codec))
    batch = build_batch(_edge_records(), codec=codec)
    spared = SNAPPY_VERSION if codec is Codec.SNAPPY else ()
    positions = [position for position in range(57, len(batch)) if position not in spared]
    for _ in range(MUTATIONS_PER_BATCH):
        changed = bytearray(batch)
        for _ in range(chance.randint(1, 2)):
            changed[chance.choice(positions)] = chance.randrange(256)
        if chance.random() < 0.2:
            del changed[chance.randrange(61, len(changed)) :]
            struct.pack_into(">i", changed, 8, len(changed) - 12)
        buffer = np.frombuffer(changed, np.uint8)
        struct.pack_into(">I", changed, 17, int(crc32c(buffer, 21, len(changed))))
        yield bytes(changed)


def _our_verdict(batch: bytes) -> list[Record] | str:
    try:
        return Batch(batch).records()
    except StoreError:
        return "refused"


def _kafka_verdict(kafka_log: JavaShell, batch: bytes) -> list[Record] | str:
    answer = kafka_log.try_call("parse", batch=to_text(batch))
    return "refused" if "error" in answer else records_of(answer)
