"""A disk that fails or is full during a cleaning: the log stays as it is, readers go on: G3, G4."""

import errno

import pytest

from tests.support.cleaning_bench import CleaningBench, compacted
from tests.support.cleaning_checks import check_exact, check_mixture, check_promises, foretell
from varve.foundation.errors import StoreError
from varve.records import Codec, Record


@pytest.fixture(scope="module")
def prepared() -> CleaningBench:
    bench = CleaningBench(compacted(segment_bytes=900))
    for number in range(12):
        records = [
            Record(
                b"key-%d" % (number * 7 % 5 + at),
                None if (number + at) % 5 == 0 else b"value %d" % number,
                timestamp=bench.now_ms,
            )
            for at in range(3)
        ]
        bench.append(records, codec=Codec.LZ4 if number % 4 == 0 else Codec.NONE)
        if number % 3 == 2:
            bench.roll()
    bench.reopen()
    return bench


def _count_steps(bench: CleaningBench) -> int:
    other = bench.copy()
    before = other.faulty.steps
    other.clean()
    return other.faulty.steps - before


def _clean(bench: CleaningBench) -> None:
    """What a failing disk makes of it has a name."""
    try:
        bench.clean()
    except (StoreError, OSError):
        return


def _growth_bytes(bench: CleaningBench) -> int:
    """What a cleaning adds to the disk before it frees anything."""
    other = bench.copy()
    before = other.faulty.used_bytes()
    other.clean()
    return other.faulty.used_bytes() - before


def test_g3_g4_a_full_disk_costs_nothing_and_room_lets_it_go_on(
    prepared: CleaningBench, rounds_factor: int
) -> None:
    growth = _growth_bytes(prepared)
    for room in range(0, growth, 7 if rounds_factor > 1 else growth // 40):
        bench = prepared.copy()
        foretold = foretell(bench)
        bench.faulty.full_at(bench.faulty.used_bytes() + room)
        try:
            _clean(bench)
            check_mixture(bench.batches(), foretold)
            check_promises(bench)
            bench.faulty.full_at(None)
            bench.advance(30 * 86_400_000)
            again = foretell(bench)
            check_exact(bench, again, bench.clean())
        except BaseException as error:
            error.add_note(f"room for {room} bytes: {bench.faulty.describe_trace()}")
            raise


def test_g3_g4_a_broken_disk_at_any_step_leaves_a_log_to_reopen(
    prepared: CleaningBench, rounds_factor: int
) -> None:
    for step in range(1, _count_steps(prepared) + 1, 1 if rounds_factor > 1 else 2):
        bench = prepared.copy()
        foretold = foretell(bench)
        bench.faulty.fail_at(bench.faulty.steps + step, OSError(errno.EIO, "Input/output error"))
        _clean(bench)
        try:
            bench.crash()
            check_mixture(bench.batches(), foretold)
            check_promises(bench)
            again = foretell(bench)
            check_exact(bench, again, bench.clean())
        except BaseException as error:
            error.add_note(f"failed at step {step}: {bench.faulty.describe_trace()}")
            raise
