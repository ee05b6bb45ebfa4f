"""docs/how-to/deduplicate.md, time: a test for each sentence."""

import pytest

from tests.support.dedup_cases import NOW_MS
from tests.support.dedup_contract import LATENESS, WINDOW, ContractBench, T
from varve.dedup.rules import FUTURE_MS_MAX, Counts, LatePolicy

DAY_MS = 24 * 3_600_000
FUTURE = NOW_MS + FUTURE_MS_MAX


def test_d17_the_time_of_a_record() -> None:
    """D17 The time of a record is its timestamp in the log: that of the producer, or in a topic
    with `LogAppendTime` that of the append.
    """
    by_producer, by_append = (
        ContractBench(message_timestamp_type=item) for item in ("CreateTime", "LogAppendTime")
    )
    for bench in (by_producer, by_append):
        bench.put((b"x", T), (b"y", T))
        bench.clock.advance(WINDOW + 1)
        bench.put((b"x", T), (b"y", T + WINDOW + 1))
        bench.run()
    assert by_producer.passed() == [0, 1, 3]
    assert by_append.passed() == [0, 1, 2, 3]
    assert [item.timestamp - NOW_MS for item in by_append.records()] == [0, 0, *[WINDOW + 1] * 2]


def test_d18_stream_time() -> None:
    """D18 The stream time of a partition is the largest time of all its records so far that are not
    from the future, duplicates, late records and records without an id included.
    """
    bench = ContractBench()
    for row, expected in (
        ((b"x", T), T),
        ((b"x", T + 10), T + 10),
        ((None, T + 20), T + 20),
        ((b"y", T - LATENESS), T + 20),
        ((b"y", FUTURE), FUTURE),
        ((b"y", FUTURE + 1), FUTURE),
    ):
        bench.put(row)
        bench.run()
        assert bench.progress().stream_time_ms == expected
    assert bench.run() == Counts(kept=2, duplicates=1, late=1, future=1, no_id=1)


def test_d19_records_alone_move_it() -> None:
    """D19 Stream time never decreases, and only records advance it: without new records nothing
    expires.
    """
    bench = ContractBench()
    bench.put((b"x", T))
    with bench.open() as dedup:
        dedup.run_once()
        bench.clock.advance(300 * DAY_MS)
        bench.put((b"y", T - LATENESS))
        dedup.run_once()
        (task,) = dedup._workers[0].tasks
        task.maintain_if_due()
        bench.put((b"x", T + WINDOW))
        dedup.run_once()
    assert bench.run() == Counts(kept=2, duplicates=1)
    assert bench.progress().stream_time_ms == T + WINDOW


def test_d20_late() -> None:
    """D20 A record is late if its time is more than `--lateness` before the stream time of the
    records before it; a record that is exactly `--lateness` before it is not.
    """
    rows = [(b"x", T), (b"y", T - LATENESS), (b"z", T - LATENESS - 1)]
    bench = ContractBench.of(rows, late=LatePolicy.DROP)
    assert bench.passed() == [0, 1]
    assert bench.progress().counts == Counts(kept=2, late=1)


@pytest.mark.parametrize("step", [LATENESS, 7_000, 900])
def test_d21_the_whole_window(step: int) -> None:
    """D21 A record that is not late is compared with its whole window: ids are stored for `before`
    plus the lateness.
    """
    bench = ContractBench.of([(b"x", T - WINDOW)])
    with bench.open() as dedup:
        for time in (*range(T, T + LATENESS, step), T + LATENESS):
            bench.put((b"other", time))
            dedup.run_once()
        before = dedup.states()[0].counts
        bench.put((b"x", T), (b"x", T - 1))
        dedup.run_once()
        after = dedup.states()[0].counts
    assert after == before + Counts(duplicates=1, late=1)


def test_d22_late_records_are_not_compared() -> None:
    """D22 A late record is neither compared nor stored, so copies among late records are all
    handled alike.
    """
    late = T - LATENESS - WINDOW
    bench = ContractBench.of([(b"x", T), (b"y", late), (b"y", late), (b"y", late + WINDOW)])
    assert bench.passed() == [0, 1, 2, 3]
    assert bench.progress().counts == Counts(kept=2, late=2)


def test_d23_the_future() -> None:
    """D23 A record is from the future if its time is more than `--max-future` ahead of the
    machine's clock.
    """
    bench = ContractBench.of([(b"x", NOW_MS + 500), (b"y", NOW_MS + 501)], max_future_ms=500)
    assert bench.progress().counts == Counts(kept=1, future=1)
    bench.clock.advance(1)
    bench.put((b"z", NOW_MS + 501))
    assert bench.run() == Counts(kept=2, future=1)


def test_d24_the_future_moves_nothing() -> None:
    """D24 A record from the future is neither compared nor stored and does not advance stream time:
    one wrong clock makes no other record late.
    """
    rows = [(b"x", T), (b"f", FUTURE + 1), (b"f", FUTURE + 1), (b"y", T - LATENESS)]
    bench = ContractBench.of(rows)
    assert bench.progress().counts == Counts(kept=2, future=2)
    assert bench.progress().stream_time_ms == T
    bench.clock.advance(1)
    bench.put((b"f", FUTURE + 1))
    assert bench.run() == Counts(kept=3, future=2)


def test_d25_no_time() -> None:
    """D25 A record without a timestamp is neither compared nor stored, and does not advance stream
    time.
    """
    bench = ContractBench.of([(b"m", -1), (b"m", -1), (b"m", 0), (b"x", T), (b"m", -1)])
    assert bench.progress().counts == Counts(kept=2, missing=3)
    assert bench.progress().stream_time_ms == T
    assert ContractBench.of([(b"m", -1)]).progress().stream_time_ms == -1
