"""Outcomes as JSON lines for programs and as a table for people."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Outcome
from benchmarks.sampling import Figures, summarize


class Clock(StrEnum):
    """What the figures count: CPU time leaves out the time others held the processor."""

    WALL = "wall"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Row:
    """One outcome reduced to its medians; None where there is no baseline or no aim."""

    measure: str
    size: str
    unit: str
    ours: Figures
    baseline: Figures | None
    ratio: float | None
    aim: str | None
    met: bool | None
    note: str
    repeat_count: int


def make_row(outcome: Outcome, *, clock: Clock = Clock.WALL) -> Row:
    contest = outcome.contest
    ours = summarize(outcome.ours)
    baseline = summarize(outcome.baseline) if outcome.baseline else None
    ratio = ours.median / baseline.median if baseline and baseline.median else None
    met = contest.aim.is_met(ratio) if contest.aim and ratio is not None else None
    return Row(
        measure=contest.measure,
        size=outcome.size_label,
        unit=_unit(contest.unit, Clock.WALL if contest.is_wall_time else clock),
        ours=ours,
        baseline=baseline,
        ratio=ratio,
        aim=str(contest.aim) if contest.aim else None,
        met=met,
        note=contest.note,
        repeat_count=len(outcome.ours),
    )


def _unit(unit: str, clock: Clock) -> str:
    is_of_time = unit == "s" or unit.endswith("/s")
    return f"{unit} (CPU)" if is_of_time and clock is Clock.CPU else unit


def json_line(row: Row, *, machine: str, commit: str) -> str:
    """The row as one JSON object."""
    return json.dumps(
        {
            "measure": row.measure,
            "size": row.size,
            "ours": _rounded(row.ours.median),
            "baseline": _rounded(row.baseline.median) if row.baseline else None,
            "unit": row.unit,
            "ratio": _rounded(row.ratio) if row.ratio is not None else None,
            "aim": row.aim,
            "met": row.met,
            "machine": machine,
            "commit": commit,
            "ours_spread": _rounded(row.ours.spread),
            "baseline_spread": _rounded(row.baseline.spread) if row.baseline else None,
        }
    )


def print_table(
    console: Console, title: str, rows: Sequence[Row], *, machine: str, commit: str
) -> None:
    """A table with the notes of its measures, each note once, below it."""
    table = Table(title=title, caption=f"{machine}\ncommit {commit}", caption_justify="left")
    table.add_column("measure", no_wrap=True)
    for column in ("size", "ours", "baseline"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("unit")
    for column in ("ratio", "aim", "met", "repeats"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for note in dict.fromkeys(f"{row.measure}: {row.note}" for row in rows if row.note):
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _cells(row: Row) -> list[str]:
    met = {True: "[green]met[/green]", False: "[red]not met[/red]", None: ""}[row.met]
    return [
        row.measure,
        row.size,
        _with_spread(row.ours),
        _with_spread(row.baseline) if row.baseline else "",
        row.unit,
        f"{row.ratio:.2f}" if row.ratio is not None else "",
        row.aim or "",
        met,
        str(row.repeat_count),
    ]


def _with_spread(figures: Figures) -> str:
    return f"{_for_people(figures.median)} ±{figures.spread / 2:.0%}"


def _for_people(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:.2f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
