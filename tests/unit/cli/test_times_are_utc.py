"""A time without a zone means UTC in every command, whatever the machine's zone."""

import time
from collections.abc import Callable, Iterator

import pytest

from varve.foundation.clock import SystemClock
from varve.foundation.position import parse_position
from varve.foundation.units import format_moment, parse_time
from varve.spark.functions import parse_deadline, parse_requested

NOON_MS = 1_772_366_400_000
NOON = "2026-03-01T12:00:00"


@pytest.fixture(autouse=True)
def _far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "parse",
    [
        lambda text: parse_time(text, name="--at"),
        lambda text: parse_requested(text, now_ms=2 * NOON_MS),
        lambda text: parse_deadline(text, requested_ms=0),
        lambda text: parse_position(text, SystemClock()).number,
    ],
    ids=["time", "--requested", "--deadline", "--from"],
)
def test_a_time_without_a_zone_is_read_as_utc(parse: Callable[[str], int | None]) -> None:
    assert parse(NOON) == NOON_MS
    assert parse(f"{NOON}+14:00") == NOON_MS - 14 * 3_600_000


def test_a_time_is_shown_in_utc() -> None:
    assert format_moment(NOON_MS, NOON_MS) == "2026-03-01 12:00:00Z (now)"
