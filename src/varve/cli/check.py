"""`varve check`: verifies every invariant of directories, and repairs what can be repaired."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import SEVERITY_STYLES, Output
from varve.cli.where import Where
from varve.foundation.clock import SystemClock

if TYPE_CHECKING:
    from varve.commit_log.check import Finding
    from varve.disk import FileSystem
    from varve.embedded.directory_check import CheckResult


def _load_rules() -> Mapping[str, str]:
    from varve.embedded.directory_check import CHECK_RULES

    return CHECK_RULES


@command(
    examples=(
        "varve check -d data --deep --tier",
        "varve check data/orders-0 --repair --allow-data-loss --quarantine /backup/cut",
    )
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
@options.list_rules(_load_rules)
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
