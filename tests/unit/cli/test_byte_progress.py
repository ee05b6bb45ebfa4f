"""The bar is for people who wait: on a terminal, for long work, on standard error."""

import sys

import pytest

from varve.cli.byte_progress import LONG_BYTES, byte_progress


@pytest.mark.parametrize(
    ("total_bytes", "is_terminal", "is_wanted"),
    [(LONG_BYTES - 1, True, True), (LONG_BYTES, False, True), (LONG_BYTES, True, False)],
)
def test_no_bar_for_short_work_or_without_a_terminal(
    total_bytes: int,
    is_terminal: bool,
    is_wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with byte_progress("Working", total_bytes, is_wanted=is_wanted) as advance:
        advance(total_bytes)
    assert capsys.readouterr() == ("", "")


def test_a_bar_for_long_work_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with byte_progress("Working", LONG_BYTES) as advance:
        advance(LONG_BYTES)
    out, errors = capsys.readouterr()
    assert out == ""
    assert "Working" in errors
