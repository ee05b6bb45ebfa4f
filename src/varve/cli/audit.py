"""`varve audit`: holds the record of every removal against its arithmetic and the disk.

Invariant  reads only, also while a store has the directory open.
"""

import json
import posixpath
import re
import sys
from typing import Annotated, Any, Final

import typer

from varve.cleaning.removals.audit import AUDIT_RULES, AuditedEntry, AuditReport, audit_partition
from varve.cleaning.removals.removal import encode_removal
from varve.cli.audit_table import print_report
from varve.cli.audit_tier import print_remote_removals
from varve.cli.byte_progress import byte_progress
from varve.cli.tier_access import StoreSettings
from varve.commit_log.check import find_partition, is_partition_directory
from varve.commit_log.names import LOG, TopicPartition
from varve.disk import FileSystem, RealFileSystem
from varve.foundation.errors import NotFound

SHOWN: Final = 20


def find_directories(fs: FileSystem, path: str, wanted: str | None) -> list[str]:
    """The partitions' directories below a log directory, or the one that the path names.

    `wanted` is a topic or a topic and its partition; raises NotFound when none fits.
    """
    if is_partition_directory(fs, path):
        found = [path]
    else:
        found = [f"{path}/{entry.name}" for entry in fs.scan(path) if entry.is_directory]
    chosen = [directory for directory in found if _is_wanted(find_partition(directory), wanted)]
    if not chosen:
        what = "partitions" if wanted is None else f"partitions of {wanted!r}"
        raise NotFound(f"{path} has no {what}: give a log directory, or one partition's")
    return sorted(chosen, key=lambda directory: find_partition(directory) or TopicPartition("", 0))


def _is_wanted(partition: TopicPartition | None, wanted: str | None) -> bool:
    if partition is None:
        return False
    return wanted in (None, partition.topic, f"{partition.topic}:{partition.partition}")


def _data_bytes(fs: FileSystem, directory: str) -> int:
    return sum(entry.size for entry in fs.scan(directory) if entry.name.endswith(LOG))


def _print_json(report: AuditReport) -> None:
    common = {"topic": report.partition.topic, "partition": report.partition.partition}
    documents: list[dict[str, Any]] = [_removal(entry) for entry in report.entries]
    for finding in report.findings:
        documents.append(
            {
                "type": "finding",
                **common,
                "severity": str(finding.severity),
                "rule": finding.rule,
                "id": finding.id,
                "message": finding.message,
            }
        )
    documents.append(
        {
            "type": "summary",
            **common,
            "directory": report.directory,
            "removals": len(report.entries),
            "segments_verified": report.segments_verified,
            "bytes_verified": report.bytes_verified,
            "head": report.head,
            "is_clean": report.is_clean,
        }
    )
    for document in documents:
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


def _removal(entry: AuditedEntry) -> dict[str, Any]:
    return {
        "type": "removal",
        "id": entry.removal.id,
        "outcome": str(entry.outcome),
        "outputs_verified": entry.verified,
        **encode_removal(entry.removal),
    }


def _list_rules(is_wanted: bool) -> None:
    if is_wanted:
        for rule, sentence in AUDIT_RULES.items():
            sys.stdout.write(f"{rule:20} {sentence}\n")
        raise typer.Exit(0)


def command(
    directory: Annotated[
        str, typer.Argument(metavar="DIRECTORY", help="A log directory, or one partition's.")
    ],
    wanted: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC[:PARTITION]", help="One topic, or one of its partitions."),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare the keys of all records as well.")
    ] = False,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="CHAIN",
            help="The head of an earlier audit of this partition, which must still be there.",
        ),
    ] = None,
    tier: Annotated[
        bool,
        typer.Option("--tier", help="Show what went from object storage as well, as it has it."),
    ] = False,
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    show_all: Annotated[
        bool, typer.Option("--all", help=f"Show all removals, not the newest {SHOWN} only.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line instead of tables.")
    ] = False,
    rules: Annotated[
        bool,
        typer.Option("--rules", is_eager=True, callback=_list_rules, help="List what is audited."),
    ] = False,
) -> None:
    """Show every removal on record, and whether the records add up and agree with the disk.

    Compaction and retention write down what they take, and why, before they take it. The audit
    checks that no line was changed or taken out, that every record is accounted for, and reads the
    segments that came out of it again. It may run while the directory is in use, and writes
    nothing.

    Records that were moved to the cold tier are gone from the local disk only. What expiry and
    jobs took from there is on record in the bucket, and --tier shows it. A topic that left the
    tier took its record there along.

    The exit status is 0 when nothing of severity error is found, 1 otherwise. With --json every
    line has `type` (removal, cold_removal, finding or summary), `topic` and `partition`. Lines
    taken off the end of the record leave no trace in it: note the `head` of the summary that --json
    prints elsewhere, and give it to a later audit; tables show only its beginning.

    \b
    Examples:
      varve audit data
      varve audit data orders
      varve audit --tier data orders
      varve audit --deep --json data orders:0
      varve audit --head "$(cat noted-head)" data orders:0
    """
    if head is not None and not re.fullmatch(r"[0-9a-f]{64}", head):
        raise typer.BadParameter(
            f"--head {head[:70]!r} is no chain: give all 64 hex digits, as --json shows them"
        )
    fs = RealFileSystem()
    # A relative path may not tell the directory's own name or the one around it.
    path = posixpath.abspath(directory)
    if not fs.exists(path) or not fs.info(path).is_directory:
        raise typer.BadParameter(f"{path} is not a directory")
    directories = find_directories(fs, path, wanted)
    if head is not None and len(directories) > 1:
        raise typer.BadParameter("--head is that of one partition: name it as TOPIC:PARTITION")
    is_clean = True
    for one in directories:
        passes = 2 if deep else 1
        with byte_progress("Auditing", passes * _data_bytes(fs, one)) as advance:
            report = audit_partition(fs, one, deep=deep, head=head, advance=advance)
        is_clean = is_clean and report.is_clean
        if as_json:
            _print_json(report)
        else:
            print_report(report, last=None if show_all else SHOWN)
        if tier:
            print_remote_removals(fs, report, store_settings, as_json=as_json)
    if not is_clean:
        raise typer.Exit(1)
