"""`varve check` and `varve audit`: the files, and the record of removals, against every invariant.

Invariant  reads only, but for `check --repair`; an audit also while a store has the directory open.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.options import TopicPartitionName
from varve.cli.output import SEVERITY_STYLES, Details, Output, make_console
from varve.cli.where import Where
from varve.foundation.clock import SystemClock
from varve.foundation.errors import NotFound
from varve.foundation.units import format_count

if TYPE_CHECKING:
    from varve.cleaning.removals.audit import AuditedEntry, AuditReport
    from varve.commit_log.check import Finding
    from varve.commit_log.names import TopicPartition
    from varve.disk import FileSystem
    from varve.embedded.directory_check import CheckResult
    from varve.tiering.evidence import RemoteRemoval

# check


def _load_check_rules() -> Mapping[str, str]:
    from varve.embedded.directory_check import CHECK_RULES

    return CHECK_RULES


@command(
    "varve check -d data --deep --tier",
    "varve check data/orders-0 --repair --allow-data-loss --quarantine /backup/cut",
)
@click.argument("paths", nargs=-1, type=options.DIRECTORY, metavar="[PARTITION_DIR]...")
@click.option("--deep", is_flag=True, help="Decompress and parse all records; read key indexes.")
@click.option(
    "--tier", is_flag=True, help="Check the remote tier too; a repair does not change it."
)
@click.option("--repair", is_flag=True, help="Rebuild what can be rebuilt, then check again.")
@click.option(
    "--allow-data-loss", is_flag=True, help="Let a repair cut damaged data, which is kept aside."
)
@click.option(
    "--quarantine",
    type=options.DIRECTORY,
    help="Where cut bytes are kept; default varve-quarantine beside the log directory.",
)
@click.option("--no-lock", is_flag=True, help="Check although the directory may be in use.")
@options.list_rules(_load_check_rules)
@options.directory_unless_paths
@options.output
def check(
    paths: tuple[Path, ...],
    where: Where,
    output: Output,
    deep: bool,
    tier: bool,
    repair: bool,
    allow_data_loss: bool,
    quarantine: Path | None,
    no_lock: bool,
) -> None:
    """Check every invariant of log directories or partitions, and repair them.

    The exit status is 1 if it finds an error. A warning is repaired by the next open, a note is
    information. Without --repair nothing is written. The evidence of removals is checked by
    `varve audit`.

    With --json every line has a `type` (finding, done or refused); findings have `stage` (before or
    after the repair), `severity`, `path`, `position`, `rule`, `message` and `repair`.
    """
    from varve.disk import RealFileSystem
    from varve.embedded.directory_check import CheckOptions, check_path

    if no_lock and repair:
        raise click.UsageError("--repair needs the lock of the directory; leave out --no-lock")
    if (allow_data_loss or quarantine is not None) and not repair:
        raise click.UsageError("--allow-data-loss and --quarantine need --repair")
    fs = RealFileSystem()
    chosen = _choose_paths(fs, paths, where)
    if no_lock:
        output.warn("not locked: findings may be changes in progress")
    check_options = CheckOptions(
        deep=deep,
        lock=not no_lock,
        repair=repair,
        allow_data_loss=allow_data_loss,
        quarantine=None if quarantine is None else str(quarantine),
        store_settings=where.first_store_settings() if tier else None,
    )
    is_clean = True
    for path in chosen:
        with output.progress("Checking", _data_bytes(fs, path) * (2 if repair else 1)) as bar:
            result = check_path(fs, path, check_options, SystemClock(), bar.advance)
        is_clean &= result.is_clean
        _print_result(output, result)
    if not is_clean:
        raise click.exceptions.Exit(1)


def _choose_paths(fs: "FileSystem", partitions: Sequence[Path], where: Where) -> list[str]:
    """Absolute paths of the log directories and of the partitions."""
    from varve.commit_log.check import is_partition_directory

    # A relative path may lack the name of the directory or of its parent.
    paths = list(map(os.path.abspath, partitions))
    for path in paths:
        if not os.path.isdir(path) or not is_partition_directory(fs, path):
            raise click.UsageError(
                f"{path} is not the directory of a partition; name log directories with --dir"
            )
    return [*where.paths(), *paths]


def _data_bytes(fs: "FileSystem", path: str) -> int:
    from varve.commit_log.names import LOG

    total = 0
    for entry in fs.scan(path):
        files = fs.scan(f"{path}/{entry.name}") if entry.is_directory else [entry]
        total += sum(file.size for file in files if file.name.endswith(LOG))
    return total


def _print_result(output: Output, result: "CheckResult") -> None:
    is_repaired = result.report is not None
    _print_findings(output, result.path, result.before, "before", is_repaired=is_repaired)
    if result.report is None:
        return
    for type, label, messages in (
        ("done", "repaired", result.report.done),
        ("refused", "refused ", result.report.refused),
    ):
        for message in messages:
            output.print_result(f"{label}  {message}", type, directory=result.path, message=message)
    _print_findings(output, result.path, result.after or [], "after", is_repaired=True)


def _print_findings(
    output: Output, path: str, findings: "Sequence[Finding]", stage: str, *, is_repaired: bool
) -> None:
    """The findings, errors first, and their numbers."""
    from varve.commit_log.check import Severity
    from varve.commit_log.check.findings import count_by_severity

    if output.is_json:
        for finding in findings:
            output.print_object("finding", {"stage": stage, **asdict(finding)})
        return
    severities = list(Severity)
    ordered = sorted(findings, key=lambda f: (severities.index(f.severity), f.path))
    if ordered:
        output.print_table(
            "finding",
            ["severity", "rule", "where"],
            [[str(finding.severity), finding.rule, _place(path, finding)] for finding in ordered],
            details=[
                [("", finding.message), *([("repair", finding.repair)] if finding.repair else [])]
                for finding in ordered
            ],
            styles=[SEVERITY_STYLES[finding.severity] for finding in ordered],
        )
    counts = count_by_severity(finding.severity for finding in findings) or "nothing found"
    click.echo(f"{f'{stage.capitalize()}: ' if is_repaired else ''}{path}: {counts}")


def _place(path: str, finding: "Finding") -> str:
    position = "" if finding.position is None else f" at {finding.position}"
    return f"{finding.path.removeprefix(f'{path}/')}{position}"


# audit


DEFAULT_LIMIT: Final = 20

_COLUMNS: Final = ("id", "time (UTC)", "kind", "offsets", "segments", "kept")
_SHOWN_HEAD_LENGTH: Final = 12
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that datetime can represent."""


