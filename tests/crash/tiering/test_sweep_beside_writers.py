"""A sweep beside a writer never removes what a newer manifest names: G3, G5."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from tests.support.crash_images import distinct_buckets, named, record
from tests.support.remote_builder import HOME, delete, make_segment, open_manifest
from varve.object_store import Buffer, MemoryObjectStore, ObjectInfo
from varve.testing import FaultyObjectStore
from varve.tiering.fsck import FsckOptions, fsck
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState
from varve.tiering.manifest.store import ObjectManifestStore

NOW_MS = 1 << 50
SWEEP = FsckOptions(sweep=True, retention_ms=0)
PARTS = (ObjectPart("log", 3, 7), ObjectPart("index", 3, 9))


class Interleaved(MemoryObjectStore):
    """Lets another writer take a step before some of the sweeper's requests."""

    def __init__(self, objects: MemoryObjectStore, before: Callable[[], None]) -> None:
        self.name = objects.name
        self._inner = objects
        self._before = before

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        self._before()
        return self._inner.put(key, data)

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        self._before()
        return self._inner.create(key, data)

    def get(self, key: str) -> bytes:
        self._before()
        return self._inner.get(key)

    def head(self, key: str) -> ObjectInfo:
        self._before()
        return self._inner.head(key)

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        self._before()
        return self._inner.list(prefix, start_after=start_after)

    def delete(self, keys: Sequence[str]) -> None:
        self._before()
        self._inner.delete(keys)


class Writer:
    """Copies and deletes segments, a request or a commit at a time."""

    def __init__(self, objects: MemoryObjectStore, seed: int) -> None:
        self._objects = objects
        self._manifests = open_manifest(objects, 100 + seed)
        self._source = random.Random(seed)
        self._steps = self._work()

    def step(self) -> None:
        if self._source.random() < 0.4:
            next(self._steps)

    def _work(self) -> Iterator[None]:
        for number in range(10, 10_000):
            segment = _with_parts(make_segment(number, id=f"new-{number}"))
            commit(self._manifests, segment)
            yield
            for part in segment.parts:
                self._objects.put(HOME.part_key(segment, part.name), b"abc")
                yield
            done = _with_parts(make_segment(number, SegmentState.COPY_FINISHED, f"new-{number}"))
            commit(self._manifests, done)
            yield
            if self._source.random() < 0.3 and number - 10 < 8:
                delete(self._manifests, number - 10)
                yield


def commit(manifests: ObjectManifestStore, segment: RemoteSegment) -> None:
    """Announces a segment, or makes it readable, as its state says."""

    def change(manifest: Manifest) -> Manifest:
        return manifest.finish(segment) if segment.is_readable else manifest.announce(segment)

    manifests.commit(change, leader_epoch=0, writer="copier", now_ms=1)


def _with_parts(segment: RemoteSegment) -> RemoteSegment:
    return replace(segment, parts=PARTS)


def prepare() -> MemoryObjectStore:
    """Eight segments in pages, one half deleted, and leftovers of crashes."""
    objects = MemoryObjectStore()
    manifests = open_manifest(objects, 1)
    for number in range(8):
        segment = _with_parts(make_segment(number))
        done = _with_parts(make_segment(number, SegmentState.COPY_FINISHED))
        commit(manifests, segment)
        for part in segment.parts:
            objects.put(HOME.part_key(segment, part.name), b"abc")
        commit(manifests, done)
    for number in range(4):
        objects.put(f"{HOME.segment_folder}{number:020}-lost-{number}/log", b"lost")
    objects.put(HOME.page_key(first_offset=0, id="lost"), b"lost")
    return objects


def sweep(objects: MemoryObjectStore | FaultyObjectStore | Interleaved, seed: int) -> None:
    fsck(
        objects,
        HOME.cluster,
        now_ms=NOW_MS,
        options=SWEEP,
        random=random.Random(seed),
        wait=lambda _: None,
    )


def check_nothing_is_missing(objects: MemoryObjectStore) -> None:
    """Every page can be read and every readable segment has its objects."""
    manifests = open_manifest(objects, 999)
    keys = {entry.key for entry in objects.list("")}
    for segment in manifests.segments(manifests.load()):
        if segment.is_readable:
            assert {HOME.part_key(segment, part.name) for part in segment.parts} <= keys


@pytest.mark.parametrize("seed", range(25))
def test_a_sweep_beside_a_writer_takes_nothing_that_is_named(seed: int) -> None:
    objects = prepare()
    writer = Writer(objects, seed)
    sweep(Interleaved(objects, writer.step), seed)
    check_nothing_is_missing(objects)
    sweep(objects, seed + 500)
    check_nothing_is_missing(objects)
    assert not [entry for entry in objects.list("") if "lost" in entry.key]


def test_a_sweep_cut_at_every_request_is_finished_by_the_next() -> None:
    faulty = FaultyObjectStore(prepare())
    for point in distinct_buckets(record(lambda: sweep(faulty, 1), lambda: None, objects=faulty)):
        with named(point):
            objects = point.objects()
            check_nothing_is_missing(objects)
            sweep(objects, 2)
            check_nothing_is_missing(objects)
            assert not [entry for entry in objects.list("") if "lost" in entry.key]
