"""Power loss and process end at every I/O step of a cleaning: G3, G4, G5.

After each: every segment's records are those before the run or those after it, no latest value is
lost, opening again finds the same, and the next cleaning ends where the model says.
"""

from collections.abc import Callable

import pytest

from tests.support.cleaning_bench import RETENTION_MS, CleaningBench, compacted
from tests.support.cleaning_checks import (
    Foretold,
    check_exact,
    check_mixture,
    check_promises,
    foretell,
)
from varve.records import Codec, Record
from varve.testing.faulty_disk import CrashMode

Prepare = Callable[[CleaningBench], None]


def _write(bench: CleaningBench, first: int, count: int) -> None:
    """A segment of updates that supersede one another, with a tombstone now and then."""
    for number in range(first, first + count):
        records = [
            Record(
                b"key-%d" % (number * 7 % 11 + at),
                None if (number + at) % 9 == 0 else b"value %d of %d" % (at, number),
                timestamp=bench.now_ms - at,
            )
            for at in range(3)
        ]
        bench.append(records, codec=Codec.LZ4 if number % 4 == 0 else Codec.NONE)


def _updates(bench: CleaningBench) -> None:
    for segment in range(4):
        _write(bench, segment * 3, 3)
        bench.roll()


def _transactions(bench: CleaningBench) -> None:
    record = [Record(b"key-1", b"in a transaction", timestamp=bench.now_ms)]
    bench.append(record, producer_id=5)
    bench.append(record, producer_id=6, transactional=True)
    bench.roll()
    bench.append(record, producer_id=7, transactional=True)
    bench.end_transaction(6, committed=False)
    bench.roll()
    bench.end_transaction(7, committed=True)
    bench.append(record, producer_id=7, transactional=True)
    _write(bench, 2, 2)
    bench.end_transaction(7, committed=False, bumps=True)
    bench.roll()


def _cleaned_before(bench: CleaningBench) -> None:
    """Clean segments with stamped tombstones that have expired, and new dirt behind them."""
    _updates(bench)
    _transactions(bench)
    bench.clean()
    bench.advance(RETENTION_MS)
    _write(bench, 30, 2)
    bench.roll()


SCENARIOS: dict[str, Prepare] = {
    "updates": _updates,
    "transactions": _transactions,
    "cleaned before": _cleaned_before,
}


def _prepared(prepare: Prepare) -> CleaningBench:
    """A log to be cleaned, closed and opened again so that everything is on disk."""
    bench = CleaningBench(compacted(segment_bytes=900))
    prepare(bench)
    bench.reopen()
    return bench


def _count_steps(bench: CleaningBench) -> int:
    other = bench.copy()
    before = other.faulty.steps
    other.clean()
    return other.faulty.steps - before


def _modes(step: int, rounds_factor: int) -> list[tuple[CrashMode, int]]:
    """All modes in turn, or all of them with many seeds."""
    if rounds_factor == 1:
        return [(list(CrashMode)[step % 3], step)]
    random = [(CrashMode.RANDOM, step * 1009 + seed) for seed in range(rounds_factor)]
    return [(CrashMode.KEEP_ALL, 0), (CrashMode.LOSE_UNSYNCED, 0), *random]


@pytest.mark.parametrize("name", SCENARIOS)
def test_g3_g4_a_crash_at_any_step_leaves_whole_segments_before_or_after(
    name: str, rounds_factor: int
) -> None:
    prepared = _prepared(SCENARIOS[name])
    step_count = _count_steps(prepared)
    for step in range(1, step_count + 1):
        bench = prepared.copy()
        foretold = foretell(bench)
        with bench.power_fails_after(step):
            bench.clean()
        for mode, seed in _modes(step, rounds_factor):
            is_short = rounds_factor == 1 and step % 4 != 0
            try:
                _judge(bench, foretold, mode, seed, is_short=is_short)
            except BaseException as error:
                error.add_note(f"crashed at {bench.faulty.trace[-1]}, then {mode} seed {seed}")
                raise


def _judge(
    crashed: CleaningBench, foretold: Foretold, mode: CrashMode, seed: int, *, is_short: bool
) -> None:
    bench = _reopened(crashed, mode, seed)
    check_mixture(bench.batches(), foretold)
    check_promises(bench)
    found = bench.read_all()
    if not is_short:
        bench.crash()
        assert bench.read_all() == found
    again = foretell(bench)
    check_exact(bench, again, bench.clean())
    assert _data_offsets(bench) == _data_offsets_of(foretold)
    if is_short:
        return
    cleaned = bench.read_all()
    bench.reopen()
    assert bench.read_all() == cleaned
    check_promises(bench)


def _reopened(crashed: CleaningBench, mode: CrashMode, seed: int) -> CleaningBench:
    disk = crashed.faulty.after_crash(mode, seed)
    return CleaningBench(
        crashed.settings, clock=crashed.clock, disk=disk, history=crashed.history.copy()
    )


def _data_offsets(bench: CleaningBench) -> list[int]:
    return [
        record.offset
        for batch in bench.batches()
        if not batch.is_control
        for record in batch.records
    ]


def _data_offsets_of(foretold: Foretold) -> list[int]:
    batches = [
        *foretold.outcome.batches,
        *(batch for segment in foretold.untouched for batch in segment.batches),
    ]
    return [record.offset for batch in batches if not batch.is_control for record in batch.records]


@pytest.mark.parametrize("name", SCENARIOS)
def test_g3_a_second_crash_while_the_first_is_mended_changes_nothing(
    name: str, rounds_factor: int
) -> None:
    prepared = _prepared(SCENARIOS[name])
    step_count = _count_steps(prepared)
    stride = 1 if rounds_factor > 1 else max(1, step_count // 7)
    for step in range(step_count, 0, -stride):
        bench = prepared.copy()
        foretold = foretell(bench)
        with bench.power_fails_after(step):
            bench.clean()
        for second in range(1, 40, 1 if rounds_factor > 1 else 5):
            disk = bench.faulty.after_crash(CrashMode.KEEP_ALL)
            disk.crash_at(disk.steps + second)
            try:
                CleaningBench(bench.settings, clock=bench.clock, disk=disk)
            except BaseException:
                disk = disk.after_crash(CrashMode.RANDOM, step * 1009 + second)
            else:
                break
            third = CleaningBench(
                bench.settings, clock=bench.clock, disk=disk, history=bench.history.copy()
            )
            check_mixture(third.batches(), foretold)
            check_promises(third)
