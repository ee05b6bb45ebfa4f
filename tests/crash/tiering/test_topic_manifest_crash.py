"""Power lost at every file operation of a commit to __remote_log_metadata: all or nothing, G3."""

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.crash_images import crash_images, named, record
from tests.support.metadata_bench import NOW_MS, SETTINGS, MetadataBench, make_id, make_segment
from tests.support.remote_builder import HOME
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Unavailable
from varve.testing.faulty_disk import FaultyFileSystem
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import SegmentState
from varve.tiering.metadata.topic_manifest_store import TopicManifestStore

STARTED, FINISHED, _ = SegmentState
# Segments of a few batches, so that a commit also meets a roll.
SMALL = replace(SETTINGS, segment_bytes=1_500)


MERGED = replace(make_segment(0, STARTED, id="merged"), end_offset=299)


def announce(manifest: Manifest) -> Manifest:
    return manifest.announce(make_segment(9))


def swap(manifest: Manifest) -> Manifest:
    """Three segments go, one takes their place: four events."""
    gone = manifest.start_delete([make_id(n) for n in range(3)], at_ms=9, replaced_until_ms=99)
    return gone.finish(replace(MERGED, state=FINISHED)).raise_cleaned_up_to(300)


def note(manifest: Manifest) -> Manifest:
    return manifest.raise_log_start(77)


def commit(
    store: TopicManifestStore, change: Callable[[Manifest], Manifest], *, epoch: int = 0
) -> Manifest:
    return store.commit(change, leader_epoch=epoch, writer="copier", now_ms=NOW_MS)


def prepare(*, is_empty: bool) -> tuple[FaultyFileSystem, MetadataBench]:
    disk = FaultyFileSystem(ManualClock(NOW_MS))
    bench = MetadataBench(fs=disk, partition_count=1, settings=SMALL)
    store = bench.store(HOME)
    bench.open_log(0)
    if not is_empty:
        for number in range(3):
            commit(store, lambda m, n=number: m.announce(make_segment(n)))  # type: ignore[misc]  # bound now
            commit(store, lambda m, n=number: m.finish(make_segment(n, FINISHED)))  # type: ignore[misc]  # bound now
        commit(store, lambda m: m.announce(MERGED))
    return disk, bench


def read(disk: FaultyFileSystem) -> Manifest:
    return MetadataBench(fs=disk, partition_count=1, settings=SMALL).store(HOME).load()


CASES = [
    pytest.param(announce, False, id="announce"),
    pytest.param(swap, False, id="swap"),
    pytest.param(note, False, id="note"),
    pytest.param(note, True, id="note without a segment"),
]


@pytest.mark.parametrize(("change", "is_empty"), CASES)
def test_a_crash_leaves_all_or_nothing_of_a_commit(
    change: Callable[[Manifest], Manifest], is_empty: bool
) -> None:
    disk, bench = prepare(is_empty=is_empty)
    before = bench.store(HOME).load()
    points = record(lambda: commit(bench.store(HOME), change), lambda: None, disk=disk)
    assert len(points) > 1
    after = bench.store(HOME).load()
    for image in crash_images(points):
        with named(image):
            assert read(image.disk) in (before, after)
            again = MetadataBench(fs=image.disk, partition_count=1, settings=SMALL)
            assert commit(again.store(HOME), change) == after
            assert commit(again.store(HOME), note, epoch=1).log_start_offset == 77


@pytest.mark.parametrize(("change", "is_empty"), CASES)
def test_a_failing_disk_leaves_all_or_nothing_and_says_try_again(
    change: Callable[[Manifest], Manifest], is_empty: bool
) -> None:
    disk, bench = prepare(is_empty=is_empty)
    before = bench.store(HOME).load()
    first = disk.steps
    after = commit(bench.store(HOME), change)
    for step in range(1, disk.steps - first + 1):
        disk, bench = prepare(is_empty=is_empty)
        disk.fail_at(disk.steps + step, OSError(errno.EIO, "Input/output error"))
        with pytest.raises(Unavailable):
            commit(bench.store(HOME), change)
        disk.mend()
        bench.reopen()
        assert bench.store(HOME).load() in (before, after)
        assert commit(bench.store(HOME), change) == after


def test_a_log_that_was_cut_anywhere_within_a_commit_shows_nothing_of_it() -> None:
    disk, bench = prepare(is_empty=False)
    store = bench.store(HOME)
    bench.open_log(0).roll()
    base = commit(store, announce)
    active = bench.open_log(0).view.active
    path, start = f"data/__remote_log_metadata-0/{active.base_offset:020}.log", active.size
    commit(store, swap)
    bench.open_log(0).flush()
    whole = bytes(disk.read(path))
    assert len(whole) > start
    for size in range(start, len(whole), 7):
        with disk.open_writable(path) as file:
            file.truncate(size)
            file.sync()
        bench.reopen()
        assert bench.store(HOME).load() == base
        for log in bench.logs.values():
            log.abandon()
        bench.logs = {}
        with disk.open_writable(path) as file:
            file.write_at(0, whole)
            file.sync()
