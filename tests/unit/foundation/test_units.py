"""Durations, times, sizes and counts as text."""

import pytest

from varve.foundation.errors import InvalidRequest
from varve.foundation.units import (
    format_bytes,
    format_count,
    format_duration,
    format_time,
    parse_duration,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("0s", 0), ("250ms", 250), ("90s", 90_000), ("1h30m", 5_400_000), ("1w", 604_800_000)],
)
def test_durations_are_numbers_with_units(text: str, milliseconds: int) -> None:
    assert parse_duration(text, name="--window") == milliseconds


@pytest.mark.parametrize("text", ["", "10", "h", "1.5h", "-1s", "10 m", "10mx", "1" * 13 + "s"])
def test_other_durations_are_refused_with_the_name_of_the_option(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--window"):
        parse_duration(text, name="--window")


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1772366400000", 1_772_366_400_000),
        ("@1772366400000", 1_772_366_400_000),
        ("2026-03-01T12:00:00", 1_772_366_400_000),
        ("2026-03-01 12:00:00.250", 1_772_366_400_250),
        ("2026-03-01T13:00:00+01:00", 1_772_366_400_000),
        ("2026-03-01", 1_772_323_200_000),
    ],
)
def test_a_time_without_a_zone_is_utc_whatever_the_machine(
    text: str, time_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    assert parse_time(text, name="--at") == time_ms


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "@", "12:00"])
def test_other_times_are_refused_with_the_name_of_the_option(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--at"):
        parse_time(text, name="--at")


def test_times_are_shown_in_utc_with_milliseconds() -> None:
    assert format_time(1_772_366_400_007) == "2026-03-01T12:00:00.007Z"
    assert format_time(-1) == "1969-12-31T23:59:59.999Z"
    assert format_time(10**18) == f"@{10**18}"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1500, "1 s 500 ms"),
        (59_999, "59 s"),
        (5_400_000, "1 h 30 min"),
        (86_400_000, "1 d"),
        (10 * 86_400_000 + 3_600_000, "10 d"),
    ],
)
def test_durations_are_shown_in_their_largest_units(milliseconds: int, text: str) -> None:
    assert format_duration(milliseconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1 << 40, "1.0 TiB"),
        (1 << 70, "1048576.0 PiB"),
    ],
)
def test_sizes_are_shown_in_their_largest_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 records"), (1, "1 record"), (2_000, "2,000 records")]
)
def test_a_count_is_shown_with_its_noun(count: int, text: str) -> None:
    assert format_count(count, "record") == text
