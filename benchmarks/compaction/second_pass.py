"""Cleaning again after a few updates, against the first cleaning of the same log."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.compaction.cleanings import change_store, new_cleaner, time_varve
from benchmarks.compaction.keyed_log import (
    PARTITION,
    KeyedStore,
    LogShape,
    append_records,
    copy_store,
    count_stored_records,
    few_shapes_of,
    open_store,
    partition_directory,
    repeats_for,
    write_store,
)
from benchmarks.measure import Contest, Scale, at_most
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from varve.commit_log import LogManager
from varve.commit_log.names import DELETED

NEW_SHARE = 0.05
_SEED = 5
_ON_DISK_FACTOR = 4
_DAY_MS = 86_400_000


class SecondPassMeasure:
    """Size: bytes of the log's records before its first cleaning."""

    name = "second_pass"
    title = "cleaning a clean log after 5 % of updates, against its first cleaning"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (8 << 20, 16 << 20) if quick else (128 << 20, 256 << 20, 512 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        shapes = few_shapes_of(scale)
        workspace.require(2 * size * len(shapes) + _ON_DISK_FACTOR * size)
        with workspace.directory("clean") as parent:
            yield [
                _contest(parent, f"{number}", shape, size, workspace, scale)
                for number, shape in enumerate(shapes)
            ]


def _contest(
    parent: Path, name: str, shape: LogShape, size: int, workspace: Workspace, scale: Scale
) -> Contest:
    dirty = write_store(parent / f"dirty-{name}", shape, size)
    clean = clean_and_update(dirty, parent / f"clean-{name}", scale)
    return Contest(
        "second_pass",
        "s",
        lambda: time_second_pass(workspace, clean, scale),
        lambda: time_varve(workspace, dirty, scale, with_indexes=False),
        at_most(0.15),
        f"new records number {NEW_SHARE:.0%} of those the clean log holds, for random keys of it; "
        "key indexes of new data are built within the time, on both sides",
        str(shape),
        repeat_count_max=repeats_for(shape),
    )


def clean_and_update(dirty: KeyedStore, directory: Path, scale: Scale) -> KeyedStore:
    """A copy that was cleaned once and then got new values for some of its keys."""
    copy_store(dirty.directory, directory)
    clean = replace(dirty, directory=directory)
    update_count = max(1, round(dirty.key_count * NEW_SHARE))
    keys = np.random.default_rng(_SEED).integers(0, dirty.key_count, update_count)

    def clean_then_append(store: LogManager) -> int:
        new_cleaner(store, scale).clean(PARTITION, clean.now_ms)
        log = store.get(PARTITION)
        append_records(log, clean.shape, keys, clean.now_ms)
        log.roll()
        return log.end_offset

    change_store(clean, clean_then_append)
    for path in partition_directory(directory).glob(f"*{DELETED}"):
        path.unlink()
    return replace(clean, record_count=dirty.key_count + update_count)


def time_second_pass(workspace: Workspace, source: KeyedStore, scale: Scale) -> float:
    """Seconds to clean what is new; segments hardly touched by it may keep stale records."""
    with workspace.directory("second") as parent:
        directory = parent / "store"
        copy_store(source.directory, directory)
        store = open_store(directory, source.shape).open()
        try:
            cleaner = new_cleaner(store, scale)
            start = scale.ticker()
            cleaner.clean(PARTITION, source.now_ms + _DAY_MS)
            elapsed = scale.ticker() - start
        finally:
            store.abandon()
        left = count_stored_records(partition_directory(directory))
        if not source.key_count <= left <= source.record_count:
            raise AssertionError(f"{left} of {source.record_count} records are left")
        shutil.rmtree(directory)
    return elapsed
