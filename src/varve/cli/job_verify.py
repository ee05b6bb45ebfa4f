"""`varve job verify`: every object, segment and key of the cold tier, on Spark.

Invariant  reads only; it may be stopped and run again.
"""

import json
from collections import Counter
from collections.abc import Iterator
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
from varve.cli.store_access import AsJson
from varve.cli.tier_access import Cluster, StoreSettings, TierUrl
from varve.commit_log.check.findings import Severity
from varve.foundation.units import format_bytes

if TYPE_CHECKING:
    from varve.jobs.verify.result import PartitionVerdict, VerifyFinding, VerifyResult

_SHOWN_MAX: Final = 100
"""Findings in the terminal; --json has all of them."""


def _list_rules(is_wanted: bool) -> None:
    if is_wanted:
        from varve.commit_log.check.findings import RULES
        from varve.jobs.verify.result import VERIFY_RULES

        for rule, sentence in {**VERIFY_RULES, **RULES}.items():
            typer.echo(f"{rule:30} {sentence}")
        raise typer.Exit(0)


def command(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC", help="The topics; left out, all of the cluster.", show_default=False
        ),
    ] = None,
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006 - typer copies it, and shows no default
    directory: LogDirectory = None,
    cluster: Cluster = None,
    page: Annotated[
        str | None,
        typer.Option(
            "--report-page", metavar="PATH", help="Write an HTML page with pictures to this file."
        ),
    ] = None,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = [],  # noqa: B006
    report: ReportPath = None,
    rules: Annotated[
        bool,
        typer.Option("--rules", is_eager=True, callback=_list_rules, help="List what is checked."),
    ] = False,
) -> None:
    """Verify the cold tier: every byte, index, key and manifest, in parallel.

    Every object of every readable segment is read once and held against its checksum in the
    manifest, batches against their checksums, indexes and key indexes against the data, producers
    and leader epochs against the batches, segments against each other, manifests against the
    objects, and keys against the clean bound. With --dir the log directory is looked at as well, if
    no store has it open. Nothing is changed.

    The exit status is 1 when there is damage, which is a finding of severity error. A warning costs
    bytes and no records, a note is worth knowing. With --json every line has `type`: partition,
    finding or report.

    \b
    Examples:
      varve job verify --dir data
      varve job verify --store s3://bucket/varve --report-page verify.html
      varve job verify orders --store s3://bucket/varve --json
    """
    address = find_address(store_url, store_settings, directory, cluster)
    with open_job("verify", spark_options(master, conf)) as job:
        from varve.jobs.verify.verification import verify
        from varve.spark.runner import SparkRunner

        runner = SparkRunner(job.spark, "verify", topics or ())
        result = job.run(lambda: verify(address, topics or (), runner=runner, directory=directory))
        done = job.report(None, result.to_json())
    if page is not None:
        _write_page(result, page)
    if report is not None:
        write_report(done, report)
    if as_json:
        for verdict in result.partitions:
            typer.echo(json.dumps({"type": "partition", **verdict.to_json()}))
        for finding in result.findings:
            typer.echo(json.dumps({"type": "finding", **finding.to_json()}))
        summary = {"has_damage": result.has_damage, "verified_bytes": result.verified_bytes}
        typer.echo(json.dumps({"type": "report", **summary, **done.to_document()}))
    else:
        print_result(result)
        tell_report(done)
    if result.has_damage:
        raise typer.Exit(1)


def _write_page(result: "VerifyResult", path: str) -> None:
    from varve.jobs.verify.page import render_page

    with open(path, "w", encoding="utf-8") as file:
        file.write(render_page(result))


def print_result(result: "VerifyResult") -> None:
    """A line for each partition, its findings below it, and the sum."""
    from rich.text import Text

    from varve.cli.screen import make_console, print_details, print_rows_with_details
    from varve.jobs.verify.result import gravest_first

    console = make_console()
    shown = {id(finding) for finding in gravest_first(result.findings)[:_SHOWN_MAX]}
    columns = ("partition", "segments", "records", "bytes", "verified", "findings")
    print_rows_with_details(
        console,
        columns,
        [_cells(verdict) for verdict in result.partitions],
        [
            [
                pair
                for finding in verdict.findings
                if id(finding) in shown
                for pair in _details(finding)
            ]
            for verdict in result.partitions
        ],
        left=("partition",),
    )
    for finding in result.others:
        print_details(console, list(_details(finding)))
    hidden = len(result.findings) - len(shown)
    if hidden > 0:
        console.print(Text(f"and {hidden:,} more findings, --json has all", "dim"))
    console.print(Text(f"{result.store}: {_sum_up(result)}"), soft_wrap=True)


def _sum_up(result: "VerifyResult") -> str:
    counts = Counter(finding.severity for finding in result.findings)
    words = [
        f"{counts[severity]} {severity}{'s' * (counts[severity] > 1)}"
        for severity in Severity
        if counts[severity]
    ]
    verified = f"{format_bytes(result.verified_bytes)} verified"
    return f"{', '.join(words) or 'nothing found'}, {verified}"


def _cells(verdict: "PartitionVerdict") -> tuple[str, ...]:
    return (
        f"{verdict.partition.topic}-{verdict.partition.partition}",
        f"{len(verdict.segments):,}",
        f"{verdict.record_count:,}",
        format_bytes(sum(verdict.bytes.values())),
        format_bytes(verdict.verified_bytes),
        f"{len(verdict.findings):,}" if verdict.findings else "-",
    )


def _details(finding: "VerifyFinding") -> Iterator[tuple[str, Any]]:
    from rich.text import Text

    colours = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
    yield (
        str(finding.severity),
        Text(f"{finding.rule}: {finding.message}", colours[finding.severity]),
    )
    yield "where", finding.place
    if finding.expected or finding.found:
        yield "expected", f"{finding.expected}; found {finding.found}"
    if finding.remedy:
        yield "remedy", finding.remedy