def _load_audit_rules() -> Mapping[str, str]:
    from varve.cleaning.removals.audit import AUDIT_RULES

    return AUDIT_RULES


@command(
    "varve audit orders -d data --deep --tier",
    'varve audit scores:0 -d data --head "$(cat noted-head)" --json',
)
@options.optional_topic_partition
@click.option("--deep", is_flag=True, help="Compare the keys of all records too.")
@click.option("--tier", is_flag=True, help="Show what was removed from the object store too.")
@click.option(
    "--head",
    metavar="CHAIN",
    help="The head of an earlier audit of this partition, which must still be in the record.",
)
@options.number(
    "-n",
    "--limit",
    default=DEFAULT_LIMIT,
    help="Print the newest N removals of each partition; --json prints all.",
)
@options.list_rules(_load_audit_rules)
@options.directory
@options.output
def audit(
    topic_partition: TopicPartitionName | None,
    where: Where,
    output: Output,
    deep: bool,
    tier: bool,
    head: str | None,
    limit: int,
) -> None:
    """List every recorded removal and verify it against the files.

    Compaction and retention record what they remove, and why, before they remove it. The audit
    checks that no line of the record was changed or removed, that all records are accounted for,
    and reads the resulting segments. Nothing is written, and the directory may be in use.

    The exit status is 1 if it finds an error. With --json every line has a `type` (removal,
    remote_removal, finding or summary), `topic` and `partition`. Lines cut off the end of the
    record leave no trace in it: keep the `head` of a summary elsewhere and pass it to a later
    audit.
    """
    from varve.cleaning.removals.audit import audit_partition
    from varve.commit_log.names import LOG
    from varve.disk import RealFileSystem

    if head is not None and not re.fullmatch(r"[0-9a-f]{64}", head):
        raise click.BadParameter(
            f"{head:.70} is not a chain; give all 64 hex digits, as --json prints them",
            param_hint="'--head'",
        )
    fs = RealFileSystem()
    directories = _find_partitions(fs, where.paths(), topic_partition)
    if head is not None and len(directories) > 1:
        raise click.UsageError("--head belongs to one partition; name it as TOPIC:PARTITION")
    is_clean = True
    for log_directory, directory in directories:
        size = sum(file.size for file in fs.scan(directory) if file.name.endswith(LOG))
        with output.progress("Auditing", size * (2 if deep else 1)) as bar:
            report = audit_partition(fs, directory, deep=deep, head=head, advance=bar.advance)
        is_clean &= report.is_clean
        print_report(output, report, limit=limit)
        if tier:
            _print_remote(output, fs, report, log_directory, where.first_store_settings())
    if not is_clean:
        raise click.exceptions.Exit(1)


