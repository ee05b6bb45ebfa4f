"""Options of jobs: where they find topics, the catalog of tables, and Spark."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli.options import (
    PAIR,
    bundle,
    cluster_option,
    dir_option,
    mirror_url_option,
    shared,
    store_settings_option,
    store_url_option,
)
from varve.cli.where import is_explicit, split_store_settings
from varve.foundation.errors import InvalidRequest

if TYPE_CHECKING:
    from varve.jobs.table.catalog import CatalogAddress
    from varve.jobs.tier.bucket import Bucket
    from varve.spark.console import SparkOptions

_SPARK: Final = "Spark"
_CATALOG: Final = "Catalog"


@dataclass(frozen=True, slots=True)
class JobSource:
    """Where a job finds topics: log directories, an object store, or both.

    A log directory remembers its object store and its mirror. `mirror_url` is None for a job that
    leaves the mirror alone. `is_url_explicit` is false for a URL of the environment, which that of
    the directories beats.
    """

    directories: tuple[Path, ...]
    store_url: str
    store_settings: tuple[tuple[str, str], ...]
    cluster: str | None
    mirror_url: str | None = None
    is_url_explicit: bool = True

    @property
    def paths(self) -> tuple[str, ...]:
        """The directories as executors find them, each once."""
        return tuple(dict.fromkeys(os.path.abspath(path) for path in self.directories))

    def find_bucket(self) -> "Bucket | None":
        """The object store that is named or that a directory remembers; None without one.

        The cluster is that of the directories, unless --cluster names one.
        """
        from varve.disk import RealFileSystem
        from varve.embedded.tier_location import check_object_manifests, recall_location
        from varve.tiering.restore import read_cluster

        fs, paths = RealFileSystem(), self.paths
        for path in paths:
            if not os.path.isdir(path):
                raise InvalidRequest(f"log directory {path} does not exist")
        if not paths and not self.store_url:
            raise InvalidRequest("name a log directory with --dir, or an object store with --store")
        location = recall_location(fs, paths)
        if location is None:
            return self._build_bucket(self.store_url, "", self.cluster) if self.store_url else None
        clusters = [self.cluster, *(read_cluster(fs, path) for path in paths)]
        cluster = next(filter(None, clusters), None)
        if self.store_url and self.is_url_explicit:
            return self._build_bucket(self.store_url, location.mirror, cluster)
        check_object_manifests(location, paths[0])
        return self._build_bucket(location.url, location.mirror, cluster)

    def get_bucket(self) -> "Bucket":
        """The object store; raises InvalidRequest for directories that have none."""
        bucket = self.find_bucket()
        if bucket is None:
            raise InvalidRequest(
                f"{self.paths[0]} has no object store yet: `varve tier copy` creates one, and "
                "--store names another"
            )
        return bucket

    def _build_bucket(self, url: str, remembered_mirror: str, cluster: str | None) -> "Bucket":
        from varve.jobs.tier.bucket import Bucket

        store, mirror = split_store_settings(self.store_settings)
        bucket = Bucket(_absolute_url(url), tuple(store.items()), cluster)
        mirror_url = "" if self.mirror_url is None else self.mirror_url or remembered_mirror
        if not mirror_url:
            return bucket
        return replace(
            bucket, mirror_url=_absolute_url(mirror_url), mirror_settings=tuple(mirror.items())
        )


def _absolute_url(url: str) -> str:
    """Executors may run in another directory."""
    scheme, colon, path = url.partition(":")
    if scheme == "file" and colon and not path.startswith("/"):
        return f"file:{os.path.abspath(path)}"
    return url


def _build_job_source(dir: tuple[Path, ...], **values: Any) -> JobSource:
    is_url_explicit = is_explicit("store_url")
    if is_url_explicit and not is_explicit("dir"):
        dir = ()  # VARVE_DIR is for commands that name nothing
    return JobSource(dir, **values, is_url_explicit=is_url_explicit)


_JOB_SOURCE: Final = (
    dir_option("A log directory; repeat it for a store on several disks."),
    store_url_option,
    cluster_option,
    store_settings_option,
)
_JOB_SOURCE_NAMES: Final = ("dir", "store_url", "cluster", "store_settings")

job_source = bundle("source", _build_job_source, *_JOB_SOURCE, names=_JOB_SOURCE_NAMES)
"""`-d DIR…`, `--store URL`, or both."""

mirrored_job_source = bundle(
    "source",
    _build_job_source,
    *_JOB_SOURCE,
    mirror_url_option,
    names=(*_JOB_SOURCE_NAMES, "mirror_url"),
)
"""The same, and `--mirror URL`."""


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """The Iceberg catalog of a table."""

    warehouse: str | None
    catalog: str | None
    catalog_settings: tuple[tuple[str, str], ...]

    def address(self, directories: Sequence[str] = ()) -> "CatalogAddress":
        """The catalog that is named, or the one beside the log directories."""
        from varve.jobs.table.catalog import CatalogAddress

        return CatalogAddress.locate(
            self.warehouse, self.catalog, self.catalog_settings, directories
        )


catalog_settings = shared(
    _CATALOG,
    "--catalog-set",
    "catalog_settings",
    multiple=True,
    type=PAIR,
    envvar="VARVE_CATALOG_SETTINGS",
    metavar="NAME=VALUE",
    help="A setting of the catalog or its files, as s3.endpoint=...",
)

catalog = bundle(
    "catalog",
    CatalogOptions,
    shared(
        _CATALOG,
        "--warehouse",
        metavar="URL",
        help="The directory or bucket of the tables; default DIR.tables of --dir.",
    ),
    shared(
        _CATALOG,
        "--catalog",
        metavar="URI",
        help="http://... (REST), sqlite:////path, postgresql://... or a name of pyiceberg.",
    ),
    catalog_settings,
    names=("warehouse", "catalog", "catalog_settings"),
)
"""`--warehouse URL`, `--catalog URI` and `--catalog-set NAME=VALUE…`."""

place_settings = click.option(
    "--place-set",
    "place_settings",
    multiple=True,
    type=PAIR,
    metavar="NAME=VALUE",
    help="A setting of the object store of snapshots; of jobs default --store-set.",
)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Which Spark runs a job, and the file of its report."""

    master: str | None
    conf: tuple[tuple[str, str], ...]
    report: str | None

    def spark(self) -> "SparkOptions":
        from varve.spark.console import SparkOptions

        conf = dict(self.conf)
        package = os.environ.get("VARVE_SPARK_PACKAGE")
        if package and not (self.master or "").startswith("sc://"):  # that server has its own
            conf.setdefault("varve.package", package)
        return SparkOptions(self.master, conf)


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
        multiple=True,
        type=PAIR,
        metavar="NAME=VALUE",
        help="A setting of Spark, such as spark.driver.memory=4g.",
    ),
    shared(
        _SPARK,
        "--report",
        metavar="FILE",
        help="Write result, steps and stages as JSON; `varve job report` shows it.",
    ),
    names=("master", "conf", "report"),
)
"""`--master`, `--conf` and `--report`."""
