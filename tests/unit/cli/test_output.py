"""Tables and bars of commands: what people see, and what programs read."""

import json
import sys

import pytest

from varve.cli.output import Grouped, Output

LONG_BYTES = 64 << 20


@pytest.mark.parametrize(
    ("total_bytes", "is_terminal", "is_quiet"),
    [(LONG_BYTES - 1, True, False), (LONG_BYTES, False, False), (LONG_BYTES, True, True)],
)
def test_no_bar_for_short_work_or_without_a_terminal(
    total_bytes: int,
    is_terminal: bool,
    is_quiet: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with Output(is_quiet=is_quiet).progress("Working", total_bytes) as bar:
        bar.advance(total_bytes)
    assert capsys.readouterr() == ("", "")


def test_a_bar_for_long_work_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Output().progress("Working", LONG_BYTES) as bar:
        bar.advance(LONG_BYTES)
    out, errors = capsys.readouterr()
    assert out == ""
    assert "Working" in errors


def test_a_table_has_numbers_to_the_right_and_details_below(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [["a", Grouped(1234), None], ["long", Grouped(5), 7]]
    details = [[("rule", "a sentence")], []]
    Output().print_table("row", ["name", "bytes", "id"], rows, details=details)
    assert capsys.readouterr().out.splitlines() == [
        "name  bytes  id",
        "a     1,234   -",
        "    rule  a sentence",
        "long      5   7",
    ]


def test_a_table_is_an_object_per_row_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["a", Grouped(1234)]]
    Output(is_json=True).print_table("row", ["name", "size in bytes"], rows, details=[[("x", "y")]])
    assert json.loads(capsys.readouterr().out) == {
        "type": "row",
        "name": "a",
        "size_in_bytes": 1234,
    }


def test_a_failure_names_its_partition_once(capsys: pytest.CaptureFixture[str]) -> None:
    Output().print_partition_failure("t-0", "t-0: the log starts at 3")
    Output().print_partition_failure("t-0", "no connection")
    assert capsys.readouterr().err == "t-0: the log starts at 3\nt-0: no connection\n"
