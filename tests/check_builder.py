"""A log directory with everything a check looks at, built by the engine in memory."""

import random
from uuid import UUID

from varve.commit_log import LogDirectory, LogSettings, SegmentFiles, StoreSettings, TopicPartition
from varve.commit_log.log import Log
from varve.disk import FileSystem, MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.records import Codec, Record, build_batch

ROOT = "/store/data"
ORDERS = TopicPartition("orders", 0)
SETTINGS = LogSettings(segment_bytes=2400, index_interval_bytes=200)
TOPIC_ID = UUID("12345678-1234-4234-8234-123456789abc")
CODECS = (Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY)


def open_directory(fs: FileSystem, clock: ManualClock) -> LogDirectory:
    directory = LogDirectory(
        ROOT,
        files=SegmentFiles(fs),
        settings=StoreSettings(),
        topic_settings=lambda topic: SETTINGS,
        clock=clock,
        random=random.Random(7),
    )
    directory.open()
    return directory


def fill(log: Log, clock: ManualClock, *, rounds: int = 8, leader_epoch: int = 0) -> None:
    """Plain, idempotent and transactional batches; every third transaction is aborted."""
    start = log.end_offset
    for number in range(rounds):
        clock.advance(10)
        codec = CODECS[number % len(CODECS)]
        records = [
            Record(key=b"k%d" % n, value=b"value %d " % n * 8, timestamp=clock.now_ms() + n)
            for n in range(3)
        ]
        log.append(build_batch(records, codec=codec), leader_epoch=leader_epoch)
        idempotent = build_batch(
            records[:2], producer_id=5, producer_epoch=0, base_sequence=_sequence(log, 5)
        )
        log.append(idempotent, leader_epoch=leader_epoch)
        open_one = build_batch(
            records[:1],
            producer_id=9,
            producer_epoch=1,
            base_sequence=_sequence(log, 9),
            transactional=True,
        )
        log.append(open_one, leader_epoch=leader_epoch)
        if number % 2:
            log.end_transaction(
                producer_id=9,
                producer_epoch=1,
                committed=number % 3 != 0,
                leader_epoch=leader_epoch,
            )
    assert log.end_offset > start


def _sequence(log: Log, producer_id: int) -> int:
    entry = log.producers.entries.get(producer_id)
    return 0 if entry is None else entry.last_sequence + 1


def build_store(*, is_closed: bool = True, partitions: int = 1) -> tuple[FileSystem, ManualClock]:
    """A store of some segments in two leader epochs, stopped in good order or not."""
    clock = ManualClock()
    fs = MemoryFileSystem(clock)
    directory = open_directory(fs, clock)
    for number in range(partitions):
        log = directory.create(TopicPartition("orders", number), TOPIC_ID)
        fill(log, clock)
        fill(log, clock, leader_epoch=3)
    directory.write_checkpoints()
    if is_closed:
        directory.close()
    else:
        directory.abandon()
    return fs, clock


def write_file(fs: FileSystem, path: str, data: bytes) -> None:
    with fs.open_writable(path) as file:
        file.truncate(0)
        file.write_at(0, data)


def flip(fs: FileSystem, path: str, position: int, mask: int = 0x40) -> None:
    data = bytearray(fs.read(path))
    data[position] ^= mask
    write_file(fs, path, bytes(data))
