"""The suite `dedup`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks.dedup.event_files import EVENT_BYTES, write_events
from benchmarks.dedup.runs import StreamRun
from benchmarks.measure import Contest, Scale, Suite, at_least
from benchmarks.sizes import SizeUnit
from benchmarks.spark.figures import TimedRuns, seconds
from benchmarks.spark.sessions import Sessions
from benchmarks.workspace import Workspace

_EVENTS = 1_000_000
_QUICK_EVENTS = 100_000
_BATCHES_MIN = 2
_WINDOW_MS = 200_000
_REPEAT_COUNT_MAX = 3
_AIM = at_least(0.8)


class WindowMeasure:
    """Size: events of a micro-batch."""

    name = "window"
    title = "an exact window of ids, against dropDuplicatesWithinWatermark"
    size_unit = SizeUnit.COUNT

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (10_000, 50_000) if quick else (100_000, 500_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        least = _QUICK_EVENTS if scale.is_quick else _EVENTS
        count = max(least, size * _BATCHES_MIN)
        workspace.require(count * EVENT_BYTES * 4)
        with workspace.directory("dedup") as parent:
            events = write_events(parent / "events", count, size, _WINDOW_MS)
            ours, baseline = (
                TimedRuns(
                    partial(self._sessions.run, StreamRun(name, events, str(parent / "state")))
                )
                for name in ("exact", "builtin")
            )
            yield [
                Contest(
                    self.name,
                    "events/s",
                    lambda: count / seconds(ours(), scale),
                    lambda: count / seconds(baseline(), scale),
                    _AIM,
                    f"{count:,} events, a fifth copies, into no sink; a window of "
                    f"{_WINDOW_MS // 1000} s, and what it keeps is compared with a model",
                    repeat_count_max=1 if scale.is_quick else _REPEAT_COUNT_MAX,
                ),
                Contest(
                    f"{self.name}_cpu",
                    "CPU s",
                    ours.cpu_seconds,
                    baseline.cpu_seconds,
                    None,
                    "of driver, Java and Python workers in the runs above",
                    repeat_count_max=1,
                ),
            ]


DEDUP = Suite(
    name="dedup",
    title="deduplication of a stream on Spark: an exact window against the built-in operator",
    measures=(WindowMeasure(Sessions()),),
    quick_seconds=75.0,
)
