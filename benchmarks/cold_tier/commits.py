"""A manifest's commit with a long history, against one with a short; and what memory it takes."""

import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from uuid import UUID

from benchmarks.cold_tier.places import Place, open_places
from benchmarks.measure import Contest, Scale, Ticker, at_most
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState
from varve.tiering.manifest.store import ObjectManifestStore

_HOME = RemotePath("benchmark", "tiered", "q1Sh9e5zQ8G5YyvbVnCk_w", 0)
_FEW = 100
_AT_ONCE = 500
_COMMITS = 20
_RECORDS = 1_000


class CommitMeasure:
    """Size: segments in the manifest."""

    name = "commit"
    title = "a commit with many segments, against one with 100"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (1_000, 10_000) if quick else (1_000, 100_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        with open_places(workspace) as places:
            yield [
                Contest(
                    "commit",
                    "s",
                    partial(_commit, many, scale.ticker),
                    partial(_commit, few, scale.ticker),
                    at_most(1.3),
                    f"median of {_COMMITS} commits, each announcing or finishing one segment",
                    place.name,
                )
                for place in places
                for many, few in [(_History(place, size), _History(place, _FEW))]
            ]


class ManifestMemoryMeasure:
    """Size: segments in the manifest."""

    name = "manifest_memory"
    title = "memory of a manifest and all its pages, once every segment was looked at"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (1_000, 10_000) if quick else (10_000, 100_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        objects = MemoryObjectStore()
        _fill(objects, size)
        yield [
            Contest(
                "manifest_memory",
                "MiB",
                partial(_measure_memory, objects, whole=whole),
                None,
                None,
                "Python objects of the manifest store; pages are kept in a cache with a limit",
                note,
                repeat_count_max=3,
            )
            for whole, note in ((False, "as opened"), (True, "every page read"))
        ]


class _History:
    """A manifest with so many segments, filled when first used, and the next one's number."""

    def __init__(self, place: Place, count: int) -> None:
        self._place = place
        self.count = count
        self._manifests: ObjectManifestStore | None = None

    def open(self) -> ObjectManifestStore:
        if self._manifests is None:
            objects = self._place.new_bucket()
            _fill(objects, self.count)
            self._manifests = _open(objects)
            self._manifests.load()
        return self._manifests


def _open(objects: ObjectStore) -> ObjectManifestStore:
    return ObjectManifestStore(objects, _HOME, random=random.Random(7), wait=lambda _: None)


def _segment(number: int, state: SegmentState) -> RemoteSegment:
    base = number * _RECORDS
    parts = tuple(
        ObjectPart(name, size, number & 0xFFFFFFFF)
        for name, size in (
            ("log", 1 << 30),
            ("index", 2 << 20),
            ("timeindex", 3 << 20),
            ("snapshot", 10),
            ("epochs", 20),
        )
    )
    return RemoteSegment(
        id=str(UUID(int=number)),
        base_offset=base,
        end_offset=base + _RECORDS - 1,
        size=1 << 30,
        record_count=_RECORDS,
        max_timestamp=1_700_000_000_000 + number,
        append_ms=(1_700_000_000_000 + number, 1_700_000_000_001 + number),
        epochs=((0, base),),
        parts=parts,
        has_aborted=False,
        state=state,
        at_ms=number,
    )


def _fill(objects: ObjectStore, count: int) -> None:
    """Announces and finishes so many segments, some hundred with each commit."""
    manifests = _open(objects)
    for first in range(0, count, _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, count))
        for state in (SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED):
            _run(manifests, partial(_put_all, manifests, numbers, state))
    manifests.retire_versions(now_ms=1 << 50, retention_ms=0)


def _run(manifests: ObjectManifestStore, change: Callable[[Manifest], Manifest]) -> None:
    manifests.commit(change, leader_epoch=0, writer="benchmark", now_ms=1)


def _put(segment: RemoteSegment, manifest: Manifest) -> Manifest:
    return manifest.update(segment)


def _put_all(
    manifests: ObjectManifestStore, numbers: range, state: SegmentState, manifest: Manifest
) -> Manifest:
    start, end = numbers[0] * _RECORDS, (numbers[-1] + 1) * _RECORDS
    near = manifests.unfold(manifest, start_offset=start, end_offset=end)
    for number in numbers:
        near = near.update(_segment(number, state))
    return near


def _commit(history: _History, ticker: Ticker) -> float:
    manifests = history.open()
    seconds = []
    for _ in range(_COMMITS // 2):
        for state in (SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED):
            segment = _segment(history.count, state)
            start = ticker()
            _run(manifests, partial(_put, segment))
            seconds.append(ticker() - start)
        history.count += 1
    return median(seconds)


def _measure_memory(objects: ObjectStore, *, whole: bool) -> float:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        manifests = _open(objects)
        manifest = manifests.load()
        if whole:
            sum(1 for _ in manifests.segments(manifest))
        after = tracemalloc.get_traced_memory()[0]
        return (after - before) / (1 << 20)
    finally:
        tracemalloc.stop()
