"""Crash images: one run, and what a crash at each of its steps would leave.

`record` runs the work once. Before every call that changes the disk, and before and after every
request to the object store, it keeps an image of both and what the work had acknowledged. A judge
then opens the images one by one. `tests/crash/test_crash_images.py` compares images with the disks
of runs that do crash at the step.

A fault that the work survives, such as a failed call or a full disk, changes what the work does
next: such tests run the work again for each step.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from varve.object_store import MemoryObjectStore, ObjectStore
from varve.testing import FaultyObjectStore, ObjectStep
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem, Step

T = TypeVar("T")

Bucket = dict[str, bytes]
"""The objects of a store by their keys."""


@dataclass(frozen=True, slots=True)
class CrashPoint(Generic[T]):
    """A moment of a run: before a step, or the end of the run."""

    where: Step | ObjectStep | None
    """None at the end."""
    state: T
    """What the work had acknowledged."""
    disk: FaultyFileSystem | None = None
    bucket: Bucket | None = None

    @property
    def step(self) -> int:
        assert self.disk is not None
        return self.disk.steps

    def objects(self) -> MemoryObjectStore:
        """A new store with the objects of this moment."""
        assert self.bucket is not None
        store = MemoryObjectStore()
        for key, data in self.bucket.items():
            store.put(key, data)
        return store


@dataclass(frozen=True, slots=True)
class CrashImage(Generic[T]):
    """What the next start finds after a crash, to be opened and changed by its judge."""

    point: CrashPoint[T]
    mode: CrashMode
    seed: int
    disk: FaultyFileSystem

    @property
    def state(self) -> T:
        """The acknowledged state; shared by all images of the point, so a judge copies it."""
        return self.point.state

    @property
    def step(self) -> int:
        return self.point.step


class _BucketReader:
    """Copies of a bucket, which share the objects that did not change."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[tuple[str, str | None], bytes] = {}

    def read(self) -> Bucket:
        found = {}
        for entry in self._store.list(""):
            version = (entry.key, entry.etag)
            if entry.etag is None or version not in self._known:
                self._known[version] = self._store.get(entry.key)
            found[entry.key] = self._known[version]
        return found


@dataclass(slots=True)
class _Recorder(Generic[T]):
    note: Callable[[], T]
    disk: FaultyFileSystem | None
    bucket: _BucketReader | None
    points: list[CrashPoint[T]] = field(default_factory=list)

    def add(self, where: Step | ObjectStep | None, disk: FaultyFileSystem | None = None) -> None:
        if disk is None and self.disk is not None:
            disk = self.disk.image()
        bucket = None if self.bucket is None else self.bucket.read()
        self.points.append(CrashPoint(where, self.note(), disk, bucket))


def record(
    work: Callable[[], object],
    note: Callable[[], T],
    *,
    disk: FaultyFileSystem | None = None,
    objects: FaultyObjectStore | None = None,
) -> list[CrashPoint[T]]:
    """Runs the work once: the moments at which it may end, the last of them behind its end.

    `note` returns what is acknowledged, as a value that the work does not change afterwards.
    """
    reader = None if objects is None else _BucketReader(objects.after_crash())
    recorder = _Recorder(note, disk, reader)
    if disk is not None:
        disk.watch(recorder.add)
    if objects is not None:
        objects.watch(recorder.add)
    try:
        work()
        recorder.add(None)
    finally:
        if disk is not None:
            disk.watch(None)
        if objects is not None:
            objects.watch(None)
    return recorder.points


Modes = Callable[[int], Iterable[tuple[CrashMode, int]]]
"""The modes and seeds for the crash at a step."""


def every_mode(step: int) -> Iterator[tuple[CrashMode, int]]:
    """Each mode once; the seed differs from step to step."""
    for mode in CrashMode:
        yield mode, step


def crash_images(
    points: Iterable[CrashPoint[T]],
    modes: Modes = every_mode,
    *,
    crashes_again: bool = False,
) -> Iterator[CrashImage[T]]:
    """The images of these moments, each of equal ones once.

    Equal are those of one demand (`KEEP_ALL` keeps everything, a power loss what was synced), one
    acknowledged state, and one content. A judge that crashes the disk again, before all of it is
    synced, says so: then unsynced bytes count as content.
    """
    seen: dict[Hashable, list[tuple[T, Bucket | None]]] = {}
    for point in points:
        assert point.disk is not None
        for mode, seed in modes(point.step):
            disk = point.disk.after_crash(mode, seed)
            content = disk.describe_content(only_visible=not crashes_again)
            key = (mode is CrashMode.KEEP_ALL, content)
            known = seen.setdefault(key, [])
            if (point.state, point.bucket) not in known:
                known.append((point.state, point.bucket))
                yield CrashImage(point, mode, seed, disk)


def distinct_buckets(points: Iterable[CrashPoint[T]]) -> Iterator[CrashPoint[T]]:
    """The moments of a run without a disk, each of equal ones once."""
    seen: list[tuple[T, Bucket | None]] = []
    for point in points:
        if (point.state, point.bucket) not in seen:
            seen.append((point.state, point.bucket))
            yield point


@contextmanager
def named(image: CrashImage[T] | CrashPoint[T]) -> Iterator[None]:
    """A failure within says where the crash was."""
    try:
        yield
    except BaseException as error:
        point = image.point if isinstance(image, CrashImage) else image
        text = f"crashed at {point.where or 'the end'}"
        if isinstance(image, CrashImage):
            text = f"{text}, then {image.mode} seed {image.seed}"
        if point.disk is not None:
            text = f"{text}, after\n{point.disk.describe_trace(4)}"
        error.add_note(text)
        raise
