"""Reading the cold tier from start to end, against raw GETs of its objects and the hot log."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.cold_tier.places import open_places
from benchmarks.cold_tier.tiered_log import (
    PARTITION,
    copy_all,
    leave_disk,
    open_tiered,
    write_tiered,
)
from benchmarks.measure import Contest, Scale, Ticker, at_least
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace
from varve.commit_log import Log
from varve.object_store import ObjectStore

READ_BYTES = 1 << 20
_SEGMENTS = 8


class ColdReadMeasure:
    """Size: bytes of a segment."""

    name = "cold_read"
    title = "sequential cold read, against raw GETs of the same objects and against the hot log"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (4 << 20, 16 << 20) if quick else (16 << 20, 64 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * _SEGMENTS * 5)
        with workspace.directory("cold-read") as parent, open_places(workspace) as places:
            hot = parent / "hot"
            write_tiered(hot, segment_bytes=size, total_bytes=size * _SEGMENTS)
            contests = []
            for number, place in enumerate(places):
                directory, objects = parent / f"cold-{number}", place.new_bucket()
                write_tiered(directory, segment_bytes=size, total_bytes=size * _SEGMENTS)
                with open_tiered(directory, objects) as (store, _):
                    segments = copy_all(store)
                    home = store.tier.partitions.get(PARTITION).path
                    leave_disk(store)
                keys = [home.part_key(segment, "log") for segment in segments]
                read_cold = partial(_read_cold, directory, objects, scale)
                note = f"{_SEGMENTS} segments in reads of {format_bytes(READ_BYTES)}, no cache"
                contests += [
                    Contest(
                        "cold_read",
                        "MiB/s",
                        read_cold,
                        partial(_get_raw, objects, keys, scale.ticker),
                        at_least(0.9),
                        f"{note}; the baseline gets each object whole, one after another",
                        place.name,
                    ),
                    Contest(
                        "cold_as_hot",
                        "MiB/s",
                        read_cold,
                        partial(_read_hot, hot, scale),
                        None,
                        f"{note}; the baseline reads the same log from the local disk",
                        place.name,
                    ),
                ]
            yield contests


def _read_cold(directory: Path, objects: ObjectStore, scale: Scale) -> float:
    with open_tiered(directory, objects) as (_, log):
        return read_through(log, log.local_start_offset, scale.ticker)


def _read_hot(directory: Path, scale: Scale) -> float:
    from varve.object_store import MemoryObjectStore

    with open_tiered(directory, MemoryObjectStore()) as (_, log):
        return read_through(log, log.end_offset, scale.ticker)


def read_through(log: Log, end_offset: int, ticker: Ticker) -> float:
    """MiB/s of a reader that goes on from the log start to an offset."""
    offset, size = log.log_start_offset, 0
    start = ticker()
    while offset < end_offset:
        found = log.read(start_offset=offset, max_bytes=READ_BYTES)
        size += len(found.data)
        offset = found.next_offset
    return size / (1 << 20) / (ticker() - start)


def _get_raw(objects: ObjectStore, keys: Sequence[str], ticker: Ticker) -> float:
    start = ticker()
    size = sum(len(objects.get(key)) for key in keys)
    return size / (1 << 20) / (ticker() - start)
