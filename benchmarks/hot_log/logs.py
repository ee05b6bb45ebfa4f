"""Partition logs for the measures: made once per case, opened as the store opens them."""

import random
from collections.abc import Sequence
from pathlib import Path

from benchmarks.generators import make_batches, repeat_to
from varve.commit_log import LoadRequest, Log, LogSettings, SegmentFiles, TopicPartition
from varve.disk import FileSystem, RealFileSystem
from varve.disk.real import RealFile
from varve.foundation.clock import SystemClock

BATCH_BYTES = 16 << 10
"""The default `batch.size` of Kafka's producer, for logs whose size is counted otherwise."""

RECORD_VALUE_BYTES = 1 << 10
_DISTINCT_BYTES = 16 << 20
_PARTITION = TopicPartition("benchmark", 0)


class UnsyncedFile(RealFile):
    """A file whose sync does nothing: data for a measure need not survive the run."""

    __slots__ = ()

    def sync(self) -> None:
        return


class UnsyncedFileSystem(RealFileSystem):
    """The real file system without waiting for the disk; only to prepare, never to measure."""

    def open(self, path: str) -> RealFile:
        return _without_sync(super().open(path))

    def open_writable(self, path: str) -> RealFile:
        return _without_sync(super().open_writable(path))

    def sync_directory(self, path: str) -> None:
        return


def _without_sync(file: RealFile) -> UnsyncedFile:
    descriptor, file._descriptor = file._descriptor, -1
    return UnsyncedFile(file.path, descriptor)


def open_log(
    directory: Path,
    *,
    clean: bool = False,
    settings: LogSettings | None = None,
    file_system: FileSystem | None = None,
) -> Log:
    """Opens a partition directory, which must exist; without `clean` everything is recovered."""
    request = LoadRequest(
        files=SegmentFiles(file_system or RealFileSystem()),
        directory=str(directory),
        topic_partition=_PARTITION,
        settings=settings or LogSettings(),
        clock=SystemClock(),
        random=random.Random(0),
        clean=clean,
    )
    return Log.open(request)


def ready_batches(batch_bytes: int, total_bytes: int) -> list[bytes]:
    """Batches of 1 KiB records as a producer sends them, `total_bytes` together."""
    distinct = max(1, min(_DISTINCT_BYTES, total_bytes) // batch_bytes)
    batches = make_batches(distinct, value_bytes=RECORD_VALUE_BYTES, batch_bytes=batch_bytes)
    return repeat_to(batches, total_bytes)


def write_log(directory: Path, batches: Sequence[bytes], settings: LogSettings) -> int:
    """Appends the batches to a new log, closes it and gives its end offset."""
    directory.mkdir()
    log = open_log(directory, settings=settings, file_system=UnsyncedFileSystem())
    for batch in batches:
        log.append(batch)
    end_offset = log.end_offset
    log.close()
    return end_offset
