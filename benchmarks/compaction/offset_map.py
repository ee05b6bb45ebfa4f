"""Cleaning a dirty log, against the two-pass cleaner with an offset map."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.compaction.cleanings import build_indexes, map_for, time_offset_map, time_varve
from benchmarks.compaction.keyed_log import (
    KeyedStore,
    LogShape,
    repeats_for,
    shapes_of,
    write_store,
)
from benchmarks.measure import Contest, Scale, at_least
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace

_ON_DISK_FACTOR = 3  # the log, what is left of it, key indexes


class OffsetMapMeasure:
    """Size: bytes of the log's records before compression, all of them dirty."""

    name = "offset_map"
    title = "cleaning a dirty log, against a two-pass cleaner with an offset map"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (4 << 20, 16 << 20) if quick else (128 << 20, 256 << 20, 512 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        shapes = shapes_of(scale)
        workspace.require(size * (len(shapes) + _ON_DISK_FACTOR))
        with workspace.directory("dirty") as parent:
            yield [
                contest
                for number, shape in enumerate(shapes)
                for contest in _contests(parent / str(number), shape, size, workspace, scale)
            ]


def _contests(
    directory: Path, shape: LogShape, size: int, workspace: Workspace, scale: Scale
) -> list[Contest]:
    source = write_store(directory, shape, size)
    build_indexes(source, scale)
    offset_map = map_for(source, scale)
    mib = size / (1 << 20)

    def ours(*, with_indexes: bool) -> float:
        return mib / time_varve(workspace, source, scale, with_indexes=with_indexes)

    def baseline() -> float:
        return mib / time_offset_map(workspace, source, scale.ticker, offset_map)

    return [
        Contest(
            name,
            "MiB/s",
            partial(ours, with_indexes=with_indexes),
            baseline,
            at_least(4),
            note,
            str(shape),
            repeats_for(shape),
        )
        for name, with_indexes, note in (
            ("clean", False, f"key indexes built within the time; {describe(source)}"),
            ("clean_indexed", True, "key indexes built beforehand, as in the background"),
        )
    ]


def describe(source: KeyedStore) -> str:
    shape = source.shape
    return (
        f"bytes of records before compression in segments of {format_bytes(shape.segment_bytes)}, "
        f"{shape.unique_share:.0%} of the keys distinct, in random order; "
        "data and indexes synced on both sides"
    )
