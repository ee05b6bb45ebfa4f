"""Power loss and process end at every I/O step of a cleaning: G3, G4, G5.

After each: every segment's records are those before the run or those after it, no latest value is
lost, opening again finds the same, and the next cleaning ends where the model says.
"""

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.cleaning_bench import RETENTION_MS, CleaningBench, compacted
from tests.support.cleaning_checks import (
    Foretold,
    check_exact,
    check_mixture,
    check_promises,
    foretell,
)
from tests.support.crash_images import crash_images, named, record
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
    bench = _prepared(SCENARIOS[name])
    foretold = foretell(bench)
    points = record(bench.clean, lambda: None, disk=bench.faulty)
    for image in crash_images(points, lambda step: _modes(step, rounds_factor)):
        is_short = rounds_factor == 1 and image.step % 4 != 0
        with named(image):
            _judge(bench.on(image.disk), foretold, is_short=is_short)


def _judge(bench: CleaningBench, foretold: Foretold, *, is_short: bool) -> None:
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
    bench = _prepared(SCENARIOS[name])
    foretold = foretell(bench)
    points = record(bench.clean, lambda: None, disk=bench.faulty)
    stride = 1 if rounds_factor > 1 else max(1, len(points) // 7)
    second_stride = 1 if rounds_factor > 1 else 5
    for first in crash_images(points[::-stride], lambda step: [(CrashMode.KEEP_ALL, 0)]):
        opened = first.disk.after_crash(CrashMode.KEEP_ALL)
        seconds = record(partial(bench.on, opened), lambda: None, disk=opened)[:-1]
        modes = partial(_random_mode, first.step)
        for image in crash_images(seconds[::second_stride], modes):
            with named(first), named(image):
                third = bench.on(image.disk)
                check_mixture(third.batches(), foretold)
                check_promises(third)


def _random_mode(first: int, second: int) -> list[tuple[CrashMode, int]]:
    return [(CrashMode.RANDOM, first * 1009 + second)]
