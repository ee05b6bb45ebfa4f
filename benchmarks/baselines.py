"""Plain work that ours is measured against: files, checksums, client libraries.

Each function is the straightforward best a Python program can do without varve.
"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import crc32c
import google_crc32c
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder

from benchmarks.measure import Ticker

with warnings.catch_warnings():
    # kafka-python reads its schemas by a call that Python 3.11 calls outdated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

Candidate = TypeVar("Candidate")
Checksum = Callable[[bytes], int]
KeyedRecord = tuple[bytes, bytes]
BASE_TIMESTAMP_MS = 1_700_000_000_000
_TRIAL_COUNT = 9


class BatchBuilder(Protocol):
    """What the builders of aiokafka and kafka-python share."""

    def append(
        self, offset: int, timestamp: int, key: bytes, value: bytes, headers: list[object]
    ) -> object: ...

    def build(self) -> bytearray: ...


def time_call(call: Callable[[], object], ticker: Ticker) -> float:
    """Seconds one call takes."""
    start = ticker()
    call()
    return ticker() - start


def fastest(candidates: Sequence[Candidate], use: Callable[[Candidate], object]) -> Candidate:
    """The candidate whose best of several uses is shortest, here and now."""
    return min(
        candidates,
        key=lambda candidate: min(
            time_call(lambda: use(candidate), time.thread_time) for _ in range(_TRIAL_COUNT)
        ),
    )


def fastest_checksum(data: bytes) -> Checksum:
    """The quickest CRC32C among the C libraries for buffers like `data`."""
    candidates: list[Checksum] = [google_crc32c.value, crc32c.crc32c]
    return fastest(candidates, lambda checksum: checksum(data))


def write_with_checksum(
    path: str, batches: Sequence[bytes], checksum: Checksum, ticker: Ticker
) -> float:
    """Seconds to write the batches one by one to a new file, with the CRC32C of each."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    try:
        start = ticker()
        for batch in batches:
            checksum(batch)
            os.write(descriptor, batch)
        return ticker() - start
    finally:
        os.close(descriptor)
        os.remove(path)


def read_in_chunks(path: str, chunk_bytes: int, ticker: Ticker) -> float:
    """Seconds to read a file from start to end."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        start = ticker()
        while os.read(descriptor, chunk_bytes):
            pass
        return ticker() - start
    finally:
        os.close(descriptor)


def read_with_checksum(
    paths: Sequence[str], chunk_bytes: int, checksum: Checksum, ticker: Ticker
) -> float:
    """Seconds to read files from start to end with the CRC32C of every chunk."""
    start = ticker()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            while chunk := os.read(descriptor, chunk_bytes):
                checksum(chunk)
        finally:
            os.close(descriptor)
    return ticker() - start


def list_and_stat(directory: str, ticker: Ticker) -> float:
    """Seconds to list a directory and to stat every file in it."""
    start = ticker()
    with os.scandir(directory) as entries:
        for entry in entries:
            entry.stat()
    return ticker() - start


def new_aiokafka_builder() -> BatchBuilder:
    builder: BatchBuilder = AiokafkaBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    return builder


def new_kafka_python_builder() -> BatchBuilder:
    builder: BatchBuilder = KafkaPythonBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    return builder


def build_with_client(
    new_builder: Callable[[], BatchBuilder], records: Sequence[KeyedRecord]
) -> bytes:
    """One batch through a client library's builder, as its producer drives it."""
    builder = new_builder()
    append = builder.append
    for index, (key, value) in enumerate(records):
        append(index, BASE_TIMESTAMP_MS + index, key, value, [])
    return bytes(builder.build())


def fastest_client_builder(records: Sequence[KeyedRecord]) -> Callable[[], BatchBuilder]:
    candidates: list[Callable[[], BatchBuilder]] = [new_aiokafka_builder, new_kafka_python_builder]
    return fastest(candidates, lambda candidate: build_with_client(candidate, records))


def parse_with_kafka_python(data: bytes) -> int:
    """Reads every record of consecutive batches, CRC verified; gives the record count."""
    batches = KafkaPythonRecords(data)
    count = 0
    while batches.has_next():
        batch = batches.next_batch()
        if not batch.validate_crc():
            raise AssertionError("kafka-python finds a CRC that does not match")
        for _ in batch:
            count += 1
    return count
