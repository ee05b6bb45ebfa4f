"""What is uncertain in one run of a feed is so in every later one, wherever that begins.

Carries S3.
"""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory_topic import MemoryTopic
from varve.shapes.feed.changes import UncertainRows
from varve.shapes.feed.decoders import Decoded, RecordKind
from varve.shapes.feed.journal import OffsetSpan
from varve.shapes.feed.order import SequencedRecords

_STEPS = st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 3]), st.sampled_from("abc")), min_size=1)
_CUTS = st.lists(st.integers(1, 5), min_size=1)
_SEEN_BITS = 3


class _Log:
    """Records with gaps between them, read in ranges."""

    def __init__(self, steps: Sequence[tuple[int, str]]) -> None:
        self.keys: dict[int, str] = {}
        self.end = 0
        for step, key in steps:
            self.keys[self.end + step - 1] = key
            self.end += step

    def take(self, start: int, size: int) -> tuple[SequencedRecords, list[str]]:
        end = min(start + size, self.end)
        offsets = [offset for offset in self.keys if start <= offset < end]
        decoded = Decoded(RecordKind.UPSERT)
        entries = [(offset, 0, 0, decoded) for offset in offsets]
        return SequencedRecords(OffsetSpan(0, start, end, start + 1), entries), [
            self.keys[at] for at in offsets
        ]


def _judge(
    log: _Log, doubts: UncertainRows, start: int, cuts: Sequence[int]
) -> tuple[set[int], dict[int, dict[int, int]]]:
    """Which offsets are uncertain, and the ends of doubts at each place on the way."""
    uncertain: set[int] = set()
    ends = {start: doubts.ends}
    number = 0
    while start < log.end and doubts.applies_to(0):
        taken, keys = log.take(start, cuts[number % len(cuts)])
        judged = doubts.flag(taken, keys)
        uncertain |= {one[0] for one, is_so in zip(taken.entries, judged, strict=True) if is_so}
        start, number = taken.span.end, number + 1
        ends[start] = doubts.ends
    return uncertain, ends


@given(steps=_STEPS, cuts=_CUTS, again=_CUTS, horizon=st.integers(1, 60), data=st.data())
def test_a_later_run_doubts_whatever_an_earlier_one_did(
    steps: list[tuple[int, str]],
    cuts: list[int],
    again: list[int],
    horizon: int,
    data: st.DataObject,
) -> None:
    log = _Log(steps)

    def make(horizon: int, known: dict[int, int], start: int) -> UncertainRows:
        topic = MemoryTopic()
        topic.ends[0] = log.end
        return UncertainRows(topic, {0: horizon}, known, {0: start}, seen_bits=_SEEN_BITS)

    first, ends = _judge(log, make(min(horizon, log.end), {}, 0), 0, cuts)
    start = data.draw(st.sampled_from(sorted(ends)))
    later, _ = _judge(log, make(log.end, ends[start], start), start, again)
    assert later >= {offset for offset in first if offset >= start}
