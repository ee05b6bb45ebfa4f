"""Stores with one compacted partition of keyed records: made once per case, copied per figure.

Invariant  exactly the asked share of a log's records has a key of its own; which record has which
           key, and what its value holds, is the same in every run.
"""

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
import numpy.typing as npt

from benchmarks.baselines import BASE_TIMESTAMP_MS
from benchmarks.generators import KEY_BYTES, records_per_batch
from benchmarks.hot_log.logs import UnsyncedFileSystem
from benchmarks.measure import Scale
from benchmarks.sizes import format_bytes
from varve.commit_log import Log, LogManager, LogSettings, TopicPartition
from varve.commit_log.names import KEYS, LOG
from varve.commit_log.segment_reader import BatchWalk
from varve.disk import FileSystem, RealFileSystem
from varve.foundation.clock import SystemClock
from varve.kernels.batch_layout import BatchColumn
from varve.records import BinaryColumn, Codec, build_batch_from_columns

PARTITION = TopicPartition("benchmark", 0)
TOPIC_ID = UUID(int=0x766172766562656E63686D61726B3033)
_RECORD_OVERHEAD_BYTES = 12
_POOL_BYTES = 8 << 20
_SEED = 3
_COMPRESSED_REPEAT_COUNT_MAX = 3
_TEMPLATE = b'{"type":"account.updated","currency":"EUR","status":"active","reference":"'

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogShape:
    """What a log's records look like; `record_bytes` are those of the value, keys have 16."""

    record_bytes: int
    codec: Codec
    batch_bytes: int
    unique_share: float
    segment_bytes: int

    def __str__(self) -> str:
        codec, batch = self.codec.name.lower(), format_bytes(self.batch_bytes)
        return f"{format_bytes(self.record_bytes)} {codec} in {batch}"

    def count_records(self, size: int) -> int:
        """How many records have that many bytes before compression."""
        return max(1, size // (self.record_bytes + KEY_BYTES + _RECORD_OVERHEAD_BYTES))

    def settings(self) -> LogSettings:
        return LogSettings(cleanup_policy=("compact",), segment_bytes=self.segment_bytes)


def shapes_of(scale: Scale) -> list[LogShape]:
    """Every record size with every codec and batch size that was asked for."""
    return [
        LogShape(record_bytes, codec, batch_bytes, scale.unique_share, scale.segment_bytes)
        for batch_bytes in scale.batch_bytes
        for codec in scale.codecs
        for record_bytes in scale.record_bytes
    ]


def few_shapes_of(scale: Scale) -> list[LogShape]:
    """`shapes_of`, but only the first in a quick run."""
    return shapes_of(scale)[: 1 if scale.is_quick else None]


def repeats_for(shape: LogShape) -> int | None:
    """Compression takes most of a figure's time and varies little: fewer repeats will do."""
    return None if shape.codec is Codec.NONE else _COMPRESSED_REPEAT_COUNT_MAX


@dataclass(frozen=True, slots=True)
class KeyedStore:
    """A closed store on disk, its one partition in closed segments behind an empty active one."""

    directory: Path
    shape: LogShape
    record_count: int
    key_count: int
    end_offset: int
    size: int
    """Bytes of its records before compression, headers of batches left out."""

    @property
    def now_ms(self) -> int:
        """A moment after the last record was written."""
        return BASE_TIMESTAMP_MS + self.record_count + 86_400_000


def write_store(directory: Path, shape: LogShape, size: int) -> KeyedStore:
    """A new store with about `size` bytes of records, none of them cleaned."""
    record_count = shape.count_records(size)
    key_count = max(1, round(record_count * shape.unique_share))
    with open_store(directory, shape, UnsyncedFileSystem()) as store:
        log = store.create(PARTITION, TOPIC_ID)
        append_records(log, shape, spread_keys(record_count, key_count), BASE_TIMESTAMP_MS)
        log.roll()
        end_offset = log.end_offset
    return KeyedStore(directory, shape, record_count, key_count, end_offset, size)


def open_store(
    directory: Path, shape: LogShape, file_system: FileSystem | None = None
) -> LogManager:
    """The store of a directory, which is made if it is missing; `open` it or use it in `with`."""
    compacted, plain = shape.settings(), LogSettings()
    return LogManager(
        [str(directory)],
        fs=file_system or RealFileSystem(),
        clock=SystemClock(),
        random=random.Random(_SEED),
        topic_settings=lambda topic: compacted if topic == PARTITION.topic else plain,
    )


def spread_keys(record_count: int, key_count: int) -> Integers:
    """The key of each record: every key once, the rest anywhere among them, in random order."""
    source = np.random.default_rng(_SEED)
    repeated = source.integers(0, key_count, record_count - key_count)
    keys = np.concatenate([np.arange(key_count), repeated])
    source.shuffle(keys)
    return keys


def append_records(log: Log, shape: LogShape, keys: Integers, first_timestamp: int) -> None:
    """Appends a record for each key, in batches of the shape's size."""
    per_batch = records_per_batch(value_bytes=shape.record_bytes, batch_bytes=shape.batch_bytes)
    for batch in _batches(shape, keys, per_batch, first_timestamp):
        log.append(batch)


def _batches(
    shape: LogShape, keys: Integers, per_batch: int, first_timestamp: int
) -> Iterator[bytes]:
    pool = _value_pool(shape.record_bytes)
    key_starts = np.arange(per_batch, dtype=np.int64) * KEY_BYTES
    for start in range(0, len(keys), per_batch):
        chosen = keys[start : start + per_batch]
        count = len(chosen)
        row = np.arange(start, start + count) % len(pool)
        yield build_batch_from_columns(
            BinaryColumn.at(
                encode_keys(chosen).tobytes(),
                starts=key_starts[:count],
                sizes=np.full(count, KEY_BYTES),
            ),
            BinaryColumn.at(
                memoryview(pool).cast("B"),
                starts=row * shape.record_bytes,
                sizes=np.full(count, shape.record_bytes),
            ),
            first_timestamp + np.arange(start, start + count),
            codec=shape.codec,
        )


def encode_keys(keys: Integers) -> npt.NDArray[np.uint8]:
    """Each key as the 16 bytes of `key-000000000042`."""
    encoded = np.empty((len(keys), KEY_BYTES), np.uint8)
    encoded[:, :4] = np.frombuffer(b"key-", np.uint8)
    rest = keys.copy()
    for column in range(KEY_BYTES - 1, 3, -1):
        encoded[:, column] = rest % 10 + ord("0")
        rest //= 10
    return encoded


def _value_pool(record_bytes: int) -> npt.NDArray[np.uint8]:
    """Values to choose from: the first half a text they share, the second random hex digits."""
    count = max(1, _POOL_BYTES // record_bytes)
    digits = np.random.default_rng(_SEED).integers(0, 16, (count, record_bytes))
    pool = np.frombuffer(b"0123456789abcdef", np.uint8)[digits]
    half = record_bytes // 2
    text = (_TEMPLATE * (half // len(_TEMPLATE) + 1))[:half]
    pool[:, :half] = np.frombuffer(text, np.uint8)
    pool.setflags(write=False)
    return pool


def copy_store(source: Path, target: Path, *, with_indexes: bool = True) -> None:
    """A store of its own with the same content.

    Data files of closed segments and key indexes are never written again and shared by a link;
    the rest is copied. Without `with_indexes` key indexes are left out.
    """
    for directory, _, names in os.walk(source):
        here = target / Path(directory).relative_to(source)
        here.mkdir()
        last_data = max((name for name in names if name.endswith(LOG)), default="")
        for name in names:
            if name.endswith(KEYS) and not with_indexes:
                continue
            if name.endswith((LOG, KEYS)) and name != last_data:
                os.link(Path(directory) / name, here / name)
            else:
                shutil.copy2(Path(directory) / name, here / name)


def partition_directory(store_directory: Path) -> Path:
    return store_directory / str(PARTITION)


def count_stored_records(directory: Path) -> int:
    """The records in all data files of a partition, by the headers of their batches."""
    fs = RealFileSystem()
    count = 0
    for path in sorted(directory.glob(f"*{LOG}")):
        with fs.open(str(path)) as file:
            for table in BatchWalk(file, start=0, end=file.size(), verify_crc=False):
                count += int(table.rows[:, BatchColumn.RECORD_COUNT].sum())
    return count
