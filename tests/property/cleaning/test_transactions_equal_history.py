"""A marker is discardable exactly when no batch of its transaction is left, in any history."""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.mark_tables import Mark, make_tables
from varve.cleaning.compaction.segment_plan import TransactionTracker
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.settings import LONG_MAX

EVENTS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["data", "data", "commit", "abort", "plain"]),
        st.sampled_from(["kept", "kept", "gone before"]),
        st.booleans(),
    ),
    max_size=60,
)


@dataclass
class Transaction:
    producer_id: int
    first_offset: int
    left: list[int] = field(default_factory=list)


@dataclass
class History:
    """A log as producers wrote it, of which earlier cleanings have taken some data batches."""

    marks: list[Mark] = field(default_factory=list)
    discardable: list[bool] = field(default_factory=list)
    index: list[AbortedTransaction] = field(default_factory=list)
    needed: list[AbortedTransaction] = field(default_factory=list)


def replay(events: list[tuple[int, str, str, bool]]) -> History:
    history = History()
    ongoing: dict[int, Transaction] = {}
    for offset, (producer_id, kind, fate, is_forgotten) in enumerate(events):
        if kind == "plain":
            history.marks.append(Mark(offset, producer_id, is_transactional=False))
        elif kind == "data":
            transaction = ongoing.setdefault(producer_id, Transaction(producer_id, offset))
            if fate == "kept":
                transaction.left.append(offset)
                history.marks.append(Mark(offset, producer_id))
                history.discardable.append(False)
        else:
            ended = ongoing.pop(producer_id, Transaction(producer_id, offset))
            history.marks.append(Mark(offset, producer_id, int(kind == "commit")))
            history.discardable.append(not ended.left)
            if kind == "abort":
                aborted = AbortedTransaction(producer_id, ended.first_offset, offset, offset)
                if ended.left:
                    history.needed.append(aborted)
                if ended.left or not is_forgotten:
                    history.index.append(aborted)
    return history


@given(EVENTS, st.sets(st.integers(1, 59), max_size=4), st.randoms(use_true_random=False))
def test_a_marker_is_discardable_when_nothing_of_its_transaction_is_left(
    events: list[tuple[int, str, str, bool]], cuts: set[int], random: Random
) -> None:
    history = replay(events)
    index = list(history.index)
    random.shuffle(index)
    tracker = TransactionTracker(index)
    discardable: list[bool] = []
    kept: list[AbortedTransaction] = []
    bounds = [0, *sorted(cuts), 60]
    for start, end in pairwise(bounds):
        segment = [mark for mark in history.marks if start <= mark.offset < end]
        verdicts = tracker.judge(start, LONG_MAX, *make_tables(start, segment))
        discardable += verdicts.discardable.tolist()
        kept += verdicts.aborted_kept
    assert discardable == history.discardable
    assert kept == history.needed
