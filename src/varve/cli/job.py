"""`varve job compact`, `verify`, `due`, `report` and `package`.

Crash      a partition is unchanged or compacted; the next run deletes leftovers.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli import options, spark_options
from varve.cli.command import command
from varve.cli.output import Grouped, Output
from varve.cli.spark_options import JobOptions
from varve.cli.where import Where
from varve.foundation.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from varve.jobs.compact.result import CompactEstimate, PartitionResult
    from varve.jobs.schedule import ScheduledJob
    from varve.jobs.tier.location import TopicLocation
    from varve.jobs.verify.result import PartitionVerdict, VerifyFinding, VerifyResult

_FINDINGS_MAX: Final = 100
"""Findings that are printed; --json has all of them."""

_BAR_CELLS: Final = 24

_topics = click.argument("topics", metavar="[TOPIC...]", nargs=-1)


# compact


@command(
    "varve job compact -d data --dry-run",
    "varve job compact orders --store s3://bucket/varve -s min.cleanable.dirty.ratio=0.2",
)
@_topics
@options.settings("A setting of the topics; it beats the log directory's.")
@click.option("--force", is_flag=True, help="Compact also what is not due.")
@click.option(
    "--take-over", is_flag=True, help="Take the lease of a job that was killed elsewhere."
)
@options.dry_run
@spark_options.location
@spark_options.spark
@options.output
def job_compact(
    topics: tuple[str, ...],
    location: "TopicLocation",
    job_options: JobOptions,
    output: Output,
    **choices: Any,
) -> None:
    """Compact topics in object storage: the latest record of each key remains.

    The rules are those of the local cleaner. A partition changes by one commit of its manifest; a
    server may copy segments meanwhile. With --dir the settings are those of the directory, and
    without topics all compacted ones are meant. Without --dir name the topics: their policy is
    compact, and --set gives the other settings. The exit status is 1 if a partition failed or has a
    damaged segment.
    """
    import varve.spark as vs

    interrupted = "every partition is unchanged or compacted, and the next run deletes leftovers"
    with job_options.open_job("compact", output, when_interrupted=interrupted) as job:
        result = job.run(
            lambda: vs.compact(None, location, topics, runner=job.runner(topics), **choices)
        )
        report = job.report(None, result.to_json())
    print_compactions(result.partitions, output)
    job_options.print_report(report, output, job_id=result.job_id)
    if any(partition.error is not None or partition.held for partition in result.partitions):
        raise click.exceptions.Exit(1)


def print_compactions(partitions: "Sequence[PartitionResult]", output: Output) -> None:
    """A line for each partition before and after, with details below it; or an object."""
    output.print_table(
        "partition",
        ("partition", "segments", "after", "bytes", "after", "saved", "records", "kept"),
        [_compaction_cells(partition) for partition in partitions],
        details=[list(_compaction_details(partition)) for partition in partitions],
        documents=[partition.to_json() for partition in partitions],
        right=True,
        left=("partition",),
    )


def _compaction_cells(result: "PartitionResult") -> tuple[str, ...]:
    from varve.cleaning.removals.removal import Reason

    saved = result.bytes_before - result.bytes_after
    return (
        f"{result.path.topic}-{result.path.partition}",
        f"{result.segments_before:,}",
        f"{result.segments_after:,}",
        format_bytes(result.bytes_before),
        format_bytes(result.bytes_after),
        f"{saved / result.bytes_before:.0%}" if result.bytes_before else "-",
        f"{sum(result.records.values()):,}",
        f"{result.records.get(Reason.KEPT, 0):,}",
    )


def _compaction_details(result: "PartitionResult") -> Iterator[tuple[str, str]]:
    from varve.cleaning.removals.removal import Reason

    label = "removed" if result.estimate is None else "would remove"
    for reason, count in result.records.items():
        if reason is not Reason.KEPT and count:
            size = format_bytes(result.bytes.get(reason, 0))
            yield label, f"{format_count(count, 'record')}, {size}: {reason}"
    if result.estimate is not None:
        yield from _estimate_details(result.estimate)
    if result.held:
        bases = ", ".join(map(str, result.held[:10]))
        yield "damaged", f"segments held at base offsets {bases}"
    if result.voided_groups:
        yield "unchanged", f"{result.voided_groups} groups whose segments changed meanwhile"
    if result.swept:
        yield "deleted", f"{result.swept} leftovers of a killed run"
    if result.note:
        yield "note", result.note
    if result.error is not None:
        yield "failed", result.error


def _estimate_details(estimate: "CompactEstimate") -> Iterator[tuple[str, str]]:
    read, written = format_bytes(estimate.read_bytes), format_bytes(estimate.written_bytes)
    yield (
        "rewrites",
        f"{format_count(estimate.segments, 'segment')} as {estimate.groups:,}: "
        f"at most {read} read, about {written} written",
    )
    yield (
        "cost",
        f"about {estimate.read_requests:,} read requests and {estimate.write_requests:,} write "
        f"requests, {estimate.cost:.4f} {estimate.currency} ({estimate.prices})",
    )


# verify


def _load_rules() -> Mapping[str, str]:
    from varve.commit_log.check.findings import RULES
    from varve.jobs.verify.result import VERIFY_RULES

    return {**{name: rule.text for name, rule in VERIFY_RULES.items()}, **RULES}


@command(
    "varve job verify -d data",
    "varve job verify orders --store s3://bucket/varve --page verify.html",
)
@_topics
@click.option("--page", metavar="FILE", help="Write an HTML page with pictures.")
@options.list_rules(_load_rules)
@spark_options.location
@spark_options.spark
@options.output
def job_verify(
    topics: tuple[str, ...],
    location: "TopicLocation",
    job_options: JobOptions,
    output: Output,
    page: str | None,
) -> None:
    """Verify topics in object storage: every byte, index, key and manifest.

    Every object is read once and compared with its checksum, its indexes, its neighbours and its
    manifest. With --dir the log directory is read too, if no server has it open. Nothing is
    changed. The exit status is 1 if a finding is an error; a warning costs bytes but no records.
    """
    import varve.spark as vs

    with job_options.open_job("verify", output) as job:
        result = job.run(lambda: vs.verify(None, location, topics, runner=job.runner(topics)))
        report = job.report(None, result.to_json())
    if page is not None:
        from varve.jobs.verify.page import render_page

        with open(page, "w", encoding="utf-8") as file:
            file.write(render_page(result))
    print_verdicts(result, output)
    job_options.print_report(
        report,
        output,
        has_damage=result.has_damage,
        verified_bytes=result.verified_bytes,
    )
    if result.has_damage:
        raise click.exceptions.Exit(1)


def print_verdicts(result: "VerifyResult", output: Output) -> None:
    """A line for each partition with its gravest findings below it; or all as objects."""
    if output.is_json:
        output.print_objects("partition", (verdict.to_json() for verdict in result.partitions))
        output.print_objects("finding", (finding.to_json() for finding in result.findings))
        return
    from varve.cli.output import make_console, print_details
    from varve.jobs.verify.result import gravest_first

    shown = {id(finding) for finding in gravest_first(result.findings)[:_FINDINGS_MAX]}
    output.print_table(
        "partition",
        ("partition", "segments", "records", "bytes", "verified", "findings"),
        [_verdict_cells(verdict) for verdict in result.partitions],
        details=[
            [
                pair
                for finding in verdict.findings
                if id(finding) in shown
                for pair in _finding_details(finding)
            ]
            for verdict in result.partitions
        ],
        right=True,
        left=("partition",),
    )
    for finding in result.others:
        print_details(make_console(), list(_finding_details(finding)), indent=4)
    hidden = len(result.findings) - len(shown)
    if hidden > 0:
        click.echo(f"{hidden:,} more findings; --json prints all")
    click.echo(f"{result.store}: {_summarize(result)}")


def _summarize(result: "VerifyResult") -> str:
    from varve.commit_log.check.findings import Severity

    counts = Counter(finding.severity for finding in result.findings)
    words = [
        f"{counts[severity]} {severity}{'s' * (counts[severity] > 1)}"
        for severity in Severity
        if counts[severity]
    ]
    return f"{', '.join(words) or 'nothing found'}, {format_bytes(result.verified_bytes)} verified"


def _verdict_cells(verdict: "PartitionVerdict") -> tuple[str, ...]:
    return (
        f"{verdict.partition.topic}-{verdict.partition.partition}",
        f"{len(verdict.segments):,}",
        f"{verdict.record_count:,}",
        format_bytes(sum(verdict.bytes.values())),
        format_bytes(verdict.verified_bytes),
        f"{len(verdict.findings):,}" if verdict.findings else "-",
    )


def _finding_details(finding: "VerifyFinding") -> Iterator[tuple[str, str]]:
    yield str(finding.severity), f"{finding.rule}: {finding.message}"
    yield "where", finding.place
    if finding.expected or finding.found:
        yield "expected", f"{finding.expected}; found {finding.found}"
    if finding.remedy:
        yield "remedy", finding.remedy


# due


@command("varve job due -d data", "varve job due -d data --run --conf spark.driver.memory=4g")
@click.option("--run", is_flag=True, help="Run the jobs that are due, one after another.")
@options.settings("A setting of topics without their own.")
@options.directory
@spark_options.spark
@options.output
def job_due(
    where: Where, job_options: JobOptions, output: Output, run: bool, settings: dict[str, str]
) -> None:
    """List the scheduled jobs of topics, or run those that are due.

    The settings varve.job.compact.interval.ms, varve.job.table.interval.ms,
    varve.job.snapshot.interval.ms and varve.job.verify.interval.ms request them. The file
    varve-jobs.json of the directory has their last runs. A server may have the directory open. A
    failed job runs again after a minute, then two, four, up to its interval. With --run the exit
    code is 1 if a job failed.
    """
    from varve.foundation.clock import SystemClock
    from varve.jobs.schedule import list_jobs

    directory, *others = where.paths()
    if others:
        raise click.UsageError("give one --dir: scheduled jobs belong to one log directory")
    now_ms = SystemClock().now_ms()
    jobs = list_jobs(directory, now_ms, defaults=settings)
    if not run:
        _print_jobs(jobs, now_ms, output)
    elif any(job.is_due for job in jobs):
        _run_due(directory, where, job_options, output, settings)
    elif not output.is_json:
        output.note("nothing is due")


def _run_due(
    directory: str,
    where: Where,
    job_options: JobOptions,
    output: Output,
    settings: Mapping[str, str],
) -> None:
    from varve.jobs.schedule import run_due

    store_settings = where.first_store_settings()
    interrupted = "finished jobs are recorded, the running one is due again"
    with job_options.open_job("due", output, when_interrupted=interrupted) as job:
        runner = job.runner()
        outcomes = job.run(
            lambda: run_due(directory, runner, defaults=settings, store_settings=store_settings)
        )
        report = job.report(None, [outcome.to_json() for outcome in outcomes])
    for outcome in outcomes:
        end = "done" if outcome.run.error is None else f"failed: {outcome.run.error}"
        duration = format_duration(outcome.run.ended_ms - outcome.run.started_ms)
        output.print_result(
            f"{outcome.job} {outcome.topic}: {end}, {duration}", "outcome", **outcome.to_json()
        )
    job_options.print_report(report, output)
    if any(outcome.has_failed for outcome in outcomes):
        raise click.exceptions.Exit(1)


def _print_jobs(jobs: "Sequence[ScheduledJob]", now_ms: int, output: Output) -> None:
    if not jobs and not output.is_json:
        output.note(
            "no topic has a scheduled job: docs/how-to/run-jobs-on-a-cluster.md lists the settings"
        )
        return
    output.print_table(
        "job",
        ("job", "topic", "every", "last run", "due", "why"),
        [_job_cells(job, now_ms) for job in jobs],
        details=[
            [("failed", job.last.error)] if job.last is not None and job.last.error else []
            for job in jobs
        ],
        documents=[job.to_json() for job in jobs],
    )


def _job_cells(job: "ScheduledJob", now_ms: int) -> tuple[str, ...]:
    last = "never" if job.last is None else f"{format_duration(now_ms - job.last.started_ms)} ago"
    due = "now" if job.is_due else f"in {format_duration(max(job.next_ms - now_ms, 0))}"
    if job.why.startswith("not possible"):
        due = "-"
    return job.job.value, job.topic, format_duration(job.interval_ms), last, due, job.why


# report


@command("varve job report compact.json", "varve job report compact.json --json")
@click.argument("path", metavar="FILE")
@options.output
def job_report(path: str, output: Output) -> None:
    """Show the report of a job: its steps and stages with time and bytes.

    Steps are varve's: their tasks count requests and bytes of the object store. Stages are Spark's,
    with the rows, bytes and shuffles that Spark counts. The bars show when each ran.
    """
    from varve.spark.console import read_report

    document = read_report(path)
    if output.is_json:
        output.print_object("report", document)
        return
    store = document["store"]
    shuffled = (
        "not reported" if document["remote_stages"] else format_bytes(document["shuffled_bytes"])
    )
    output.print_fields(
        "report",
        {
            "job": f"{document['job']}, {document['application'] or 'without Spark'}",
            "time": format_duration(document["duration_ms"]),
            **({} if document["rows"] is None else {"rows": f"{document['rows']:,}"}),
            "tasks": f"{document['tasks']:,}, {document['failed_tasks']:,} failed",
            "shuffled": shuffled,
            "requests": f"{store['requests']:,}",
            "fetched": format_bytes(store["read_bytes"]),
            "stored": format_bytes(store["written_bytes"]),
        },
    )
    _print_steps(document, output)
    _print_stages(document, output)
    for note in document["notes"]:
        click.echo(f"note: {note}")


def _print_steps(document: Mapping[str, Any], output: Output) -> None:
    _print_report_table(
        ("step", "tasks", "fetched", "stored", "time", ""),
        [
            (
                step["name"],
                Grouped(step["tasks"]),
                format_bytes(step["store"]["read_bytes"]),
                format_bytes(step["store"]["written_bytes"]),
                format_duration(step["duration_ms"]),
                _draw_span(document, step),
            )
            for step in document["steps"]
        ],
        output,
    )


def _print_stages(document: Mapping[str, Any], output: Output) -> None:
    _print_report_table(
        ("stage", "tasks", "rows", "read", "shuffled", "written", "time", ""),
        [
            (
                f"{stage['stage']} {stage['name']}",
                Grouped(stage["tasks"]),
                Grouped(stage["read_rows"]),
                format_bytes(stage["read_bytes"]),
                format_bytes(stage["shuffle_written_bytes"]),
                format_bytes(stage["written_bytes"]),
                format_duration(stage["duration_ms"]),
                _draw_span(document, stage),
            )
            for stage in document["stages"]
        ],
        output,
    )
    _print_report_table(
        ("stage", "tasks", "read"),
        [
            (
                f"{stage['stage']} {stage['name']}",
                Grouped(stage["tasks"]),
                format_bytes(stage["read_bytes"]),
            )
            for stage in document["remote_stages"]
        ],
        output,
    )


def _print_report_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], output: Output
) -> None:
    if rows:
        click.echo()
        output.print_table("report", columns, rows, right=True, left=(columns[0], ""))


def _draw_span(document: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """When a step or stage ran within the job, as at least one cell of a bar."""
    whole_ms = max(int(document["duration_ms"]), 1)
    start: int = (part["started_ms"] - document["started_ms"]) * _BAR_CELLS // whole_ms
    start = min(max(start, 0), _BAR_CELLS - 1)
    cells: int = max(-(-part["duration_ms"] * _BAR_CELLS // whole_ms), 1)
    cells = min(cells, _BAR_CELLS - start)
    return "·" * start + "█" * cells + "·" * (_BAR_CELLS - start - cells)


# package


@command("varve job package -o varve-env.tar.gz", "varve job package --json")
@click.option(
    "-o",
    "--output",
    "path",
    default="varve-env.tar.gz",
    metavar="FILE",
    help="The archive; a .tar is written faster and is three times as large.",
)
@options.output
def job_package(path: str, output: Output) -> None:
    """Pack what executors need: varve and all its packages, as installed here.

    Spark copies the archive to each executor and unpacks it there. The cluster needs only Spark and
    a Python of the same minor version and platform. Pass the archive to any job with --conf
    varve.package=FILE or the variable VARVE_SPARK_PACKAGE.
    """
    from varve.spark.package import build_package

    built = build_package(path)
    if output.is_json:
        output.print_object("package", built.to_json())
        return
    click.echo(
        f"{built.path}: {format_bytes(built.size)}, {len(built.packages)} packages, "
        f"varve {built.varve}, for Python {built.python} on {built.platform}"
    )
    click.echo("\nwith varve's own commands:")
    click.echo(f"  --conf varve.package={built.path}")
    click.echo("\nwith spark-submit, or for a server of Spark Connect:")
    for name, value in built.conf.items():
        click.echo(f"  --conf {name}={value}")
    click.echo(f"  and in the environment: PYSPARK_PYTHON=python{built.python}")
