"""Options of jobs: where they find topics, the catalog of tables, and Spark, which runs them."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from varve.cli.options import (
    PAIRS,
    bundle,
    cluster_option,
    dir_option,
    mirror_url_option,
    shared,
    store_settings_option,
    store_url_option,
)
from varve.cli.output import Output
from varve.cli.where import choose_store_url, is_explicit

if TYPE_CHECKING:
    from varve.jobs.table.catalog import CatalogAddress
    from varve.jobs.tier.location import TopicLocation
    from varve.spark.console import SparkJob
    from varve.spark.stages import JobReport

_SPARK: Final = "Spark"
_CATALOG: Final = "Catalog"


def _build_location(
    dir: tuple[Path, ...],
    store_url: str,
    cluster: str | None,
    store_settings: dict[str, str],
    mirror_url: str = "",
) -> "TopicLocation":
    from varve.jobs.tier.location import TopicLocation

    if not dir and not store_url:
        raise click.UsageError(
            "name a log directory with --dir or VARVE_DIR, or an object store with --store"
        )
    if is_explicit("store_url") and not is_explicit("dir"):
        dir = ()  # VARVE_DIR is for commands that name nothing
    store_url = choose_store_url(dir, store_url)
    return TopicLocation(
        dir=dir, store=store_url, settings=store_settings, cluster=cluster, mirror=mirror_url
    )


_LOCATION: Final = (
    dir_option("A log directory; repeat it for several disks."),
    store_url_option,
    cluster_option,
    store_settings_option,
)

location = bundle("location", _build_location, *_LOCATION)
"""`-d DIR…`, `--store URL`, or both."""

mirrored_location = bundle("location", _build_location, *_LOCATION, mirror_url_option)
"""The same, and `--mirror URL`."""


def _build_catalog(
    warehouse: str | None, catalog: str | None, catalog_settings: dict[str, str]
) -> "CatalogAddress":
    from varve.jobs.table.catalog import CatalogAddress

    return CatalogAddress(warehouse, catalog, tuple(catalog_settings.items()))


catalog_settings = shared(
    _CATALOG,
    "--catalog-set",
    "catalog_settings",
    **PAIRS,
    envvar="VARVE_CATALOG_SETTINGS",
    help="A setting of the catalog or its files, as s3.endpoint=...",
)

catalog = bundle(
    "catalog",
    _build_catalog,
    shared(
        _CATALOG,
        "--warehouse",
        metavar="URL",
        help="The directory or bucket of the tables; jobs default to DIR.tables.",
    ),
    shared(
        _CATALOG,
        "--catalog",
        metavar="URI",
        help="http://... (REST), sqlite:////path, postgresql://... or a configured name.",
    ),
    catalog_settings,
)
"""`--warehouse URL`, `--catalog URI` and `--catalog-set NAME=VALUE…`."""

place_settings = click.option(
    "--place-set",
    "place_settings",
    **PAIRS,
    help="A setting of the object store of snapshots; jobs default to --store-set.",
)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Which Spark runs a job, and the file of its report."""

    master: str | None
    conf: dict[str, str]
    report: str | None

    @contextlib.contextmanager
    def open_job(
        self, name: str, output: Output, *, when_interrupted: str = "nothing was changed"
    ) -> "Iterator[SparkJob]":
        """A Spark job; after Ctrl-C a sentence says what is left."""
        from varve.spark.console import SparkOptions, open_job

        conf = dict(self.conf)
        package = os.environ.get("VARVE_SPARK_PACKAGE")
        if package and not (self.master or "").startswith("sc://"):  # that server has its own
            conf.setdefault("varve.package", package)
        try:
            with open_job(name, SparkOptions(self.master, conf)) as job:
                yield job
        except KeyboardInterrupt:
            output.warn(f"interrupted; {when_interrupted}")
            raise

    def print_report(self, report: "JobReport", output: Output, **fields: object) -> None:
        """Write the report to its file, and print it: an object, or a line on standard error."""
        from varve.spark.console import summarize_report, write_report

        if self.report is not None:
            write_report(report, self.report)
        if not report.application:
            return  # without Spark there is nothing to print
        if output.is_json:
            output.print_object("report", {**fields, **report.to_document()})
        else:
            click.secho(summarize_report(report), dim=True, err=True)


spark = bundle(
    "job_options",
    JobOptions,
    shared(
        _SPARK,
        "--master",
        envvar="VARVE_SPARK_MASTER",
        metavar="URL",
        help="spark://host:7077, yarn, or Spark Connect: sc://host:15002; default local[*].",
    ),
    shared(
        _SPARK,
        "--conf",
        **PAIRS,
        help="A setting of Spark, such as spark.driver.memory=4g.",
    ),
    shared(
        _SPARK,
        "--report",
        metavar="FILE",
        help="Write result, steps and stages as JSON; `varve job report` shows it.",
    ),
)
"""`--master`, `--conf` and `--report`."""
