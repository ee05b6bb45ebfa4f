"""Erasing a hundred keys that lie in a few segments of many, against those of one segment."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.compaction.keyed_log import encode_keys
from benchmarks.measure import Contest, Scale, at_most
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.spark.cold_topic import (
    SIZE_FACTOR,
    ColdTopic,
    copied,
    key_number,
    shape_of,
    write_cold,
)
from benchmarks.spark.figures import FEW_REPEATS_MAX, seconds
from benchmarks.spark.runs import EraseRun, Taken
from benchmarks.spark.sessions import Sessions
from benchmarks.workspace import Workspace
from varve.foundation.errors import InvalidRequest

KEY_COUNT = 100
FULL_SEGMENTS, QUICK_SEGMENTS = 160, 32
"""So many of 64 MiB are 10 GiB: manifests and requests are those of such a topic, data is less."""
_SEGMENT_BYTES = 1 << 20


class EraseMeasure:
    """Size: segments that hold a record of the keys."""

    name = "erase"
    title = f"erasing {KEY_COUNT} keys from so many segments, against those of one segment"
    size_unit = SizeUnit.COUNT

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (4, 16)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        count = QUICK_SEGMENTS if scale.is_quick else FULL_SEGMENTS
        workspace.require(count * _SEGMENT_BYTES * SIZE_FACTOR)
        with workspace.directory("erase") as parent:
            topic = write_segments(parent, count, scale)
            many = partial(self._erase, topic, size, workspace)
            one = partial(self._erase, topic, 1, workspace)
            note = (
                f"the bucket has {len(topic.segments)} segments of {format_bytes(_SEGMENT_BYTES)}, "
                "found and proved by their key indexes"
            )
            contests = [
                Contest(
                    "erase",
                    "s",
                    lambda: seconds(many(), scale),
                    lambda: seconds(one(), scale),
                    at_most(size),
                    note,
                    repeat_count_max=1 if scale.is_quick else FEW_REPEATS_MAX,
                ),
                Contest(
                    "erase_bytes",
                    "MiB",
                    lambda: many().store_bytes / (1 << 20),
                    lambda: one().store_bytes / (1 << 20),
                    at_most(size),
                    f"read from the bucket and written to it; {note}",
                    repeat_count_max=1,
                ),
            ]
            self._sessions.warm_up(contests, scale)
            yield contests

    def _erase(self, topic: ColdTopic, segment_count: int, workspace: Workspace) -> Taken:
        with copied(topic, workspace) as url:
            keys = choose_keys(topic, segment_count)
            return self._sessions.run(EraseRun(url, keys, segment_count))


def write_segments(directory: Path, count: int, scale: Scale) -> ColdTopic:
    """About so many segments, every record with a key of its own."""
    shape = shape_of(replace(scale, unique_share=1.0), scale.record_bytes[0])
    shape = replace(shape, segment_bytes=min(_SEGMENT_BYTES, shape.segment_bytes))
    return write_cold(directory, shape, shape.count_records(count * shape.segment_bytes))


def choose_keys(topic: ColdTopic, segment_count: int) -> frozenset[bytes]:
    """A hundred keys, shared evenly by segments that are spread over the topic."""
    if segment_count > len(topic.segments):
        raise InvalidRequest(f"there are {len(topic.segments)} segments, not {segment_count}")
    chosen = np.linspace(0, len(topic.segments) - 1, segment_count).astype(np.int64)
    shares = np.diff(np.linspace(0, KEY_COUNT, segment_count + 1).astype(np.int64))
    keys: list[bytes] = []
    for index, share in zip(chosen.tolist(), shares.tolist(), strict=True):
        one = topic.segments[index]
        offsets = np.linspace(one.base_offset, one.end_offset, share).astype(np.int64)
        keys += [row.tobytes() for row in encode_keys(key_number(offsets, one.partition))]
    return frozenset(keys)
