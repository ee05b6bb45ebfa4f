"""Positions in partitions, as they are written on the command line."""

import pytest

from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidRequest
from varve.foundation.position import BEGINNING, END, PositionKind, ReadPosition, parse_position

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
