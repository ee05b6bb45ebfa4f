"""Shows findings as a table, the gravest first."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from varve.commit_log.check.findings import Finding, Severity

_ORDER: Final = list(Severity)
_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_PLAIN_WIDTH: Final = 200


def print_findings(directory: str, findings: Sequence[Finding], *, title: str | None) -> None:
    """The table, and a line that counts; one line alone when there is nothing."""
    # Where nobody looks, lines need not fit a window, and tools find whole words.
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    if findings:
        console.print(_table(directory, findings))
    counts = Counter(finding.severity for finding in findings)
    summary = (
        ", ".join(f"{counts[s]} {s}{'s' if counts[s] > 1 else ''}" for s in _ORDER if counts[s])
        or "nothing found"
    )
    prefix = "" if title is None else f"{title}: "
    console.print(Text(f"{prefix}{directory}: {summary}"), soft_wrap=True)


def _table(directory: str, findings: Sequence[Finding]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("Severity", no_wrap=True)
    table.add_column("Rule", no_wrap=True)
    table.add_column("Where", overflow="fold")
    table.add_column("What", overflow="fold")
    table.add_column("Repair", overflow="fold")
    for finding in sorted(findings, key=lambda f: (_ORDER.index(f.severity), f.path)):
        where = finding.path.removeprefix(f"{directory}/")
        if finding.position is not None:
            where += f" at {finding.position}"
        table.add_row(
            Text(finding.severity, style=_COLOURS[finding.severity]),
            Text(finding.rule),
            Text(where),
            Text(finding.message),
            Text(finding.repair or "-"),
        )
    return table
