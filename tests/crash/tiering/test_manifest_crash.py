"""Power lost at every request of a commit, a spill, a rewrite, a retirement, a sweep: G3, G6."""

from collections.abc import Callable
from functools import cache

import pytest

from tests.support.crash_images import distinct_buckets, named, record
from tests.support.remote_builder import HOME, copy, delete, make_segment, open_manifest
from varve.object_store import MemoryObjectStore
from varve.testing import FaultKind, FaultyObjectStore
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.manifest.store import ObjectManifestStore

Work = Callable[[ObjectManifestStore], object]


def announce_one(store: ObjectManifestStore) -> None:
    store.commit(lambda m: m.announce(make_segment(50)), leader_epoch=0, writer="copier", now_ms=60)


def announce_many(store: ObjectManifestStore) -> None:
    """One commit that spills several pages and puts references a level up."""

    def change(manifest: Manifest) -> Manifest:
        for number in range(50, 65):
            manifest = manifest.announce(make_segment(number))
        return manifest

    store.commit(change, leader_epoch=0, writer="copier", now_ms=60)


def rewrite_a_page(store: ObjectManifestStore) -> None:
    def change(manifest: Manifest) -> Manifest:
        near = store.unfold(manifest, start_offset=300, end_offset=301)
        return near.start_delete(["segment-3"], at_ms=60)

    store.commit(change, leader_epoch=0, writer="expiry", now_ms=60)


def retire(store: ObjectManifestStore) -> None:
    store.retire_versions(now_ms=1_000, retention_ms=0)


def sweep(store: ObjectManifestStore) -> None:
    store.sweep_orphan_pages(writer="fsck", now_ms=60)


@cache
def history() -> dict[str, bytes]:
    """Some versions with pages of several levels, retired ones and an orphan."""
    objects = MemoryObjectStore()
    store = open_manifest(objects, 1)
    for number in range(16):
        copy(store, number, now_ms=number)
    delete(store, 0, now_ms=30)
    store.retire_versions(now_ms=30, retention_ms=16)
    objects.put(HOME.page_key(first_offset=0, id="orphan"), b"of an earlier crash")
    return {entry.key: objects.get(entry.key) for entry in objects.list("")}


def prepare() -> MemoryObjectStore:
    objects = MemoryObjectStore()
    for key, data in history().items():
        objects.put(key, data)
    return objects


def read(objects: MemoryObjectStore) -> tuple[int, list[RemoteSegment]]:
    store = open_manifest(objects, 9)
    manifest = store.load()
    return manifest.version, list(store.segments(manifest))


def count_steps(work: Work) -> int:
    faulty = FaultyObjectStore(prepare())
    work(open_manifest(faulty, 2))
    return faulty.steps


@pytest.mark.parametrize(
    "work", [announce_one, announce_many, rewrite_a_page, retire, sweep], ids=lambda w: w.__name__
)
def test_a_crash_leaves_all_or_nothing_of_a_commit(work: Work) -> None:
    before = read(prepare())
    faulty = FaultyObjectStore(prepare())
    points = record(lambda: work(open_manifest(faulty, 2)), lambda: None, objects=faulty)
    after = read(points[-1].objects())
    outcomes = set()
    for point in distinct_buckets(points):
        with named(point):
            objects = point.objects()
            found = read(objects)
            assert found in (before, after)
            outcomes.add(found == after)
            check_goes_on(objects, work, after[1])
    assert len(outcomes) == 2 or before == after


def check_goes_on(objects: MemoryObjectStore, work: Work, expected: list[RemoteSegment]) -> None:
    """The next start repeats the work, commits more, and cleans up all that was left."""
    store = open_manifest(objects, 3)
    work(store)
    assert list(store.segments(store.load())) == expected
    copied = copy(store, 90, now_ms=100)
    store.sweep_orphan_pages(writer="fsck", now_ms=100)
    store.retire_versions(now_ms=1_000, retention_ms=0)
    assert store.find_orphan_pages() == []
    fresh = open_manifest(objects, 4)
    assert list(fresh.segments(fresh.load())) == list(store.segments(copied))
    pages = [entry.key for entry in objects.list(HOME.page_folder)]
    versions = [entry.key for entry in objects.list(HOME.manifest_folder)]
    assert len([key for key in versions if HOME.find_version(key) is not None]) == 1
    assert not any("orphan" in key for key in pages)


@pytest.mark.parametrize(
    "kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.REPEATED, FaultKind.THROTTLED]
)
@pytest.mark.parametrize("work", [announce_one, announce_many, rewrite_a_page])
def test_one_failing_request_is_made_good_by_the_commit(work: Work, kind: FaultKind) -> None:
    done = prepare()
    work(open_manifest(done, 2))
    expected = read(done)
    for step in range(1, count_steps(work) + 1):
        objects = prepare()
        faulty = FaultyObjectStore(objects)
        faulty.fail_at(step, kind)
        work(open_manifest(faulty, 2))
        assert read(objects) == expected, faulty.trace
