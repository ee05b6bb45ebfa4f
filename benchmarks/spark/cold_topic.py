"""A compacted topic in a cold tier of its own: made once per case, copied per figure.

Invariant  every key has `1 / unique_share` records, anywhere in its partition, or with a share of
           1 a single one, in the order of their numbers; the same in every run.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import varve
from benchmarks.baselines import BASE_TIMESTAMP_MS
from benchmarks.compaction.keyed_log import Integers, LogShape, append_records, spread_keys
from benchmarks.hot_log.logs import UnsyncedFileSystem
from benchmarks.measure import Scale
from benchmarks.workspace import Workspace
from varve.commit_log import TopicPartition
from varve.foundation.clock import SystemClock
from varve.foundation.settings import GivenValue

TOPIC = "accounts"
PARTITION_COUNT = 4
SEGMENT_BYTES_MAX = 16 << 20
SIZE_FACTOR = 6
"""Disk that a case may take, as a multiple of its records: buckets, Parquet, and their outputs."""


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The offsets of a segment, both ends included."""

    partition: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ColdTopic:
    """A bucket with one topic; `size` are the bytes of its log."""

    bucket: Path
    shape: LogShape
    record_count: int
    key_count: int
    size: int
    segments: tuple[SegmentRange, ...]

    @property
    def url(self) -> str:
        return f"file:{self.bucket}"

    @property
    def mib(self) -> float:
        return self.size / (1 << 20)


def shape_of(scale: Scale, record_bytes: int) -> LogShape:
    """Of the first codec alone: other sizes and codecs are asked for by options."""
    segment_bytes = min(scale.segment_bytes, SEGMENT_BYTES_MAX)
    batch_bytes, codec = scale.batch_bytes[0], scale.codecs[0]
    return LogShape(record_bytes, codec, batch_bytes, scale.unique_share, segment_bytes)


def write_cold(directory: Path, shape: LogShape, record_count: int) -> ColdTopic:
    """So many records in closed segments of a new bucket, with their key indexes."""
    per_partition = max(1, record_count // PARTITION_COUNT)
    keys_each = max(1, round(per_partition * shape.unique_share))
    bucket, hot = directory / "bucket", directory / "hot"
    bucket.mkdir(parents=True)
    settings: dict[str, GivenValue] = {
        "remote.storage.enable": True,
        "cleanup.policy": "compact",
        "segment.bytes": shape.segment_bytes,
    }
    size, segments = 0, list[SegmentRange]()
    with varve.open(
        hot, fs=UnsyncedFileSystem(), settings={"varve.tier.url": f"file:{bucket}"}, maintain=False
    ) as store:
        topic = store.create_topic(TOPIC, partitions=PARTITION_COUNT, settings=settings)
        for number in range(PARTITION_COUNT):
            log = topic.partition(number).log
            numbers = (
                np.arange(per_partition)
                if keys_each == per_partition
                else spread_keys(per_partition, keys_each)
            )
            append_records(log, shape, key_number(numbers, number), BASE_TIMESTAMP_MS)
            log.roll()
            report = store.tier.copy(TopicPartition(TOPIC, number), SystemClock().now_ms())
            if report.error is not None:
                raise AssertionError(report.error)
            size += sum(one.size for one in report.segments)
            segments += [
                SegmentRange(number, one.base_offset, one.end_offset) for one in report.segments
            ]
    shutil.rmtree(hot)
    return ColdTopic(
        bucket,
        shape,
        per_partition * PARTITION_COUNT,
        keys_each * PARTITION_COUNT,
        size,
        tuple(segments),
    )


def key_number(numbers: Integers, partition: int) -> Integers:
    """Keys of one partition are not those of another."""
    return numbers * PARTITION_COUNT + partition


@contextmanager
def copied(topic: ColdTopic, workspace: Workspace) -> Iterator[str]:
    """The URL of a bucket of the same content, for one figure.

    Objects are never written again, so that a link is a copy.
    """
    with workspace.directory("copied") as parent:
        shutil.copytree(topic.bucket, parent / "bucket", copy_function=os.link)
        yield f"file:{parent}/bucket"
