"""Shows what an audit found: the removals on record, then what is wrong with them."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from varve.cleaning.removals.audit import AuditedEntry, AuditReport, Outcome
from varve.cleaning.removals.removal import Reason, Removal
from varve.cli.screen import WIDE, Details, make_console, print_rows_with_details
from varve.commit_log.check.findings import Severity

_SEVERITIES: Final = list(Severity)
_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_OUTCOME_COLOURS: Final = {
    Outcome.DONE: "",
    Outcome.DONE_UNMARKED: "dim",
    Outcome.NOT_DONE: "dim",
    Outcome.UNCLEAR: "yellow",
}
_COLUMNS: Final = ("Id", "When (UTC)", "What", "Offsets", "Segments", "Kept")
_TEXT_COLUMNS: Final = ("When (UTC)", "What", "Offsets", "Segments")
_HEAD_SHOWN: Final = 12
_LATEST_MS: Final = 253_402_300_799_999
"""The last moment of the year 9999, which is as far as dates go."""


def print_report(report: AuditReport, *, last: int | None) -> None:
    """The newest `last` removals, None for all, the findings, and a line that sums up."""
    console = make_console()
    shown = report.entries if last is None else report.entries[-last:]
    print_entries(shown)
    if len(shown) < len(report.entries):
        hidden = count_noun(len(report.entries) - len(shown), "earlier removal")
        console.print(Text(f"{hidden} not shown: --all shows all"), style="dim")
    if report.findings:
        console.print(_findings(report))
    console.print(Text(summarise(report)), soft_wrap=not sys.stdout.isatty())


def print_entries(entries: Sequence[AuditedEntry]) -> None:
    """A table of removals; nothing where there are none."""
    if entries:
        _print_removals(make_console(), entries)


def remote_entry(balance: Removal, *, is_done: bool) -> AuditedEntry:
    """A removal from object storage, as one of the table."""
    return AuditedEntry(balance, Outcome.DONE if is_done else Outcome.NOT_DONE, 0)


def summarise(report: AuditReport) -> str:
    """One line of what was looked at and what came of it."""
    removed = sum(balance.records_removed for balance in report.carried_out)
    parts = [
        f"{count_noun(len(report.entries), 'removal')} on record",
        f"{count_noun(removed, 'record')} removed",
        f"{count_noun(report.segments_verified, 'segment')} of {report.bytes_verified} bytes "
        "verified",
    ]
    if report.moved_records:
        moved = count_noun(report.moved_records, "record")
        parts.insert(2, f"{moved} moved to object storage, of which --tier tells more")
    for severity in _SEVERITIES:
        count = sum(finding.severity is severity for finding in report.findings)
        if count:
            parts.append(count_noun(count, severity))
    if not report.findings:
        parts.append("nothing wrong")
    return f"{report.partition}: {', '.join(parts)}; head {report.head[:_HEAD_SHOWN]}..."


def count_noun(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _format_time(at_ms: int) -> str:
    moment = datetime.fromtimestamp(min(at_ms, _LATEST_MS) / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _print_removals(console: Console, entries: Sequence[AuditedEntry]) -> None:
    rows = [_figures(entry) for entry in entries]
    if console.width < WIDE:
        details: list[Details] = [
            [
                ("removed", _removed(entry)),
                ("outcome", _outcome(entry)),
                ("rule", entry.removal.rule),
            ]
            for entry in entries
        ]
        print_rows_with_details(console, _COLUMNS, rows, details, left=_TEXT_COLUMNS)
        console.print()
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in _COLUMNS:
        is_text = column in _TEXT_COLUMNS
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    for column in ("Removed", "Outcome", "Rule"):
        table.add_column(column, overflow="fold")
    for entry, row in zip(entries, rows, strict=True):
        table.add_row(*row, Text(_removed(entry)), _outcome(entry), Text(entry.removal.rule))
    console.print(table)


def _figures(entry: AuditedEntry) -> list[str]:
    balance = entry.removal
    inputs = balance.inputs
    return [
        str(balance.id),
        _format_time(balance.at_ms),
        str(balance.kind),
        f"{inputs[0].base_offset}..{inputs[-1].next_offset}" if inputs else "-",
        f"{len(inputs)} to {len(balance.outputs)}",
        str(balance.records.get(Reason.KEPT, 0)),
    ]


def _outcome(entry: AuditedEntry) -> Text:
    text = str(entry.outcome)
    if entry.verified:
        text += f", {entry.verified} of {len(entry.removal.outputs)} verified"
    return Text(text, style=_OUTCOME_COLOURS[entry.outcome])


def _removed(entry: AuditedEntry) -> str:
    parts = [
        f"{count} {reason.value}"
        for reason, count in entry.removal.records.items()
        if count and reason is not Reason.KEPT
    ]
    return ", ".join(parts) or "nothing"


def _findings(report: AuditReport) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("Severity", no_wrap=True)
    table.add_column("Rule", no_wrap=True)
    table.add_column("Id", justify="right", no_wrap=True)
    table.add_column("What", overflow="fold")
    for finding in sorted(
        report.findings, key=lambda audit_finding: _SEVERITIES.index(audit_finding.severity)
    ):
        table.add_row(
            Text(finding.severity, style=_COLOURS[finding.severity]),
            finding.rule,
            "-" if finding.id is None else str(finding.id),
            Text(finding.message),
        )
    return table
