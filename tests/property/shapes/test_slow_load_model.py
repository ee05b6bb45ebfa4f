"""However slowly a topic is read and however it is cleaned meanwhile, the rows are the topic's.

Carries S1.
"""

import json
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from tests.support.feed_bench import build_feed
from tests.support.memory_directory import memory_directory
from tests.support.rounds import machine_settings
from tests.support.slow_topic import SlowTopic
from varve.foundation.clock import ManualClock
from varve.shapes.feed.topic_feed import TopicFeed

_KEPT_MS: Final = 1000
_RECORDS = st.tuples(st.integers(0, 5), st.booleans())
_STEPS = st.tuples(
    st.just([]) | st.lists(_RECORDS, max_size=3),
    st.sampled_from([400, 1500]),
    st.sampled_from([0, 2, 1]),
)


@machine_settings(100)
@given(first=st.lists(_RECORDS, max_size=10), steps=st.lists(_STEPS, max_size=12))
def test_rows_are_those_of_the_topic(
    first: list[tuple[int, bool]], steps: list[tuple[list[tuple[int, bool]], int, int]]
) -> None:
    clock = ManualClock()
    source = SlowTopic(clock, tombstones_ms=_KEPT_MS, batch_records=2)
    waiting = iter(steps)

    def write(records: list[tuple[int, bool]]) -> None:
        for key, is_row in records:
            value = json.dumps({"n": source.ends[0]}).encode() if is_row else None
            source.append(0, b"%d" % key, value)

    def happen(next_offset: int) -> None:
        records, passed_ms, cleanings = next(waiting, ([], 0, 0))
        write(records)
        for _ in range(cleanings):
            clock.advance(passed_ms)
            source.clean()

    write([(key, True) for key in range(6)])
    write(first)
    source.happen = happen
    with memory_directory() as path:
        feed = build_feed(source, f"{path}/tables", clock=clock)
        _read_to_the_end(feed, len(steps))
        with feed.view() as view:
            rows = {json.loads(row["key"]).encode(): int(row["n"]) for _, row in view.rows()}
        assert rows == {key: json.loads(text)["n"] for key, text in source.state().items()}
        feed.close()


def _read_to_the_end(feed: TopicFeed, steps: int) -> None:
    feed.open()
    for _ in range(3 * steps + 20):
        feed.poll(max_records=3, wait_ms=0)
        if not feed.is_open:
            feed.open()
    assert feed.is_caught_up
