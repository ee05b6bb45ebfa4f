import errno

from varve.foundation.failure_notes import (
    INTERVAL_MAX_MS,
    INTERVAL_MIN_MS,
    FailureNotes,
    Telling,
)

SECOND_MS = 1000
FULL = OSError(errno.ENOSPC, "no space left")
BROKEN = OSError(errno.EIO, "input/output error")


def _tellings(notes: FailureNotes, *, seconds: int) -> dict[int, Telling]:
    """What is told of a failure four times a second, by time."""
    told = {ms: notes.failed(FULL, ms) for ms in range(0, seconds * SECOND_MS, 250)}
    return {ms: telling for ms, telling in told.items() if telling is not Telling.NOT}


def test_a_failure_that_goes_on_is_told_in_full_once_and_then_less_and_less() -> None:
    told = _tellings(FailureNotes(), seconds=3600)
    assert list(told.values())[:2] == [Telling.IN_FULL, Telling.BRIEFLY]
    assert set(list(told.values())[1:]) == {Telling.BRIEFLY}
    assert list(told)[:5] == [0, 10_000, 30_000, 70_000, 150_000]
    assert len(told) < 15


def test_each_kind_is_told_in_full() -> None:
    notes = FailureNotes()
    told = [notes.failed(error, 0) for error in (FULL, BROKEN, ValueError("x"), FULL, BROKEN)]
    assert told == [Telling.IN_FULL] * 3 + [Telling.NOT] * 2


def test_one_that_comes_and_goes_does_not_flood() -> None:
    notes = FailureNotes()
    lines = 0
    for ms in range(0, 60 * SECOND_MS, 250):
        lines += notes.failed(FULL, ms) is not Telling.NOT
        lines += notes.went_well()
    assert lines == 6, "three failures at 0, 10 and 30 s, and that it is well again"


def test_the_end_is_told_only_of_what_was_told() -> None:
    notes = FailureNotes()
    assert not notes.went_well()
    notes.failed(FULL, 0)
    assert notes.went_well()
    notes.failed(FULL, 1)
    assert not notes.went_well()


def test_after_a_long_time_of_peace_it_is_told_in_full_again() -> None:
    notes = FailureNotes()
    notes.failed(FULL, 0)
    assert notes.failed(FULL, INTERVAL_MAX_MS) is Telling.IN_FULL


def test_a_clock_that_was_set_back_makes_no_silence() -> None:
    notes = FailureNotes()
    notes.failed(FULL, 10**9)
    assert notes.failed(FULL, 0) is Telling.BRIEFLY
    assert notes.failed(FULL, INTERVAL_MIN_MS) is Telling.NOT
