"""Durations, times, sizes and positions as people write and read them."""

import pytest

from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidRequest
from varve.foundation.position import BEGINNING, END, PositionKind, ReadPosition, parse_position
from varve.foundation.units import (
    format_bytes,
    format_count,
    format_due,
    format_duration,
    format_moment,
    format_time,
    parse_duration,
    parse_size,
    parse_time,
)

DAY_MS = 86_400_000


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
    ("text", "size"),
    [
        ("0", 0),
        ("500", 500),
        ("500B", 500),
        ("64KiB", 65_536),
        ("64 MiB", 67_108_864),
        ("64mib", 67_108_864),
        ("1.5GiB", 1_610_612_736),
        ("2kB", 2_000),
        ("1.5 GB", 1_500_000_000),
        ("3T", 3_000_000_000_000),
        (" 1PiB ", 1 << 50),
    ],
)
def test_sizes_are_bytes_or_have_units_of_1000_or_1024(text: str, size: int) -> None:
    assert parse_size(text, name="--max-bytes") == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e6", "1,5GB", "64MiX", "64 M iB", "1" * 16])
def test_other_sizes_are_refused_with_the_name_of_the_option(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--max-bytes"):
        parse_size(text, name="--max-bytes")


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
        (1_000, "1 s"),
        (1_500, "1 s 500 ms"),
        (59_999, "59 s"),
        (61_000, "1 min 1 s"),
        (5_400_000, "1 h 30 min"),
        (DAY_MS, "1 d"),
        (2 * DAY_MS + 3_700_000, "2 d 1 h"),
        (10 * DAY_MS + 3_600_000, "10 d"),
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


def test_a_moment_says_how_far_off_it_is() -> None:
    assert format_moment(1_000_000_000_000, 1_000_000_000_000).endswith("(now)")
    assert format_moment(1_000_000_000_000 + DAY_MS, 1_000_000_000_000).endswith("(in 1 d)")
    assert format_moment(1_000_000_000_000 - 90_000, 1_000_000_000_000).endswith("(1 min 30 s ago)")
    assert format_moment(-1, 0) == "-"
    assert format_moment(2**62, 0) == f"@{2**62}"


def test_what_is_due_is_due_now() -> None:
    assert [format_due(None, 5), format_due(4, 5), format_due(5, 5)] == ["-", "now", "now"]


def test_a_count_has_its_noun_in_the_right_number() -> None:
    assert [format_count(count, "segment") for count in (0, 1, 2000)] == [
        "0 segments",
        "1 segment",
        "2,000 segments",
    ]


# Positions


NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", BEGINNING),
        ("earliest", BEGINNING),
        ("end", END),
        ("latest", END),
        ("12", ReadPosition(PositionKind.OFFSET, 12)),
        ("@12", ReadPosition(PositionKind.TIME, 12)),
        ("1970-01-01T00:00:02", ReadPosition(PositionKind.TIME, 2000)),
        ("1970-01-01T02:00:02+02:00", ReadPosition(PositionKind.TIME, 2000)),
        ("-10m", ReadPosition(PositionKind.TIME, NOW_MS - 600_000)),
        ("-1m30s", ReadPosition(PositionKind.TIME, NOW_MS - 90_000)),
    ],
)
def test_a_position_is_an_end_an_offset_or_a_time(text: str, position: ReadPosition) -> None:
    assert parse_position(text, ManualClock(NOW_MS)) == position


@pytest.mark.parametrize("text", ["", "soon", "-3", "12?", "@x", "-10", "-10 minutes"])
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"beginning, end, an offset.*-10m"):
        parse_position(text, ManualClock(NOW_MS))
