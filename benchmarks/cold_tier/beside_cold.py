"""Hot appends and reads while cold readers run, against the same without them."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.cold_tier.places import open_places
from benchmarks.cold_tier.reading import READ_BYTES
from benchmarks.cold_tier.tiered_log import copy_all, leave_disk, open_tiered, write_tiered
from benchmarks.hot_log.logs import BATCH_BYTES, ready_batches
from benchmarks.measure import Contest, Scale, at_most
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from varve.commit_log import Log
from varve.object_store import ObjectStore

_SEGMENT_BYTES = 16 << 20
_SEGMENTS = 8
_PAUSE_SECONDS = 0.0005


class BesideColdMeasure:
    """Size: hot appends, each followed by a read of it."""

    name = "beside_cold"
    title = "hot append and read latency while four cold readers run, against alone"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (250, 500) if quick else (500, 2_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(_SEGMENT_BYTES * _SEGMENTS * 6)
        with workspace.directory("beside") as parent, open_places(workspace) as places:
            contests = []
            for number, place in enumerate(places):
                directory, objects = parent / str(number), place.new_bucket()
                write_tiered(
                    directory,
                    segment_bytes=_SEGMENT_BYTES,
                    total_bytes=_SEGMENT_BYTES * _SEGMENTS,
                )
                with open_tiered(directory, objects) as (store, _):
                    copy_all(store)
                    leave_disk(store)
                contests += [
                    Contest(
                        f"{what}_{name}",
                        "s",
                        partial(_measure, directory, objects, size, take, quantile, readers=4),
                        partial(_measure, directory, objects, size, take, quantile, readers=0),
                        at_most(1.2),
                        f"a batch of {BATCH_BYTES >> 10} KiB appended and read back every half "
                        "millisecond, while four threads read the cold tier through and through",
                        place.name,
                        is_wall_time=True,
                        repeat_count_max=3,
                    )
                    for what, take in (("append", 0), ("read", 1))
                    for name, quantile in (("p50", 50.0), ("p99", 99.0))
                ]
            yield contests


def _measure(
    directory: Path, objects: ObjectStore, count: int, take: int, quantile: float, *, readers: int
) -> float:
    with open_tiered(directory, objects, varve_tier_cache_bytes=32 << 20) as (_, log):
        stop = threading.Event()
        threads = [
            threading.Thread(target=_read_cold, args=(log, stop.is_set)) for _ in range(readers)
        ]
        for thread in threads:
            thread.start()
        try:
            seconds = _append_and_read(log, count)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    return float(np.percentile(seconds[:, take], quantile))


def _read_cold(log: Log, is_stopped: Callable[[], bool]) -> None:
    end = log.local_start_offset
    while not is_stopped():
        offset = log.log_start_offset
        while offset < end and not is_stopped():
            offset = log.read(start_offset=offset, max_bytes=READ_BYTES).next_offset


def _append_and_read(log: Log, count: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    batches = ready_batches(BATCH_BYTES, 4 << 20)
    seconds = np.zeros((count, 2))
    pause = threading.Event()
    for number in range(count):
        start = time.perf_counter()
        offset = log.append(batches[number % len(batches)]).base_offset
        middle = time.perf_counter()
        log.read(start_offset=offset, max_bytes=READ_BYTES)
        seconds[number] = (middle - start, time.perf_counter() - middle)
        pause.wait(_PAUSE_SECONDS)
    return seconds
