"""`varve job due`: what the settings of topics want done again and again, listed or run."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from varve.cli.job_options import Conf, Master, ReportPath, spark_options
from varve.cli.job_run import open_job, tell_report, write_report
from varve.cli.store_access import AsJson, parse_setting
from varve.cli.tier_access import Cluster, StoreSettings, split_settings
from varve.foundation.clock import SystemClock
from varve.foundation.units import format_duration

if TYPE_CHECKING:
    from varve.foundation.settings import GivenValue
    from varve.jobs.schedule import JobOutcome, ScheduledJob
    from varve.spark.stages import JobReport

_WHEN_INTERRUPTED: Final = "stopped; jobs that were over are noted, the one under way is due again"


def command(
    directory: Annotated[
        str,
        typer.Option("--dir", "-d", envvar="VARVE_DIR", metavar="PATH", help="The log directory."),
    ],
    run: Annotated[
        bool, typer.Option("--run", help="Run what is due, one job after another, in one session.")
    ] = False,
    topic_settings: Annotated[
        list[str],
        typer.Option(
            "--setting",
            "-s",
            metavar="NAME=VALUE",
            help="A setting for topics that say nothing themselves, such as "
            "varve.job.verify.interval.ms=604800000; repeatable.",
        ),
    ] = [],  # noqa: B006 - typer copies it, and shows no default
    store_settings: StoreSettings = [],  # noqa: B006
    cluster: Cluster = None,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = [],  # noqa: B006
    report: ReportPath = None,
) -> None:
    """List the jobs that topics are to be given at intervals, or run those that are due.

    The settings are varve.job.compact.interval.ms, varve.job.table.interval.ms,
    varve.job.snapshot.interval.ms and varve.job.verify.interval.ms, and what belongs to them;
    `varve log configure` sets them for a topic. When each was run last stands in varve-jobs.json of
    the directory. A store may have the directory open meanwhile. A job that failed is tried again
    after a minute, then two, four, up to its interval. Where nothing is due no Spark is started.

    With --run the exit status is 1 when a job failed. A second runner of one directory ends with an
    error at once. With --json every line has `type`: job, outcome or report.

    \b
    Examples:
      varve log configure orders -d data varve.job.compact.interval.ms=3600000
      varve job due --dir data
      varve job due --dir data --run --conf spark.driver.memory=4g
    """
    from varve.jobs.schedule import list_jobs

    defaults: dict[str, GivenValue] = dict(parse_setting(text) for text in topic_settings)
    now_ms = SystemClock().now_ms()
    jobs = list_jobs(directory, now_ms, defaults=defaults)
    if not run:
        _print_jobs(jobs, now_ms, as_json=as_json)
        return
    if not any(scheduled_job.is_due for scheduled_job in jobs):
        if not as_json:
            typer.echo("nothing is due")
        return
    from varve.jobs.schedule import run_due
    from varve.spark.runner import SparkRunner

    setting = split_settings(store_settings)[0]
    options = spark_options(master, conf)
    with open_job("due", options, when_interrupted=_WHEN_INTERRUPTED) as job:
        runner = SparkRunner(job.spark, "due")
        outcomes = job.run(
            lambda: run_due(
                directory, runner, defaults=defaults, store_settings=setting, cluster=cluster
            )
        )
        done = job.report(None, [outcome.to_json() for outcome in outcomes])
    if report is not None:
        write_report(done, report)
    _print_outcomes(outcomes, done, as_json=as_json)
    if any(outcome.has_failed for outcome in outcomes):
        raise typer.Exit(1)


def _print_jobs(jobs: "Sequence[ScheduledJob]", now_ms: int, *, as_json: bool) -> None:
    from varve.cli.screen import make_console, print_rows_with_details

    if as_json:
        for job in jobs:
            typer.echo(json.dumps({"type": "job", **job.to_json()}))
        return
    if not jobs:
        typer.echo("no topic has a job at intervals: docs/jobs/running.md tells the settings")
        return
    rows = []
    for job in jobs:
        last = (
            "never" if job.last is None else f"{format_duration(now_ms - job.last.started_ms)} ago"
        )
        due = "now" if job.is_due else f"in {format_duration(max(job.next_ms - now_ms, 0))}"
        if job.why.startswith("not possible"):
            due = "-"
        rows.append(
            (job.job.value, job.topic, format_duration(job.interval_ms), last, due, job.why)
        )
    errors = [
        [("failed", job.last.error)] if job.last is not None and job.last.error else []
        for job in jobs
    ]
    columns = ("job", "topic", "every", "last run", "due", "why")
    print_rows_with_details(
        make_console(), columns, rows, errors, left=("job", "topic", "last run", "due", "why")
    )


def _print_outcomes(outcomes: "Sequence[JobOutcome]", done: "JobReport", *, as_json: bool) -> None:
    for outcome in outcomes:
        if as_json:
            typer.echo(json.dumps({"type": "outcome", **outcome.to_json()}))
            continue
        how = "done" if outcome.run.error is None else f"failed: {outcome.run.error}"
        typer.echo(
            f"{outcome.job} {outcome.topic}: {how}, "
            f"{format_duration(outcome.run.ended_ms - outcome.run.started_ms)}"
        )
    if as_json:
        typer.echo(json.dumps({"type": "report", **done.to_document()}))
    else:
        tell_report(done)
