"""Appending to one partition while another is cleaned, against appending alone."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.compaction.cleanings import new_cleaner
from benchmarks.compaction.keyed_log import (
    PARTITION,
    TOPIC_ID,
    KeyedStore,
    copy_store,
    few_shapes_of,
    open_store,
    repeats_for,
    write_store,
)
from benchmarks.hot_log.logs import BATCH_BYTES, ready_batches
from benchmarks.measure import Contest, Scale, at_least
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace
from varve.commit_log import Log, LogManager, TopicPartition

APPENDED = TopicPartition("appended", 0)
_POOL_BYTES = 16 << 20
_VOLUME_MAX_BYTES = 2 << 30


class BesideAppendsMeasure:
    """Size: bytes of the dirty log that is cleaned meanwhile."""

    name = "append_beside"
    title = "appends while the cleaner works on another partition, against appends alone"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (16 << 20, 32 << 20) if quick else (128 << 20, 256 << 20, 512 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        shapes = few_shapes_of(scale)
        workspace.require(size * (len(shapes) + 2) + _VOLUME_MAX_BYTES)
        batches = ready_batches(BATCH_BYTES, _POOL_BYTES)
        with workspace.directory("beside") as parent:
            contests = []
            for number, shape in enumerate(shapes):
                source = write_store(parent / str(number), shape, size)
                volume = _Volume()
                contests.append(
                    Contest(
                        "append_beside",
                        "MiB/s",
                        partial(append_beside, workspace, source, scale, batches, volume),
                        partial(append_alone, workspace, source, batches, volume),
                        at_least(0.8),
                        f"batches of {format_bytes(BATCH_BYTES)} appended by one thread for as "
                        "long as the other cleans, then as many alone; wall time always",
                        str(shape),
                        repeat_count_max=repeats_for(shape),
                        is_wall_time=True,
                    )
                )
            yield contests


@dataclass(slots=True)
class _Volume:
    """How many batches were appended while the cleaner ran."""

    batch_count: int = 1


def append_beside(
    workspace: Workspace,
    source: KeyedStore,
    scale: Scale,
    batches: Sequence[bytes],
    volume: _Volume,
) -> float:
    """MiB/s appended while a copy of the dirty log is cleaned in a thread of this process."""
    with _store_with_target(workspace, source, batches[0]) as (store, log):
        cleaner = new_cleaner(store, scale)
        reports = []
        thread = threading.Thread(
            target=lambda: reports.append(cleaner.clean(PARTITION, source.now_ms))
        )
        count = 0
        limit = _VOLUME_MAX_BYTES // BATCH_BYTES
        thread.start()
        start = time.perf_counter()
        while thread.is_alive() and count < limit:
            log.append(batches[count % len(batches)])
            count += 1
        elapsed = time.perf_counter() - start
        thread.join()
        if not reports:
            raise AssertionError("the cleaner failed beside the appends")
    volume.batch_count = max(1, count)
    return _mib(batches, count) / elapsed


def append_alone(
    workspace: Workspace, source: KeyedStore, batches: Sequence[bytes], volume: _Volume
) -> float:
    """MiB/s of as many appends with the same store open and nothing else going on."""
    with _store_with_target(workspace, source, batches[0]) as (_, log):
        start = time.perf_counter()
        for number in range(volume.batch_count):
            log.append(batches[number % len(batches)])
        elapsed = time.perf_counter() - start
    return _mib(batches, volume.batch_count) / elapsed


@contextmanager
def _store_with_target(
    workspace: Workspace, source: KeyedStore, first: bytes
) -> Iterator[tuple[LogManager, Log]]:
    with workspace.directory("beside-run") as parent:
        directory = parent / "store"
        copy_store(source.directory, directory, with_indexes=False)
        store = open_store(directory, source.shape).open()
        try:
            log = store.create(APPENDED, TOPIC_ID)
            log.append(first)  # writes and syncs the leader epoch, once in the life of a log
            yield store, log
        finally:
            store.abandon()


def _mib(batches: Sequence[bytes], count: int) -> float:
    rounds, rest = divmod(count, len(batches))
    size = rounds * sum(map(len, batches)) + sum(map(len, batches[:rest]))
    return size / (1 << 20)