def _find_partitions(
    fs: "FileSystem", paths: Sequence[str], wanted: TopicPartitionName | None
) -> list[tuple[str, str]]:
    """Log directories, each with a partition directory in it; raises NotFound without any."""
    from varve.commit_log.check import find_partition

    partitions: dict[TopicPartition, tuple[str, str]] = {}
    topic, number = wanted or (None, None)
    for path in paths:
        for entry in fs.scan(path):
            name = find_partition(f"{path}/{entry.name}") if entry.is_directory else None
            is_chosen = name and topic in (None, name.topic) and number in (None, name.partition)
            if name is not None and is_chosen:
                partitions[name] = (path, f"{path}/{entry.name}")
    if not partitions:
        places = ", ".join(paths)
        if topic is None:
            raise NotFound(f"{places} has no partitions; name a log directory with --dir")
        what = topic if number is None else f"{topic}:{number}"
        raise NotFound(
            f"there is no topic {what!r:.280} in {places}; `varve topic list --dir {paths[0]}` "
            "lists the topics"
        )
    return [partitions[name] for name in sorted(partitions)]


def print_report(output: Output, report: "AuditReport", *, limit: int) -> None:
    """The newest removals, the findings and a summary."""
    from varve.commit_log.check.findings import Severity

    if output.is_json:
        _print_objects(output, report)
        return
    shown = report.entries[-limit:] if limit else ()
    _print_entries(output, shown)
    if len(shown) < len(report.entries):
        hidden = format_count(len(report.entries) - len(shown), "earlier removal")
        click.secho(f"{hidden} not shown; --limit shows more", dim=True)
    if report.findings:
        severities = list(Severity)
        findings = sorted(report.findings, key=lambda f: severities.index(f.severity))
        output.print_table(
            "finding",
            ["severity", "rule", "id"],
            [[str(finding.severity), finding.rule, finding.id] for finding in findings],
            details=[[("", finding.message)] for finding in findings],
            styles=[SEVERITY_STYLES[finding.severity] for finding in findings],
        )
    click.echo(_summarize(report))


def _print_objects(output: Output, report: "AuditReport") -> None:
    from varve.cleaning.removals.removal import encode_removal

    common = {"topic": report.partition.topic, "partition": report.partition.partition}
    for entry in report.entries:
        fields: dict[str, Any] = {
            "id": entry.removal.id,
            "outcome": str(entry.outcome),
            "outputs_verified": entry.verified,
            **encode_removal(entry.removal),
        }
        output.print_object("removal", fields)
    for finding in report.findings:
        fields = {
            **common,
            "severity": str(finding.severity),
            "rule": finding.rule,
            "id": finding.id,
            "message": finding.message,
        }
        output.print_object("finding", fields)
    summary = {
        **common,
        "directory": report.directory,
        "removals": len(report.entries),
        "segments_verified": report.segments_verified,
        "bytes_verified": report.bytes_verified,
        "head": report.head,
        "is_clean": report.is_clean,
    }
    output.print_object("summary", summary)


