"""Ten updates over five keys with one tombstone, cleaned and cleaned again: G4.

offset  0   1   2   3   4   5   6   7   8   9
key     a   b   a   c   a   b   c   d   e   b
value   1   1   2   1   3   2   2   1   1   -
"""

import pytest

from tests.support.cleaning_bench import PARTITION, RETENTION_MS, CleaningBench, compacted
from tests.support.cleaning_checks import check_exact, check_promises, foretell
from varve.cleaning.removals.removal import Reason
from varve.records import Codec, Record

UPDATES = [
    ("a", "1"),
    ("b", "1"),
    ("a", "2"),
    ("c", "1"),
    ("a", "3"),
    ("b", "2"),
    ("c", "2"),
    ("d", "1"),
    ("e", "1"),
    ("b", None),
]


@pytest.fixture
def bench() -> CleaningBench:
    return CleaningBench()


@pytest.fixture(params=[1, 3, 10], ids=lambda count: f"batches of {count}")
def batch_count(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


def _write(
    bench: CleaningBench, batch_count: int, codec: Codec = Codec.NONE, *, rolls: bool = False
) -> None:
    for start in range(0, len(UPDATES), batch_count):
        records = [
            Record(key.encode(), None if value is None else value.encode(), timestamp=bench.now_ms)
            for key, value in UPDATES[start : start + batch_count]
        ]
        bench.append(records, codec=codec)
        if rolls:
            bench.roll()
    bench.roll()


@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "many segments"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_g4_five_records_are_left_and_four_after_the_horizon(
    batch_count: int, codec: Codec, rolls: bool, bench: CleaningBench
) -> None:
    _write(bench, batch_count, codec, rolls=rolls)
    first = bench.clean()
    assert bench.offsets() == [4, 6, 7, 8, 9]
    assert first.records[Reason.SUPERSEDED] == 5
    bench.advance(RETENTION_MS - 1)
    bench.clean()
    assert bench.offsets() == [4, 6, 7, 8, 9]
    bench.advance(1)
    last = bench.clean()
    assert bench.offsets() == [4, 6, 7, 8]
    assert last.records[Reason.TOMBSTONE_EXPIRED] == 1
    assert {key: record.value for key, record in bench.state().items()} == {
        b"a": b"3",
        b"c": b"2",
        b"d": b"1",
        b"e": b"1",
    }
    check_promises(bench)


def test_g4_each_run_leaves_what_the_model_foretells(batch_count: int) -> None:
    bench = CleaningBench(compacted(segment_bytes=300))
    _write(bench, batch_count, rolls=True)
    for _ in range(3):
        foretold = foretell(bench)
        check_exact(bench, foretold, bench.clean())
        bench.advance(RETENTION_MS)


def test_g4_the_result_is_the_same_after_a_restart(bench: CleaningBench) -> None:
    _write(bench, 1, rolls=True)
    bench.clean()
    cleaned = bench.read_all()
    bench.reopen()
    assert bench.read_all() == cleaned
    bench.crash()
    assert bench.read_all() == cleaned
    bench.advance(RETENTION_MS)
    bench.clean()
    assert bench.offsets() == [4, 6, 7, 8]


def test_g4_a_log_that_is_due_is_cleaned_without_being_asked(bench: CleaningBench) -> None:
    _write(bench, 1)
    (report,) = bench.cleaner.run_once(bench.now_ms)
    assert report.partition == PARTITION
    assert bench.offsets() == [4, 6, 7, 8, 9]
    assert bench.cleaner.run_once(bench.now_ms) == []


def test_g7_a_dry_run_tells_the_same_and_changes_nothing(bench: CleaningBench) -> None:
    _write(bench, 1, rolls=True)
    stored = bench.read_all()
    planned = bench.cleaner.clean(PARTITION, bench.now_ms, dry_run=True)
    assert planned.is_dry_run
    assert bench.read_all() == stored
    done = bench.clean()
    assert planned.records == done.records
    assert not done.is_dry_run


def test_g4_the_active_segment_is_left_alone(bench: CleaningBench) -> None:
    _write(bench, 1)
    bench.put("d", "2")
    bench.clean()
    assert bench.offsets() == [4, 6, 7, 8, 9, 10]
    bench.roll()
    bench.clean()
    assert bench.offsets() == [4, 6, 8, 9, 10]


def test_g4_a_superseded_tombstone_goes_at_once_and_one_stays_while_it_is_the_latest(
    bench: CleaningBench,
) -> None:
    _write(bench, 1)
    bench.clean()
    bench.put("b", "3")
    bench.roll()
    bench.clean()
    assert bench.offsets() == [4, 6, 7, 8, 10]
    bench.advance(10 * RETENTION_MS)
    bench.clean()
    assert bench.offsets() == [4, 6, 7, 8, 10]
