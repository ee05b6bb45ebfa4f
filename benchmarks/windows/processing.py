"""A topic to a topic without its duplicates: the processor, against the job on Spark."""

import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count as counting
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import varve
from benchmarks.measure import Contest, Scale
from benchmarks.sizes import SizeUnit
from benchmarks.spark.figures import TimedRuns, seconds
from benchmarks.spark.runs import Taken, Timer
from benchmarks.spark.sessions import Sessions
from benchmarks.windows.events import COPY_SHARE, RULES, WINDOW_MS, Events, make_events
from benchmarks.workspace import Workspace
from varve.dedup import Deduplicator

_INPUT: Final = "in"
_OUTPUT: Final = "out"
_VALUE_BYTES: Final = 100
_EVENT_BYTES: Final = 150
_VALUES: Final = 1_000
_REPEAT_COUNT_MAX: Final = 3


class ProcessorMeasure:
    """Size: records of the topic."""

    name = "processor"
    title = "a topic to a topic without its duplicates, against the job on Spark"
    size_unit = SizeUnit.COUNT

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (100_000,) if quick else (200_000, 1_000_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * _EVENT_BYTES * 5)
        with workspace.directory("processor") as parent:
            events = make_events(size)
            _write_topic(parent / "source", events)
            ours = TimedRuns(partial(_run_processor, parent, events.kept))
            places = (parent / f"spark-{number}" for number in counting())
            baseline = TimedRuns(
                lambda: self._sessions.run(SparkRun(str(_copy(parent, next(places))), events.kept))
            )
            contests = [
                Contest(
                    self.name,
                    "records/s",
                    lambda: size / seconds(ours(), scale),
                    lambda: size / seconds(baseline(), scale),
                    None,
                    f"values of {_VALUE_BYTES} B, {COPY_SHARE:.0%} copies, a window of "
                    f"{WINDOW_MS // 1000} s, one partition; both keep the same. A new "
                    "deduplication on both sides, a session of Spark that has run before",
                    repeat_count_max=1 if scale.is_quick else _REPEAT_COUNT_MAX,
                ),
                Contest(
                    f"{self.name}_cpu",
                    "CPU s",
                    ours.cpu_seconds,
                    baseline.cpu_seconds,
                    None,
                    "of this process, and of driver, Java and Python workers, in the runs above",
                    repeat_count_max=1,
                ),
            ]
            self._sessions.warm_up(contests, scale)
            yield contests


@dataclass(frozen=True, slots=True)
class SparkRun:
    """The job in a directory of its own; raises AssertionError when it keeps other records."""

    place: str
    kept: int

    def run(self, spark: SparkSession) -> Taken:
        from varve.jobs.tier.location import TopicLocation
        from varve.spark.deduplication.functions import DedupPlan, DedupSettings
        from varve.spark.deduplication.outputs import TopicOutput

        directory = f"{self.place}/data"
        settings = DedupSettings(
            by=RULES.by,
            before_ms=RULES.before_ms,
            after_ms=RULES.after_ms,
            lateness_ms=RULES.lateness_ms,
        )
        timer = Timer(spark)
        plan = DedupPlan(
            location=TopicLocation(dir=directory),
            topic=_INPUT,
            output=TopicOutput(directories=(directory,), topic=_OUTPUT),
            settings=settings,
            checkpoint=f"{self.place}/checkpoint",
        )
        result = plan.run(spark)
        taken = timer.taken()
        _check(result.counts.kept, self.kept)
        shutil.rmtree(self.place)
        return taken


def _run_processor(parent: Path, kept: int) -> Taken:
    """From opening the store to having closed it, in this process."""
    place = _copy(parent, parent / "ours")
    wall, cpu = time.perf_counter(), time.process_time()
    with (
        varve.open(place / "data") as store,
        Deduplicator.open(store, _INPUT, _OUTPUT, RULES) as dedup,
    ):
        dedup.run_once()
        found = sum(state.counts.kept for state in dedup.states())
    taken = Taken(time.perf_counter() - wall, time.process_time() - cpu)
    _check(found, kept)
    shutil.rmtree(place)
    return taken


def _write_topic(place: Path, events: Events) -> None:
    source = random.Random(1)
    values = [source.randbytes(_VALUE_BYTES) for _ in range(_VALUES)]
    records = (
        varve.NewRecord(key=id, value=values[place % _VALUES], timestamp=time)
        for place, (id, time) in enumerate(zip(events.ids, events.times, strict=True))
    )
    with varve.open(place / "data") as store:
        store.create_topic(_INPUT, settings={"retention.ms": -1}).append_many(records)


def _copy(parent: Path, place: Path) -> Path:
    shutil.copytree(parent / "source", place)
    return place


def _check(found: int, kept: int) -> None:
    if found != kept:
        raise AssertionError(f"{found:,} records kept, not {kept:,}")
