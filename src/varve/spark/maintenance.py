"""Jobs over topics in a bucket, run on the user's Spark session.

    from varve import spark as vs
    bucket = vs.Bucket("s3://bucket/prefix")
    vs.compact(spark, bucket, ["orders"], topic_config={"cleanup.policy": "compact"})

Invariant  the session is used as it is: no setting of it changes, and other work in it continues.
           `runner` replaces Spark, for tests without Java.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from varve.commit_log import LogSettings
from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.settings import GivenValue, parse_settings
from varve.jobs.compact.job import compact as run_compaction
from varve.jobs.compact.result import CompactionResult
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.erase.erasure import erase as run_erasure
from varve.jobs.erase.request import ErasureRequest, FieldMatch
from varve.jobs.erase.result import ErasureResult
from varve.jobs.snapshot.snapshot import SnapshotResult, SnapshotSettings, take_snapshot
from varve.jobs.table.catalog import CatalogAddress, find_table, translate_catalog_errors
from varve.jobs.table.definition import TableSettings
from varve.jobs.table.sync import TableResult
from varve.jobs.table.sync import sync_table as run_table_sync
from varve.jobs.tasks import TaskRunner
from varve.jobs.tier.bucket import Bucket
from varve.jobs.verify.result import VerifyResult
from varve.jobs.verify.verification import verify as run_verification
from varve.spark.runner import SparkRunner


def compact(
    spark: SparkSession,
    bucket: Bucket,
    topics: Sequence[str],
    *,
    topic_config: Mapping[str, GivenValue] | None = None,
    force: bool = False,
    dry_run: bool = False,
    directory: str | None = None,
    runner: TaskRunner | None = None,
) -> CompactionResult:
    """Compacts the partitions of these topics that are due; with `force`, all of them.

    `topic_config` has settings of the topics by Kafka's names: the bucket does not store them.
    """
    log = parse_settings(LogSettings, dict(topic_config or {}), "topic_config")
    settings = CompactSettings(log=log, is_forced=force, is_dry_run=dry_run)
    return run_compaction(
        bucket,
        topics,
        settings=settings,
        runner=runner or SparkRunner(spark, "compact", topics),
        directories=() if directory is None else (directory,),
    )


def snapshot(
    spark: SparkSession,
    bucket: Bucket | None,
    topic: str,
    *,
    to: str,
    directories: Sequence[str] = (),
    at_ms: int | None = None,
    store_settings: Mapping[str, GivenValue] | None = None,
    settings: SnapshotSettings | None = None,
    runner: TaskRunner | None = None,
) -> SnapshotResult:
    """Writes the latest record of each key as Parquet files to `to`, a URL or a path."""
    return take_snapshot(
        topic,
        to,
        address=bucket,
        directories=directories,
        at_ms=at_ms,
        place_settings=dict(store_settings or {}),
        settings=settings or SnapshotSettings(),
        runner=runner or SparkRunner(spark, "snapshot", [topic]),
    )


def erase(
    spark: SparkSession,
    bucket: Bucket | None,
    topics: Sequence[str],
    *,
    keys: Iterable[bytes] = (),
    field: FieldMatch | None = None,
    id: str | None = None,
    directories: Sequence[str] = (),
    dry_run: bool = False,
    runner: TaskRunner | None = None,
) -> ErasureResult:
    """Erases the records of these keys, or with a value in a field, and issues the receipt."""
    request = ErasureRequest(
        topics=tuple(topics),
        id=id or secrets.token_hex(8),
        keys=frozenset(keys),
        field=field,
    )
    return run_erasure(
        request,
        runner=runner or SparkRunner(spark, "erase", topics),
        address=bucket,
        directories=directories,
        is_dry_run=dry_run,
    )


def verify(
    spark: SparkSession,
    bucket: Bucket,
    topics: Sequence[str] = (),
    *,
    directory: str | None = None,
    runner: TaskRunner | None = None,
) -> VerifyResult:
    """Verifies these topics in the bucket, or all of them; damage is among the failures."""
    return run_verification(
        bucket,
        topics,
        runner=runner or SparkRunner(spark, "verify", topics),
        directories=() if directory is None else (directory,),
    )


def sync_table(
    spark: SparkSession,
    bucket: Bucket | None,
    topic: str,
    *,
    table: str,
    catalog: CatalogAddress,
    directories: Sequence[str] = (),
    settings: TableSettings | None = None,
    runner: TaskRunner | None = None,
) -> TableResult:
    """Syncs an Iceberg table, NAMESPACE.NAME, with its topic; creates it if missing."""
    return run_table_sync(
        topic,
        table,
        catalog=catalog,
        runner=runner or SparkRunner(spark, "table", [topic]),
        address=bucket,
        directories=directories,
        settings=settings,
    )


# Tables


def read_table(
    spark: SparkSession, address: CatalogAddress, name: str, *, snapshot_id: int | None = None
) -> DataFrame:
    """The rows of a snapshot, by default the current one; Spark must reach the files itself."""
    catalog = address.open_existing()
    table = find_table(catalog, name)
    if table is None:
        raise NotFound(f"{address.place} has no table {name}")
    with translate_catalog_errors(f"table {name}"):
        scan = table.scan(snapshot_id=snapshot_id)
        schema = from_arrow_schema(schema_to_pyarrow(scan.projection(), include_field_ids=False))
        tasks = list(scan.plan_files())
    if any(task.delete_files for task in tasks):
        raise InvalidRequest(
            f"table {name} has files of deletes, written by another program: read it with "
            "Iceberg's own reader"
        )
    if not tasks:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(task.file.file_path for task in tasks))
