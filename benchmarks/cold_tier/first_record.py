"""From asking for a cold offset to its first record, against one ranged GET of as many bytes."""

import gc
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.cold_tier.places import open_places
from benchmarks.cold_tier.tiered_log import (
    PARTITION,
    copy_all,
    leave_disk,
    open_tiered,
    write_tiered,
)
from benchmarks.measure import Contest, Scale, Ticker, at_most
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.object_store import ObjectStore

_SEGMENT_BYTES = 16 << 20
_SEGMENTS = 16


class FirstRecordMeasure:
    """Size: bytes asked for in the read."""

    name = "first_record"
    title = "time to the first record of a cold offset, against one GET"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (64 << 10, 1 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(_SEGMENT_BYTES * _SEGMENTS * 4)
        with workspace.directory("first") as parent, open_places(workspace) as places:
            contests = []
            for number, place in enumerate(places):
                directory, objects = parent / str(number), place.new_bucket()
                write_tiered(
                    directory,
                    segment_bytes=_SEGMENT_BYTES,
                    total_bytes=_SEGMENT_BYTES * _SEGMENTS,
                )
                with open_tiered(directory, objects) as (store, _):
                    segments = copy_all(store)
                    home = store.tier.partitions.get(PARTITION).path
                    leave_disk(store)
                keys = [home.part_key(segment, "log") for segment in segments]
                get = partial(_get_once, objects, keys, size, scale.ticker)
                contests += [
                    Contest(
                        "first_record",
                        "s",
                        partial(
                            _fetch, directory, objects, size, scale.ticker, has_index=has_index
                        ),
                        get,
                        at_most(1.5),
                        f"a random offset in each of {_SEGMENTS} segments of "
                        f"{format_bytes(_SEGMENT_BYTES)}, median; nothing of the data is cached",
                        f"{place.name}, index {'cached' if has_index else 'fetched too'}",
                    )
                    for has_index in (True, False)
                ]
            yield contests


def _fetch(
    directory: Path, objects: ObjectStore, size: int, ticker: Ticker, *, has_index: bool
) -> float:
    # What earlier repeats held is in cycles; freed late, it makes every page of this one a new one.
    gc.collect()
    if not has_index:
        shutil.rmtree(directory / REMOTE_INDEX_CACHE_DIRECTORY, ignore_errors=True)
    with open_tiered(directory, objects) as (store, log):
        reader = store.tier.partitions.get(PARTITION)
        segments = [one for one in reader.manifests.segments(reader.load()) if one.is_readable]
        if has_index:
            for segment in segments:
                store.tier.caches.indexes.offset_index(reader.path, segment)
        chance = random.Random(size)
        log.read(start_offset=segments[0].base_offset, max_bytes=1)  # the manifest is at hand
        seconds = []
        for segment in segments:
            offset = chance.randrange(segment.base_offset + 1, segment.end_offset)
            start = ticker()
            log.read(start_offset=offset, max_bytes=size)
            seconds.append(ticker() - start)
    return median(seconds)


def _get_once(objects: ObjectStore, keys: Sequence[str], size: int, ticker: Ticker) -> float:
    chance = random.Random(size)
    seconds = []
    for key in keys:
        position = chance.randrange(0, _SEGMENT_BYTES - size)
        start = ticker()
        objects.get_range(key, position, position + size)
        seconds.append(ticker() - start)
    return median(seconds)
