"""One cleaning of a fresh copy of a store: by varve, and by the offset map. Only it is timed."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.compaction.keyed_log import (
    PARTITION,
    KeyedStore,
    copy_store,
    count_stored_records,
    open_store,
    partition_directory,
)
from benchmarks.compaction.offset_map_cleaner import SLOT_BYTES, OffsetMap, OffsetMapCleaner
from benchmarks.hot_log.logs import UnsyncedFileSystem
from benchmarks.measure import Scale, Ticker
from benchmarks.workspace import Workspace
from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.settings import CleanerSettings
from varve.commit_log import LogManager
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock

_ROOMY_SHARE = 0.75


def new_cleaner(store: LogManager, scale: Scale) -> LogCleaner:
    """A cleaner of one thread, without a throttle."""
    settings = CleanerSettings(log_cleaner_dedupe_buffer_size=scale.buffer_bytes)
    return LogCleaner(store, clock=SystemClock(), settings=settings)


def time_varve(
    workspace: Workspace, source: KeyedStore, scale: Scale, *, with_indexes: bool
) -> float:
    """Seconds until a copy is clean; without key indexes they are built within that time."""
    with workspace.directory("ours") as parent:
        directory = parent / "store"
        copy_store(source.directory, directory, with_indexes=with_indexes)
        store = open_store(directory, source.shape).open()
        try:
            cleaner = new_cleaner(store, scale)
            start = scale.ticker()
            cleaner.clean(PARTITION, source.now_ms)
            elapsed = scale.ticker() - start
        finally:
            store.abandon()
        check_survivors(directory, source)
    return elapsed


def time_offset_map(
    workspace: Workspace, source: KeyedStore, ticker: Ticker, offset_map: OffsetMap
) -> float:
    """Seconds until the baseline has cleaned a copy."""
    with workspace.directory("baseline") as parent:
        directory = parent / "store"
        copy_store(source.directory, directory, with_indexes=False)
        cleaner = OffsetMapCleaner(
            RealFileSystem(),
            str(partition_directory(directory)),
            source.shape.settings(),
            offset_map,
            now_ms=source.now_ms,
        )
        start = ticker()
        cleaner.clean(first_dirty_offset=0, end_offset=source.end_offset)
        elapsed = ticker() - start
        check_survivors(directory, source)
    return elapsed


def map_for(source: KeyedStore, scale: Scale) -> OffsetMap:
    """A map no larger than the buffer, and than the records need: a small one is cleared faster.

    That it knows the number of records beforehand is a favour to the baseline.
    """
    needed = int(source.record_count / _ROOMY_SHARE + 16) * SLOT_BYTES
    return OffsetMap(min(needed, scale.buffer_bytes))


def check_survivors(directory: Path, source: KeyedStore) -> None:
    """Raises unless one record of each key is left."""
    found = count_stored_records(partition_directory(directory))
    if found != source.key_count:
        raise AssertionError(f"{found} records are left of {source.key_count} keys")


def build_indexes(source: KeyedStore, scale: Scale) -> None:
    """Gives the store its key indexes."""
    change_store(source, lambda store: new_cleaner(store, scale).build_indexes(source.now_ms))


def change_store(source: KeyedStore, change: Callable[[LogManager], object]) -> None:
    """Opens a prepared store, changes it and closes it, without waiting for the disk."""
    with open_store(source.directory, source.shape, UnsyncedFileSystem()) as store:
        change(store)
