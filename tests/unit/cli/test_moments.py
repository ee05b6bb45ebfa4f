import pytest

from varve.cli.moments import show_due, show_moment
from varve.foundation.units import format_duration

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (1_250, "1 s 250 ms"),
        (59_999, "59 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (2 * DAY_MS + 3_700_000, "2 d 1 h"),
        (40 * DAY_MS + 1, "40 d"),
    ],
)
def test_a_span_shows_its_largest_units(milliseconds: int, text: str) -> None:
    assert format_duration(milliseconds) == text


def test_a_moment_says_how_far_off_it_is() -> None:
    assert show_moment(1_000_000_000_000, 1_000_000_000_000).endswith("(now)")
    assert show_moment(1_000_000_000_000 + DAY_MS, 1_000_000_000_000).endswith("(in 1 d)")
    assert show_moment(1_000_000_000_000 - 90_000, 1_000_000_000_000).endswith("(1 min 30 s ago)")
    assert show_moment(-1, 0) == "-"
    assert show_moment(2**62, 0) == f"@{2**62}"


def test_what_is_due_is_due_now() -> None:
    assert [show_due(None, 5), show_due(4, 5), show_due(5, 5)] == ["-", "now", "now"]
