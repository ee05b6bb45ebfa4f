"""Shows what an audit found: the removals on record, then what is wrong with them."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from varve.cleaning.audit import AuditedEntry, AuditReport, Outcome
from varve.cleaning.balance import Reason
from varve.commit_log.finding import Severity

_SEVERITIES: Final = list(Severity)
_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_OUTCOME_COLOURS: Final = {
    Outcome.DONE: "",
    Outcome.DONE_UNMARKED: "dim",
    Outcome.NOT_DONE: "dim",
    Outcome.UNCLEAR: "yellow",
}
_PLAIN_WIDTH: Final = 200
_LATEST_MS: Final = 253_402_300_799_999
"""The last moment of the year 9999, which is as far as dates go."""


def print_report(report: AuditReport, *, last: int | None) -> None:
    """The newest `last` removals, None for all, the findings, and a line that sums up."""
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    shown = report.entries if last is None else report.entries[-last:]
    if shown:
        console.print(_removals(shown))
    if len(shown) < len(report.entries):
        hidden = _count(len(report.entries) - len(shown), "earlier removal")
        console.print(Text(f"{hidden} not shown: --all shows all"), style="dim")
    if report.findings:
        console.print(_findings(report))
    console.print(Text(summarise(report)), soft_wrap=True)


def summarise(report: AuditReport) -> str:
    """One line of what was looked at and what came of it."""
    carried_out = [
        entry.balance
        for entry in report.entries
        if entry.outcome in (Outcome.DONE, Outcome.DONE_UNMARKED)
    ]
    removed = sum(balance.records_removed for balance in carried_out)
    parts = [
        f"{_count(len(report.entries), 'removal')} on record",
        f"{_count(removed, 'record')} removed",
        f"{_count(report.segments_verified, 'segment')} of {report.bytes_verified} bytes verified",
    ]
    for severity in _SEVERITIES:
        count = sum(finding.severity is severity for finding in report.findings)
        if count:
            parts.append(_count(count, severity))
    if not report.findings:
        parts.append("nothing wrong")
    return f"{report.partition}: {', '.join(parts)}; head {report.head}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _format_time(at_ms: int) -> str:
    moment = datetime.fromtimestamp(min(at_ms, _LATEST_MS) / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _removals(entries: Sequence[AuditedEntry]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("Id", justify="right", no_wrap=True)
    table.add_column("When (UTC)", no_wrap=True)
    table.add_column("What", no_wrap=True)
    table.add_column("Offsets", no_wrap=True)
    table.add_column("Segments", no_wrap=True)
    table.add_column("Kept", justify="right", no_wrap=True)
    table.add_column("Removed", overflow="fold")
    table.add_column("Outcome", overflow="fold")
    table.add_column("Rule", overflow="fold")
    for entry in entries:
        balance = entry.balance
        figures = balance.inputs
        offsets = f"{figures[0].base_offset}..{figures[-1].next_offset}" if figures else "-"
        outcome = str(entry.outcome)
        if entry.verified:
            outcome += f", {entry.verified} of {len(balance.outputs)} verified"
        table.add_row(
            str(balance.id),
            _format_time(balance.at_ms),
            str(balance.kind),
            offsets,
            f"{len(figures)} to {len(balance.outputs)}",
            str(balance.records.get(Reason.KEPT, 0)),
            Text(_removed(entry)),
            Text(outcome, style=_OUTCOME_COLOURS[entry.outcome]),
            Text(balance.rule),
        )
    return table


def _removed(entry: AuditedEntry) -> str:
    parts = [
        f"{count} {reason.value}"
        for reason, count in entry.balance.records.items()
        if count and reason is not Reason.KEPT
    ]
    return ", ".join(parts) or "nothing"


def _findings(report: AuditReport) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("Severity", no_wrap=True)
    table.add_column("Rule", no_wrap=True)
    table.add_column("Id", justify="right", no_wrap=True)
    table.add_column("What", overflow="fold")
    for finding in sorted(report.findings, key=lambda one: _SEVERITIES.index(one.severity)):
        table.add_row(
            Text(finding.severity, style=_COLOURS[finding.severity]),
            finding.rule,
            "-" if finding.id is None else str(finding.id),
            Text(finding.message),
        )
    return table
