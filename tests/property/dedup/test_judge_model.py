"""The judge equals a record-by-record model, for any stream, cut, engine and crash."""

from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import dedup_bench
from tests.support.dedup_model import Arrival as JobArrival
from tests.support.window_dedup import NOW_MS, Arrival, DedupBench, DedupModel, Judged, make_rules
from varve.dedup.judge import FEW_COUNT_MAX, Judgement
from varve.dedup.rules import FUTURE_MS_MAX, DedupRules, Verdict

IDS = [*[b"a"] * 4, *[b"an id of more than sixteen"] * 3, b"a\0", b"", b"sixteen bytes id", None]
SCALES = (1, 2_000, 20_000)
"""All in one segment; a few cells in each of many; windows of minutes, a cell in each segment."""
FUTURE = NOW_MS + FUTURE_MS_MAX + 1


@dataclass(frozen=True)
class Story:
    """The rules, and a stream in the order of offsets, which have holes."""

    rules: DedupRules
    stream: list[Arrival]
    random: Random
    few_count_max: int
    """Up to how many records are judged in plain Python."""

    def bench(self, engine: str = "memory") -> DedupBench:
        return DedupBench(self.rules, engine, few_count_max=self.few_count_max)


@st.composite
def stories(draw: st.DrawFn, *, count_max: int = 40, is_plain: bool = False) -> Story:
    """Times walk on, back and forth within the lateness and beyond it; some are not times.

    Streams are drawn by a seed: what Hypothesis draws by itself has few copies in it.
    """
    scale = draw(st.sampled_from(SCALES))
    units = st.integers(0, 12)
    rules = make_rules(
        before=draw(units) * scale,
        after=draw(units) * scale,
        lateness=draw(st.integers(0, 30)) * scale,
        refresh=draw(st.booleans()),
    )
    random = Random(draw(st.integers(0, 1 << 32)))
    stream, offset, walked = [], 0, 40
    for _ in range(draw(st.integers(count_max // 2, count_max))):
        move = random.randint(-15, 20)
        time = max(0, (walked + move) * scale + random.randint(-1, 1))
        walked += max(0, move // 3)
        if not is_plain:
            time = random.choice([time] * 18 + [-1, FUTURE])
        stream.append(Arrival(offset, random.choice(IDS), time))
        offset += random.randint(1, 2)
    return Story(rules, stream, random, draw(st.sampled_from((0, 4, FEW_COUNT_MAX))))


def cut(story: Story) -> list[list[Arrival]]:
    """The stream in chunks, some of them empty."""
    count = len(story.stream)
    cuts = sorted(story.random.randint(0, count) for _ in range(story.random.randint(0, 6)))
    return [story.stream[start:end] for start, end in pairwise([0, *cuts, count])]


def one_by_one(story: Story) -> list[Judged]:
    bench = DedupBench(story.rules)
    return [judged for one in story.stream for judged in bench.chunk([one])]


@given(stories())
def test_chunks_are_judged_as_records_one_by_one_are(story: Story) -> None:
    bench = story.bench()
    found = [one for chunk in cut(story) for one in bench.chunk(chunk)]
    assert found == one_by_one(story)


@given(stories())
def test_few_records_are_judged_and_remembered_as_many_are(story: Story) -> None:
    bench, many = DedupBench(story.rules), DedupBench(story.rules, few_count_max=0)
    bench.whole_from = many.whole_from = story.random.choice([0, 0, 40 * story.rules.cell_ms])
    for chunk in cut(story):
        few = bench.judge(chunk, few_count_max=FEW_COUNT_MAX)
        assert to_plain(few) == to_plain(bench.judge(chunk, few_count_max=0))
        # Either way reads what the other has written.
        bench.few_count_max = story.random.choice([0, FEW_COUNT_MAX])
        assert bench.chunk(chunk) == many.chunk(chunk)


def to_plain(judged: Judgement) -> tuple[object, ...]:
    """All of a judgement, to be compared."""
    new_ids, entries = judged.new_ids, judged.new_ids.entries
    changes = new_ids.changes
    if not isinstance(changes, dict):
        spans = map(tuple, changes.spans.tolist())
        changes = dict(zip(map(tuple, changes.cells.tolist()), spans, strict=True))
    columns: list[npt.NDArray[Any]] = [entries.words, entries.kinds, entries.times, entries.offsets]
    return (
        judged.verdicts.tolist(),
        judged.witness_offsets.tolist(),
        judged.stream_time_after,
        [(one.dtype, one.tolist()) for one in columns],
        changes,
    )


@given(stories())
def test_any_stream_equals_the_model(story: Story) -> None:
    model, bench = DedupModel(story.rules), story.bench()
    found = [one for chunk in cut(story) for one in bench.chunk(chunk)]
    for arrival, judged in zip(story.stream, found, strict=True):
        verdict, witnesses = model.judge(arrival)
        assert judged.verdict is verdict
        assert judged.witness in (witnesses or {-1})
    assert bench.stream_time == model.stream_time


@given(stories())
def test_a_crash_between_any_two_chunks_changes_no_answer(story: Story) -> None:
    bench = story.bench()
    found = []
    for chunk in cut(story):
        found += bench.chunk(chunk)
        what = story.random.choice(["nothing", "checkpoint", "crash", "start", "reset"])
        match what:
            case "checkpoint":
                bench.checkpoint()
            case "crash":
                bench.crash()
            case "start":
                bench.reopen()
            case "reset":
                bench.store.reset()
                bench.reopen()
    assert found == one_by_one(story)


@settings(max_examples=12)
@given(stories())
def test_on_rocksdb_the_answers_are_those_of_memory(story: Story) -> None:
    bench = story.bench("rocks")
    try:
        found = []
        for number, chunk in enumerate(cut(story)):
            found += bench.chunk(chunk)
            if number == 1:
                bench.checkpoint()
            if number == 2:
                bench.reopen()
    finally:
        bench.close()
    assert found == one_by_one(story)


@settings(max_examples=30)
@given(stories(is_plain=True, count_max=20))
def test_the_spark_job_gives_the_same_verdicts_record_by_record(story: Story) -> None:
    """Its watermark moves between batches, so that batches of one record are judged alike."""
    rules = story.rules
    job = dedup_bench.DedupBench(
        before=rules.before_ms,
        after=rules.after_ms,
        lateness=rules.lateness_ms,
        refresh=rules.is_refreshing,
    )
    ours = [judged.verdict.name for judged in story.bench().chunk(story.stream)]
    theirs = []
    for one in story.stream:
        told = job.batch([JobArrival(0, one.offset, one.id, one.time)], NOW_MS)
        theirs.append(Verdict(told[0, one.offset]).name)
    assert ours == theirs
