"""What the commands of `varve job` print in the same way."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from varve.cli.output import Output
from varve.cli.spark_options import JobOptions

if TYPE_CHECKING:
    from varve.spark.console import SparkJob
    from varve.spark.stages import JobReport


@contextlib.contextmanager
def open_spark_job(
    name: str, options: JobOptions, output: Output, *, when_interrupted: str = "nothing was changed"
) -> "Iterator[SparkJob]":
    """A Spark job; after Ctrl-C a sentence says what is left."""
    from varve.spark.console import open_job

    try:
        with open_job(name, options.spark()) as job:
            yield job
    except KeyboardInterrupt:
        output.warn(f"interrupted; {when_interrupted}")
        raise


def print_report(
    report: "JobReport", options: JobOptions, output: Output, **fields: object
) -> None:
    """Write the report to its file, and print it: one object, or one line on standard error."""
    from varve.spark.console import summarize_report, write_report

    if options.report is not None:
        write_report(report, options.report)
    if not report.application:
        return  # without Spark there is nothing to print
    if output.is_json:
        output.print_object("report", {**fields, **report.to_document()})
    else:
        click.secho(summarize_report(report), dim=True, err=True)


def print_objects(output: Output, type: str, documents: Iterable[Mapping[str, Any]]) -> None:
    for document in documents:
        output.print_object(type, document)
