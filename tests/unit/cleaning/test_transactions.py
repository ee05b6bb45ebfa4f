"""A marker is needed while a batch of its transaction was seen; Kafka's rules, one by one."""

from tests.support.mark_tables import DATA, EMPTY, Mark, make_tables
from varve.cleaning.compaction.segment_plan import TransactionTracker
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.settings import LONG_MAX
from varve.records.building import ControlType

ABORT, COMMIT = int(ControlType.ABORT), int(ControlType.COMMIT)
LEADER_CHANGE = int(ControlType.LEADER_CHANGE)


def aborted(producer_id: int, first: int, last: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id, first, last, first)


def walk(
    tracker: TransactionTracker, base_offset: int, *listed: Mark
) -> tuple[list[bool], list[AbortedTransaction]]:
    verdicts = tracker.judge(base_offset, LONG_MAX, *make_tables(base_offset, listed))
    return verdicts.discardable.tolist(), verdicts.aborted_kept


def test_an_empty_batch_counts_as_seen() -> None:
    batches, marks = make_tables(0, [Mark(0, 7), Mark(1, 7, COMMIT)])
    batches[0]["count"] = 0
    verdicts = TransactionTracker([]).judge(0, LONG_MAX, batches, marks)
    assert verdicts.discardable.tolist() == [False, False]


def test_an_empty_control_batch_is_discardable_and_ends_nothing() -> None:
    tracker = TransactionTracker([])
    verdicts = walk(tracker, 0, Mark(0, 7), Mark(1, 7, EMPTY), Mark(2, 7, COMMIT))
    assert verdicts == ([False, True, False], [])


def test_other_control_batches_are_kept() -> None:
    tracker = TransactionTracker([])
    listed = [
        Mark(n, -1, kind, is_transactional=False) for n, kind in enumerate((LEADER_CHANGE, 5, 99))
    ]
    assert walk(tracker, 0, *listed) == ([False, False, False], [])


def test_a_transaction_reaches_over_segments() -> None:
    transaction = aborted(7, 5, 25)
    tracker = TransactionTracker([transaction])
    assert walk(tracker, 0, Mark(5, 7), Mark(6, 8)) == ([False, False], [])
    assert walk(tracker, 10) == ([], [])
    verdicts = walk(tracker, 20, Mark(25, 7, ABORT), Mark(26, 8, COMMIT), Mark(27, 8, COMMIT))
    assert verdicts == ([False, False, True], [transaction])


def test_producers_do_not_mix() -> None:
    transaction = aborted(8, 1, 3)
    tracker = TransactionTracker([transaction])
    verdicts = walk(tracker, 0, Mark(0, 7), Mark(1, 8), Mark(2, 9, COMMIT), Mark(3, 8, ABORT))
    assert verdicts == ([False, False, True, False], [transaction])
    assert walk(tracker, 4, Mark(4, 7, COMMIT)) == ([False], [])


def test_transactions_of_one_producer_follow_each_other() -> None:
    first, second = aborted(7, 0, 1), aborted(7, 4, 6)
    tracker = TransactionTracker([second, first, first])
    verdicts = walk(tracker, 0, Mark(0, 7), Mark(1, 7, ABORT), Mark(6, 7, ABORT))
    assert verdicts == ([False, False, True], [first])


def test_batches_outside_transactions_do_not_count() -> None:
    tracker = TransactionTracker([])
    listed = Mark(0, 7, DATA, is_transactional=False), Mark(1, 7, COMMIT)
    assert walk(tracker, 0, *listed) == ([True], [])


def test_many_marks_take_no_square_of_time() -> None:
    transactions = [aborted(number % 50, 2 * number, 2 * number + 1) for number in range(50_000)]
    tracker = TransactionTracker(transactions)
    listed = []
    for number in range(50_000):
        listed += [Mark(2 * number, number % 50), Mark(2 * number + 1, number % 50, ABORT)]
    discardable, kept = walk(tracker, 0, *listed)
    assert not any(discardable)
    assert kept == transactions