def _summarize(report: "AuditReport") -> str:
    from varve.commit_log.check.findings import count_by_severity

    removed = sum(removal.records_removed for removal in report.carried_out)
    parts = [
        f"{format_count(len(report.entries), 'removal')} on record",
        f"{format_count(removed, 'record')} removed",
        f"{format_count(report.segments_verified, 'segment')} of {report.bytes_verified:,} bytes "
        "verified",
        count_by_severity(finding.severity for finding in report.findings) or "nothing wrong",
    ]
    if report.moved_records:
        moved = format_count(report.moved_records, "record")
        parts.insert(2, f"{moved} moved to the object store (see --tier)")
    return f"{report.partition}: {', '.join(parts)}; head {report.head[:_SHOWN_HEAD_LENGTH]}..."


def _print_entries(output: Output, entries: "Sequence[AuditedEntry]") -> None:
    from varve.cleaning.removals.audit import Outcome
    from varve.cleaning.removals.removal import Reason

    if not entries:
        return
    rows: list[list[object]] = []
    details: list[Details] = []
    for entry in entries:
        removal, inputs = entry.removal, entry.removal.inputs
        time = datetime.fromtimestamp(min(removal.at_ms, _LATEST_MS) / 1000, UTC)
        rows.append(
            [
                removal.id,
                f"{time:%Y-%m-%d %H:%M:%S}",
                str(removal.kind),
                f"{inputs[0].base_offset}..{inputs[-1].next_offset}" if inputs else "-",
                f"{len(inputs)} to {len(removal.outputs)}",
                removal.records.get(Reason.KEPT, 0),
            ]
        )
        outcome = str(entry.outcome)
        if entry.verified:
            outcome += f", {entry.verified} of {len(removal.outputs)} verified"
        details.append(
            [("removed", _count_removed(entry)), ("outcome", outcome), ("rule", removal.rule)]
        )
    outcome_styles = {Outcome.DONE: "", Outcome.UNCLEAR: "yellow"}
    styles = [outcome_styles.get(entry.outcome, "dim") for entry in entries]
    output.print_table("removal", _COLUMNS, rows, details=details, styles=styles)
    make_console().print()


def _count_removed(entry: "AuditedEntry") -> str:
    from varve.cleaning.removals.removal import Reason

    parts = [
        f"{count} {reason.value}"
        for reason, count in entry.removal.records.items()
        if count and reason is not Reason.KEPT
    ]
    return ", ".join(parts) or "nothing"


def _print_remote(
    output: Output,
    fs: "FileSystem",
    report: "AuditReport",
    log_directory: str,
    store_settings: Mapping[str, str],
) -> None:
    """The removals from the object store, if a part of the partition was ever there."""
    from varve.cleaning.removals.removal import encode_removal
    from varve.commit_log.directory_files import decode_partition_metadata
    from varve.commit_log.names import PARTITION_METADATA_FILE
    from varve.embedded.offline_tier import OfflineTier
    from varve.embedded.topic_table import find_tiered_topics
    from varve.tiering.evidence import read_remote_removals

    tiered = find_tiered_topics(fs, log_directory)
    if not report.moved_records and report.partition.topic not in tiered:
        return
    path = f"{report.directory}/{PARTITION_METADATA_FILE}"
    topic_id = decode_partition_metadata(fs.read(path), where=path) if fs.exists(path) else None
    with OfflineTier(fs, log_directory, store_settings) as tier:
        manifests = tier.open_manifests(report.partition, topic_id)
        removals = read_remote_removals(tier.objects, manifests)
        is_copied = manifests.load().version > 0
    if output.is_json:
        for removal in removals:
            fields = {"key": removal.key, "is_done": removal.is_done}
            output.print_object("remote_removal", {**fields, **encode_removal(removal.balance)})
        return
    _print_entries(output, list(map(_to_entry, removals)))
    done = sum(removal.balance.records_removed for removal in removals if removal.is_done)
    text = f"{format_count(len(removals), 'removal')} on record, "
    text += f"{format_count(done, 'record')} removed"
    if not is_copied:
        text = "nothing is there: it was removed from the tier, or never copied"
    click.echo(f"{report.partition} in the object store: {text}")


def _to_entry(removal: "RemoteRemoval") -> "AuditedEntry":
    from varve.cleaning.removals.audit import AuditedEntry, Outcome

    return AuditedEntry(
        removal.balance, Outcome.DONE if removal.is_done else Outcome.NOT_DONE, verified=0
    )
