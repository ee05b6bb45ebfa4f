"""`varve check`: walks every invariant of directories, and mends what can be mended.

Invariant  nothing is written without `--repair`, no data is cut without `--allow-data-loss`.
"""

import json
import posixpath
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer

from varve.cleaning.key_index.check import check_key_indexes
from varve.cli.byte_progress import byte_progress
from varve.cli.check_table import print_findings
from varve.cli.check_tier import TIER_RULES, TierCheck, check_tier, check_tier_file
from varve.cli.tier_access import StoreSettings
from varve.commit_log.check import (
    Finding,
    Severity,
    hold_lock,
    inspect_directory,
    inspect_partition,
    is_log_directory,
    is_partition_directory,
)
from varve.commit_log.check.directory import DirectoryFacts
from varve.commit_log.check.findings import RULES
from varve.commit_log.check.partition import PartitionContext
from varve.commit_log.check.repair import Quarantine, RepairReport, RepairTools, repair_directory
from varve.commit_log.names import LOG
from varve.disk import FileSystem, RealFileSystem
from varve.embedded.topic_table import (
    TOPICS_FILE,
    decode_topics,
    find_lost_settings,
    lost_settings_message,
)
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import StoreError

QUARANTINE_NAME: Final = "varve-quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What a check does besides looking."""

    deep: bool = False
    lock: bool = True
    repair: bool = False
    allow_data_loss: bool = False
    quarantine: str | None = None
    tier: TierCheck | None = None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was found, and after a repair what was done and what is left."""

    path: str
    before: list[Finding]
    report: RepairReport | None = None
    after: list[Finding] | None = None

    @property
    def is_clean(self) -> bool:
        findings = self.before if self.after is None else self.after
        is_refused = self.report is not None and bool(self.report.refused)
        return not is_refused and all(f.severity is not Severity.ERROR for f in findings)


def check_path(
    fs: FileSystem,
    path: str,
    options: CheckOptions,
    clock: Clock,
    advance: Callable[[int], None],
) -> CheckResult:
    """Checks a log directory or a partition directory; raises Locked when it is in use."""
    path = path.rstrip("/") or "/"
    is_partition = is_partition_directory(fs, path)
    log_directory = (posixpath.dirname(path) or ".") if is_partition else path
    context = PartitionContext(now_ms=clock.now_ms(), deep=options.deep, advance=advance)

    def inspect() -> DirectoryFacts:
        if is_partition:
            return inspect_partition(fs, path, context)
        return inspect_directory(fs, path, context)

    def findings_of(facts: DirectoryFacts) -> list[Finding]:
        found = facts.findings + (check_key_indexes(fs, facts) if options.deep else [])
        found += _check_topics(fs, path) + check_tier_file(fs, log_directory)
        if options.tier is not None:
            found += check_tier(fs, log_directory, facts, options.tier)
        return found

    with hold_lock(fs, log_directory, wanted=options.lock):
        facts = inspect()
        before = findings_of(facts)
        if not options.repair:
            return CheckResult(path, before)
        beside = posixpath.dirname(log_directory) or "."
        quarantine = options.quarantine or f"{beside}/{QUARANTINE_NAME}"
        tools = RepairTools(
            fs=fs,
            clock=clock,
            random=random.Random(),
            quarantine=Quarantine(fs, quarantine),
            allow_data_loss=options.allow_data_loss,
        )
        has_own_files = not is_partition or is_log_directory(fs, log_directory)
        report = repair_directory(facts, tools, has_own_files=has_own_files)
        return CheckResult(path, before, report, findings_of(inspect()))


def _check_topics(fs: FileSystem, directory: str) -> list[Finding]:
    """What is wrong with the table of topics, which a repair leaves alone: it cannot be guessed."""
    path = f"{directory}/{TOPICS_FILE}"
    try:
        known = decode_topics(fs.read(path), path).topics if fs.exists(path) else {}
    except StoreError as error:
        message = str(error).removeprefix(f"{path}: ")
        return [Finding(Severity.ERROR, path, None, "topics-corrupt", message)]
    return [
        Finding(Severity.ERROR, path, None, "topics-lost", lost_settings_message(topic))
        for topic in sorted(find_lost_settings(fs, [directory], known))
    ]


def _data_bytes(fs: FileSystem, path: str) -> int:
    total = 0
    for entry in fs.scan(path):
        child = f"{path}/{entry.name}"
        inside = fs.scan(child) if entry.is_directory else [entry]
        total += sum(file.size for file in inside if file.name.endswith(LOG))
    return total


def _print_json(result: CheckResult) -> None:
    for stage, findings in (("before", result.before), ("after", result.after or [])):
        for finding in findings:
            document = {"kind": "finding", "stage": stage, **asdict(finding)}
            sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
        if stage == "before" and result.report is not None:
            for kind in ("done", "refused"):
                for message in getattr(result.report, kind):
                    document = {"kind": kind, "directory": result.path, "message": message}
                    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


def _print_text(result: CheckResult) -> None:
    print_findings(result.path, result.before, title="Before" if result.report else None)
    if result.report is None:
        return
    for message in result.report.done:
        sys.stdout.write(f"repaired  {message}\n")
    for message in result.report.refused:
        sys.stdout.write(f"refused   {message}\n")
    print_findings(result.path, result.after or [], title="After")


def _list_rules(is_wanted: bool) -> None:
    if is_wanted:
        for rule, sentence in {**RULES, **TIER_RULES}.items():
            sys.stdout.write(f"{rule:30} {sentence}\n")
        raise typer.Exit(0)


def command(
    directories: Annotated[
        list[str],
        typer.Argument(metavar="DIRECTORY", help="A log directory, or one partition's."),
    ],
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild what can be rebuilt, then check again.")
    ] = False,
    allow_data_loss: Annotated[
        bool,
        typer.Option("--allow-data-loss", help="Let a repair cut damaged data; it is kept aside."),
    ] = False,
    quarantine: Annotated[
        str | None,
        typer.Option(
            "--quarantine",
            help=f"Where cut bytes go; {QUARANTINE_NAME} beside the log directory by default.",
        ),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Decompress and parse every record, and read key indexes, as well."
        ),
    ] = False,
    tier: Annotated[
        bool,
        typer.Option(
            "--tier",
            help="Look into the cold tier too: both tiers join, and all objects are there.",
        ),
    ] = False,
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    no_lock: Annotated[
        bool,
        typer.Option("--no-lock", help="Look even while the directory is in use."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line instead of a table.")
    ] = False,
    rules: Annotated[
        bool,
        typer.Option("--rules", is_eager=True, callback=_list_rules, help="List what is checked."),
    ] = False,
) -> None:
    """Walk every invariant of log directories or partitions and name what is broken.

    The exit status is 0 when nothing of severity error is found, 1 otherwise. A warning mends
    itself at the next open, a note is worth knowing. With --json every line has `kind` (finding,
    done or refused); findings have `stage`, `severity`, `path`, `position`, `rule`, `message` and
    `repair`. Without --repair nothing is written. With --tier the cold tier is looked at as well,
    with --deep all its objects are read; a repair leaves it alone. The evidence of removals is not
    looked at here: `varve audit` checks it.

    \b
    Examples:
      varve check data
      varve check --deep --json data/orders-0
      varve check --tier data
      varve check --repair data
      varve check --repair --allow-data-loss --quarantine /backup/cut data
    """
    if no_lock and repair:
        raise typer.BadParameter("a repair needs the directory for itself: leave out --no-lock")
    if allow_data_loss and not repair:
        raise typer.BadParameter("--allow-data-loss has a meaning with --repair only")
    fs = RealFileSystem()
    # A relative path may not tell the directory's own name or the one around it.
    directories = [posixpath.abspath(directory) for directory in directories]
    for directory in directories:
        if not fs.exists(directory) or not fs.info(directory).is_directory:
            raise typer.BadParameter(f"{directory} is not a directory")
    if no_lock:
        sys.stderr.write("Not locked: what is found may be a change in progress.\n")
    options = CheckOptions(
        deep=deep,
        lock=not no_lock,
        repair=repair,
        allow_data_loss=allow_data_loss,
        quarantine=quarantine,
        tier=TierCheck(store_settings, deep, SystemClock().now_ms()) if tier else None,
    )
    is_clean = True
    for directory in directories:
        passes = 2 if repair else 1
        with byte_progress("Checking", passes * _data_bytes(fs, directory)) as advance:
            result = check_path(fs, directory, options, SystemClock(), advance)
        is_clean = is_clean and result.is_clean
        if as_json:
            _print_json(result)
        else:
            _print_text(result)
    if not is_clean:
        raise typer.Exit(1)
