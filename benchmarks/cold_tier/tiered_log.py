"""A store with one tiered topic whose closed segments are to be copied, or were."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import varve
from benchmarks.hot_log.logs import BATCH_BYTES, UnsyncedFileSystem, ready_batches
from varve.commit_log import Log, TopicPartition
from varve.embedded import Store
from varve.foundation.clock import SystemClock
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.tiering.manifest.segment import RemoteSegment

TOPIC = "tiered"
PARTITION = TopicPartition(TOPIC, 0)


def write_tiered(directory: Path, *, segment_bytes: int, total_bytes: int) -> None:
    """A topic of so many bytes in closed segments; nothing is copied yet."""
    settings = {
        "remote.storage.enable": True,
        "segment.bytes": segment_bytes,
        "local.retention.bytes": 0,
        "file.delete.delay.ms": 0,
    }
    nowhere = MemoryObjectStore()
    with varve.open(directory, fs=UnsyncedFileSystem(), objects=nowhere, maintain=False) as store:
        log = store.create_topic(TOPIC, settings=settings).partition(0).log
        for batch in ready_batches(BATCH_BYTES, total_bytes):
            log.append(batch)
        log.roll()


@contextmanager
def open_tiered(
    directory: Path, objects: ObjectStore, **settings: int
) -> Iterator[tuple[Store, Log]]:
    """The store over a bucket, as a new process has it: nothing is cached."""
    names = {name.replace("_", "."): value for name, value in settings.items()}
    with varve.open(directory, objects=objects, settings=names, maintain=False) as store:
        yield store, store.topic(TOPIC).partition(0).log


def copy_all(store: Store) -> tuple[RemoteSegment, ...]:
    """Copies every closed segment; gives what was copied."""
    report = store.tier.copy(PARTITION, SystemClock().now_ms())
    if report.error is not None:
        raise AssertionError(report.error)
    return report.segments


def leave_disk(store: Store) -> None:
    """Lets everything that was copied leave the local disk."""
    store.tier.expire(PARTITION, SystemClock().now_ms())
