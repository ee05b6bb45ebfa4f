"""How compaction and scan grow with the data, and with a second core."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.measure import Contest, Scale, at_least, at_most
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.spark.cold_topic import SIZE_FACTOR, ColdTopic, shape_of, write_cold
from benchmarks.spark.compacting import run_compaction
from benchmarks.spark.figures import FEW_REPEATS_MAX, seconds
from benchmarks.spark.runs import ScanRun, Taken
from benchmarks.spark.sessions import Sessions
from benchmarks.workspace import Workspace

FULL_BYTES, QUICK_BYTES = 64 << 20, 8 << 20
"""The size that the others are multiples of."""

RunOn = Callable[[ColdTopic, int], Taken]
"""A job over a topic on so many cores."""


def _write(directory: Path, size: int, scale: Scale) -> ColdTopic:
    shape = shape_of(scale, scale.record_bytes[0])
    return write_cold(directory, shape, shape.count_records(size))


def _jobs(sessions: Sessions, workspace: Workspace) -> dict[str, RunOn]:
    return {
        "compact": lambda topic, cores: run_compaction(sessions, topic, workspace, cores),
        "scan": lambda topic, cores: sessions.run(ScanRun(topic.url), cores=cores),
    }


class GrowthMeasure:
    """Size: bytes of the topic's records."""

    name = "growth"
    title = "seconds per MiB of a larger topic, against those of the smallest"
    size_unit = SizeUnit.BYTES

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        base = QUICK_BYTES if quick else FULL_BYTES
        return (2 * base, 4 * base)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        base = QUICK_BYTES if scale.is_quick else FULL_BYTES
        workspace.require((base + size) * SIZE_FACTOR)
        with workspace.directory("growth") as parent:
            small = _write(parent / "small", base, scale)
            large = _write(parent / "large", size, scale)
            contests = [
                Contest(
                    f"growth_{name}",
                    "s/MiB",
                    partial(_cost, run, large, scale),
                    partial(_cost, run, small, scale),
                    at_most(1.1),
                    f"the baseline has {format_bytes(base)}",
                    format_bytes(scale.record_bytes[0]),
                    repeat_count_max=1 if scale.is_quick else FEW_REPEATS_MAX,
                )
                for name, run in _jobs(self._sessions, workspace).items()
            ]
            self._sessions.warm_up(contests, scale)
            yield contests


def _cost(run: RunOn, topic: ColdTopic, scale: Scale) -> float:
    return seconds(run(topic, 2), scale) / topic.mib


class CoresMeasure:
    """Size: bytes of the topic's records."""

    name = "cores"
    title = "two cores, against one"
    size_unit = SizeUnit.BYTES

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (QUICK_BYTES, 2 * QUICK_BYTES) if quick else (2 * FULL_BYTES, 8 * FULL_BYTES)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * SIZE_FACTOR)
        with workspace.directory("cores") as parent:
            topic = _write(parent / "topic", size, scale)
            contests = [
                Contest(
                    f"cores_{name}",
                    "MiB/s",
                    partial(_rate, run, topic, 2),
                    partial(_rate, run, topic, 1),
                    at_least(1.6),
                    "sessions local[2] and local[1] side by side, one at work at a time; wall time "
                    "always",
                    format_bytes(scale.record_bytes[0]),
                    repeat_count_max=1 if scale.is_quick else FEW_REPEATS_MAX,
                    is_wall_time=True,
                )
                for name, run in _jobs(self._sessions, workspace).items()
            ]
            self._sessions.warm_up(contests, scale)
            yield contests


def _rate(run: RunOn, topic: ColdTopic, cores: int) -> float:
    return topic.mib / run(topic, cores).wall_seconds
