"""Copying closed segments to the tier, against raw puts of the same bytes."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.cold_tier.places import Place, open_places
from benchmarks.cold_tier.tiered_log import copy_all, open_tiered, write_tiered
from benchmarks.measure import Contest, Scale, at_least
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from varve.object_store import ObjectStore
from varve.tiering.segment_upload import CHUNK_BYTES

_SEGMENTS = 4


class CopyMeasure:
    """Size: bytes of a segment."""

    name = "copy"
    title = "copying closed segments, against raw puts of the same bytes"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (4 << 20, 16 << 20) if quick else (16 << 20, 64 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * _SEGMENTS * 20)
        with workspace.directory("copy") as parent, open_places(workspace) as places:
            directory = parent / "store"
            write_tiered(directory, segment_bytes=size, total_bytes=size * _SEGMENTS)
            yield [
                Contest(
                    "copy",
                    "MiB/s",
                    partial(_copy, directory, place, scale),
                    partial(_put_raw, directory, place, scale),
                    at_least(0.85),
                    f"{_SEGMENTS} segments, announced, checked and committed one after another, "
                    "against the same files read and put, with nothing told of them",
                    place.name,
                )
                for place in places
            ]


def _copy(directory: Path, place: Place, scale: Scale) -> float:
    objects = place.new_bucket()
    with open_tiered(directory, objects) as (store, _):
        start = scale.ticker()
        segments = copy_all(store)
        elapsed = scale.ticker() - start
        # The next run must find the store as this one did: it copies to another bucket.
        size = sum(segment.stored_bytes for segment in segments)
    _empty(objects)
    return size / (1 << 20) / elapsed


def _put_raw(directory: Path, place: Place, scale: Scale) -> float:
    objects = place.new_bucket()
    names = sorted(directory.glob("*/*.log"))[:-1]
    paths = [
        path
        for name in names
        for path in sorted(name.parent.glob(f"{name.stem}.*"))
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot")
    ]
    prefix = f"raw/{random.Random(str(directory)).random()}"
    start = scale.ticker()
    total = sum(_put(objects, f"{prefix}/{path.name}", path) for path in paths)
    elapsed = scale.ticker() - start
    _empty(objects)
    return total / (1 << 20) / elapsed


def _put(objects: ObjectStore, key: str, path: Path) -> int:
    size = path.stat().st_size
    if size <= CHUNK_BYTES:
        objects.put(key, path.read_bytes())
    else:
        objects.put_parts(key, _chunks(path), size=size)
    return size


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _empty(objects: ObjectStore) -> None:
    objects.delete([info.key for info in objects.list("")])
    objects.close()
