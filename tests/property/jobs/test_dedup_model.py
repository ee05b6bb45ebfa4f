"""The deduplication equals a record-by-record model, for any stream, cut and state of caches."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.support.dedup_bench import DedupBench, shuffled
from tests.support.dedup_model import Arrival, DedupModel

NOW = 10_000_000
IDS = st.sampled_from([b"a", b"a\0", b"", b"sixteen bytes id", b"an id of more than sixteen", None])
SPANS = st.integers(0, 12)


@dataclass(frozen=True)
class Story:
    """A stream: batches of (partition, id, time), as they come."""

    before: int
    after: int
    lateness: int
    refresh: bool
    batches: list[list[tuple[int, bytes | None, int | None]]]

    def arrivals(self) -> list[list[Arrival]]:
        ends = [0, 0]
        made: list[list[Arrival]] = []
        for batch in self.batches:
            made.append([])
            for partition, identity, time in batch:
                made[-1].append(Arrival(partition, ends[partition], identity, time))
                ends[partition] += 1
        return made


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Times walk on with the batches, back and forth within the lateness and beyond it."""
    batches = []
    for number in range(draw(st.integers(1, 6))):
        times = st.none() | st.integers(number * 8, number * 8 + 30)
        row = st.tuples(st.integers(0, 1), IDS, times)
        batches.append(draw(st.lists(row, max_size=12)))
    lateness = draw(st.integers(0, 40))
    return Story(draw(SPANS), draw(SPANS), lateness, draw(st.booleans()), batches)


def make_pair(story: Story) -> tuple[DedupModel, DedupBench]:
    before, after, lateness = story.before, story.after, story.lateness
    return (
        DedupModel(before, after, lateness, story.refresh),
        DedupBench(before=before, after=after, lateness=lateness, refresh=story.refresh),
    )


@given(stories(), st.lists(st.integers(0, 3), min_size=6, max_size=6), st.integers(0, 1 << 32))
def test_any_stream_equals_the_model_in_any_row_order_and_worker(
    story: Story, workers: list[int], seed: int
) -> None:
    model, bench = make_pair(story)
    for number, arrivals in enumerate(story.arrivals()):
        worker = workers[number]
        if worker >= len(bench.workers):
            bench.workers = [{}, {}]  # the processes were started anew
        expected = model.batch(arrivals, NOW)
        found = bench.batch(shuffled(arrivals, seed + number), NOW, worker=worker % 2)
        assert found == expected
        assert bench.watermark == model.watermark


@given(stories(), st.integers(0, 5))
def test_a_batch_that_failed_and_comes_again_is_judged_as_if_it_had_not(
    story: Story, failing: int
) -> None:
    model, bench = make_pair(story)
    for number, arrivals in enumerate(story.arrivals()):
        if number == failing:
            saved = {bucket: store.copy() for bucket, store in bench.stores.items()}
            watermark = bench.watermark
            bench.batch(arrivals, NOW)  # the cache goes ahead, the store goes back
            bench.stores, bench.watermark = saved, watermark
            arrivals = arrivals[: len(arrivals) // 2]
        assert bench.batch(arrivals, NOW) == model.batch(arrivals, NOW)


@given(stories())
def test_a_stream_from_its_beginning_is_judged_alike_by_workers_that_saw_its_end(
    story: Story,
) -> None:
    _, bench = make_pair(story)
    verdicts = []
    for _ in range(2):
        verdicts.append([bench.batch(arrivals, NOW) for arrivals in story.arrivals()])
        bench.begin_again()
    assert verdicts[0] == verdicts[1]
