"""`varve job compact`: the latest record of each key stays in the cold tier, on Spark.

Crash      a partition is as it was or compacted; the next run sweeps what was left.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from varve.cli.job_options import (
    Conf,
    LogDirectory,
    Master,
    ReportPath,
    find_address,
    spark_options,
)
from varve.cli.job_run import open_job, tell_report, write_report
from varve.cli.store_access import AsJson, parse_setting
from varve.cli.tier_access import Cluster, StoreSettings, TierUrl
from varve.commit_log import LogSettings
from varve.disk import FileSystem, RealFileSystem
from varve.embedded.topic_table import TOPICS_FILE, decode_topics
from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.settings import GivenValue, parse_settings
from varve.foundation.units import format_bytes, format_count

if TYPE_CHECKING:
    from varve.cli.job_run import Job
    from varve.jobs.compact.result import CompactEstimate, CompactionResult, PartitionResult
    from varve.jobs.compact.settings import CompactSettings
    from varve.jobs.tier.bucket import Bucket

_POLICY: Final = "cleanup.policy"
_WHEN_INTERRUPTED: Final = (
    "stopped; every partition is as it was or compacted, and the next run sweeps what was left"
)


def command(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="The topics; with --dir they may be left out, and all compacted ones are meant.",
            show_default=False,
        ),
    ] = None,
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006 - typer copies it, and shows no default
    directory: LogDirectory = None,
    cluster: Cluster = None,
    topic_settings: Annotated[
        list[str],
        typer.Option(
            "--setting",
            "-s",
            metavar="NAME=VALUE",
            help="A setting of the topics, such as min.compaction.lag.ms=3600000; repeatable. It "
            "outranks what the log directory says.",
        ),
    ] = [],  # noqa: B006
    force: Annotated[
        bool, typer.Option("--force", help="Compact what is not due, be ever so little stale.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Tell what would be rewritten and cost; change nothing."),
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Work on a partition that a job which is gone has the lease of."
        ),
    ] = False,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = [],  # noqa: B006
    report: ReportPath = None,
) -> None:
    """Compact topics in the cold tier: the latest record of each key stays.

    The rules are those of the local cleaner: min.cleanable.dirty.ratio, min.compaction.lag.ms and
    max.compaction.lag.ms, tombstones and transaction markers until their horizon. Keys are planned
    from the key indexes, values are never shuffled, and a partition changes by one commit of its
    manifest. A store may go on copying meanwhile. Another job on the same partition is refused
    while this one is at work; --take-over is for one that was killed on another machine. Replaced
    objects stay for the grace time of readers.

    With --dry-run it plans alone, and the table shows what would be: nothing is swept, announced,
    uploaded or committed.

    The bucket does not hold the settings of topics. With --dir they are those of the log directory;
    without, name the topics, whose policy is then compact, and give the rest with --setting.

    The exit status is 1 when a partition failed or has a damaged segment, which is held.
    With --json every line has `type`: partition or report.

    \b
    Examples:
      varve job compact --dir data
      varve job compact orders --store s3://bucket/varve --setting min.cleanable.dirty.ratio=0.2
      varve job compact orders --dir data --force --json
      varve job compact --dir data --dry-run
    """
    given = dict(parse_setting(text) for text in topic_settings)
    address = find_address(store_url, store_settings, directory, cluster)
    chosen = choose_topics(RealFileSystem(), topics or [], directory, given)
    groups = _group(chosen, force=force, dry_run=dry_run, take_over=take_over)
    options = spark_options(master, conf)
    with open_job("compact", options, when_interrupted=_WHEN_INTERRUPTED) as job:
        results = [_compact(job, address, names, settings, directory) for settings, names in groups]
        done = job.report(None, [result.to_json() for result in results])
    partitions = [partition_result for result in results for partition_result in result.partitions]
    if report is not None:
        write_report(done, report)
    if as_json:
        for partition_result in partitions:
            typer.echo(json.dumps({"type": "partition", **partition_result.to_json()}))
        jobs = [result.job_id for result in results]
        typer.echo(json.dumps({"type": "report", "jobs": jobs, **done.to_document()}))
    else:
        print_partitions(partitions)
        tell_report(done)
    if any(
        partition_result.error is not None or partition_result.held
        for partition_result in partitions
    ):
        raise typer.Exit(1)


def choose_topics(
    fs: FileSystem,
    topics: Sequence[str],
    directory: str | None,
    given_values: Mapping[str, GivenValue],
) -> dict[str, LogSettings]:
    """The topics to compact and their settings; raises InvalidRequest where they are not known."""
    if directory is None:
        if not topics:
            raise InvalidRequest(
                "name the topics, or give --dir: an object store does not tell which are compacted"
            )
        values = {_POLICY: "compact", **given_values}
        return {name: parse_settings(LogSettings, values, f"topic {name}") for name in topics}
    path = f"{directory}/{TOPICS_FILE}"
    table = decode_topics(fs.read(path), path).topics if fs.exists(path) else {}
    known = {
        name: parse_settings(LogSettings, {**entry.settings, **given_values}, f"topic {name}")
        for name, entry in table.items()
    }
    if topics:
        for name in topics:
            if name not in known:
                there = ", ".join(known) or "none"
                raise NotFound(f"{directory} has no topic {name!r:.260} (topics: {there:.400})")
        return {name: known[name] for name in topics}
    chosen = {
        name: settings
        for name, settings in known.items()
        if settings.remote_storage_enable and settings.is_compacted
    }
    if not chosen:
        raise InvalidRequest(f"{directory} has no compacted topic in the cold tier")
    return chosen


def print_partitions(partitions: "Sequence[PartitionResult]") -> None:
    """A line for each partition before and after, and below it what there is to say."""
    from varve.cli.screen import make_console, print_rows_with_details

    columns = ("partition", "segments", "after", "bytes", "after", "saved", "records", "kept")
    print_rows_with_details(
        make_console(),
        columns,
        [_cells(result) for result in partitions],
        [list(_details(result)) for result in partitions],
        left=("partition",),
    )


def _compact(
    job: "Job",
    address: "Bucket",
    topics: Sequence[str],
    settings: "CompactSettings",
    directory: str | None,
) -> "CompactionResult":
    from varve.jobs.compact.job import compact
    from varve.spark.runner import SparkRunner

    runner = SparkRunner(job.spark, "compact", topics)
    return job.run(
        lambda: compact(address, topics, settings=settings, runner=runner, directory=directory)
    )


def _group(
    chosen: Mapping[str, LogSettings], *, force: bool, dry_run: bool, take_over: bool
) -> "list[tuple[CompactSettings, list[str]]]":
    """Topics of the same settings together, so that their tasks run at once."""
    from varve.jobs.compact.settings import CompactSettings

    groups: list[tuple[CompactSettings, list[str]]] = []
    for name, log in chosen.items():
        settings = CompactSettings(
            log=log, is_forced=force, is_dry_run=dry_run, takes_over=take_over
        )
        names = next((names for known, names in groups if known == settings), None)
        if names is None:
            groups.append((settings, [name]))
        else:
            names.append(name)
    return groups


def _cells(result: "PartitionResult") -> tuple[str, ...]:
    from varve.cleaning.removals.removal import Reason

    saved = result.bytes_before - result.bytes_after
    share = f"{saved / result.bytes_before:.0%}" if result.bytes_before else "-"
    return (
        f"{result.path.topic}-{result.path.partition}",
        f"{result.segments_before:,}",
        f"{result.segments_after:,}",
        format_bytes(result.bytes_before),
        format_bytes(result.bytes_after),
        share,
        f"{sum(result.records.values()):,}",
        f"{result.records.get(Reason.KEPT, 0):,}",
    )


def _details(result: "PartitionResult") -> Iterator[tuple[str, Any]]:
    from varve.cleaning.removals.removal import Reason

    label = "removed" if result.estimate is None else "would go"
    for reason, count in result.records.items():
        if reason is not Reason.KEPT and count:
            size = format_bytes(result.bytes.get(reason, 0))
            yield label, f"{format_count(count, 'record')}, {size}: {reason}"
    if result.estimate is not None:
        yield from _foretell(result.estimate)
    if result.held:
        bases = ", ".join(map(str, result.held[:10]))
        yield "damaged", f"segments held at base offsets {bases}"
    if result.voided_groups:
        yield "left", f"{result.voided_groups} groups whose segments were changed meanwhile"
    if result.swept:
        yield "swept", f"{result.swept} leftovers of a run that was killed"
    if result.note:
        yield "note", result.note
    if result.error is not None:
        yield "failed", result.error


def _foretell(estimate: "CompactEstimate") -> Iterator[tuple[str, str]]:
    read, written = format_bytes(estimate.read_bytes), format_bytes(estimate.written_bytes)
    yield (
        "rewrites",
        f"{format_count(estimate.segments, 'segment')} as {estimate.groups:,}: "
        f"at most {read} read, about {written} written",
    )
    yield (
        "cost",
        f"about {estimate.read_requests:,} requests to read and {estimate.write_requests:,} to "
        f"write, {estimate.cost:.4f} {estimate.currency} ({estimate.prices})",
    )
