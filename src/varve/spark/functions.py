"""Jobs over topics, run on the user's Spark session.

    import varve.spark as vs
    location = varve.TopicLocation(store="s3://bucket/prefix")
    vs.compact(spark, location, ["orders"])

Invariant  the session is used as it is: no setting of it changes, and other work in it continues.
           Arguments, paths and topics are checked before the first task is sent to Spark. `runner`
           replaces Spark, for tests without Java. Durations and times are text as on the command
           line, such as `10m` or `2026-03-01`, or milliseconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.position import PositionKind, ReadPosition, parse_position
from varve.foundation.settings import GivenValue
from varve.foundation.topic_records import check_list
from varve.foundation.units import parse_duration, parse_time
from varve.jobs.compact.job import choose_topics
from varve.jobs.compact.job import compact as run_compaction
from varve.jobs.compact.result import CompactionResult
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.erase import receipt as receipts
from varve.jobs.erase.erasure import erase as run_erasure
from varve.jobs.erase.erasure import new_erasure_id
from varve.jobs.erase.receipt_signature import read_signing_key
from varve.jobs.erase.request import (
    ErasureRequest,
    FieldMatch,
    RescanMode,
    collect_field,
    parse_key,
)
from varve.jobs.erase.request import ValueFormat as ErasedFormat
from varve.jobs.erase.result import ErasureResult
from varve.jobs.erase.targets import check_tier_location
from varve.jobs.snapshot.snapshot import SnapshotResult, SnapshotSettings, take_snapshot
from varve.jobs.snapshot.store import choose_place_settings
from varve.jobs.source.options import Offsets
from varve.jobs.table.catalog import (
    CatalogAddress,
    find_table,
    split_name,
    translate_catalog_errors,
)
from varve.jobs.table.definition import COMMIT_BYTES, TableMode, TableSettings, ValueFormat
from varve.jobs.table.rewrite import ExpiryResult, expire_snapshots
from varve.jobs.table.sync import TableResult, sync_table
from varve.jobs.tasks import LocalRunner, TaskRunner
from varve.jobs.tier.location import TopicLocation
from varve.jobs.verify.result import VerifyResult
from varve.jobs.verify.verification import verify as run_verification

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

E = TypeVar("E", bound=StrEnum)

Duration = str | int
Time = str | int
Settings = Mapping[str, GivenValue]
AtPosition = str | int | Mapping[int, int] | ReadPosition


def compact(
    spark: "SparkSession | None",
    location: TopicLocation,
    topics: Sequence[str] | None = None,
    *,
    settings: Settings | None = None,
    force: bool = False,
    dry_run: bool = False,
    take_over: bool = False,
    runner: TaskRunner | None = None,
) -> CompactionResult:
    """Compacts the partitions of topics that are due; with `force`, all of them.

    Without topics all compacted ones of the log directories are meant. `settings` of topics beat
    those of the directories; an object store alone has none, and its topics are compacted. A dry
    run returns what would be done. `take_over` ends the lease of a run that was killed.

    Raises NotFound for a topic or tier that does not exist. What fails in one partition, such as a
    lease that another run holds, is among the failures of the result.
    """
    names = check_list(topics or (), str, what="topics")
    bucket = location.get_bucket()
    chosen = choose_topics(names, location.directories, settings or {})
    return run_compaction(
        bucket,
        list(chosen),
        settings={
            name: CompactSettings(
                log=log, is_forced=force, is_dry_run=dry_run, takes_over=take_over
            )
            for name, log in chosen.items()
        },
        runner=runner or _make_runner(spark, "compact", list(chosen)),
        directories=location.directories,
    )


def verify(
    spark: "SparkSession | None",
    location: TopicLocation,
    topics: Sequence[str] | None = None,
    *,
    runner: TaskRunner | None = None,
) -> VerifyResult:
    """Verifies every byte of topics, or of all of them with None, in the remote tier.

    Damage is in the result, not an error. Raises NotFound for a topic or tier that does not exist.
    """
    names = check_list(topics or (), str, what="topics")
    return run_verification(
        location.get_bucket(),
        names,
        runner=runner or _make_runner(spark, "verify", names),
        directories=location.directories,
    )


def snapshot(
    spark: "SparkSession | None",
    location: TopicLocation,
    topic: str,
    *,
    to: str,
    at: AtPosition | None = None,
    full: bool = False,
    buckets: int | None = None,
    keep: int | None = None,
    settings: Settings | None = None,
    runner: TaskRunner | None = None,
) -> SnapshotResult:
    """Writes the latest record of each key as Parquet files to `to`, a URL or a path.

    `at` is an offset, a time, or an offset by partition; None is the end of the topic. With `full`
    nothing of the snapshot before is used. `buckets` is the number of files of a new place, None
    chooses by size. `keep` deletes all but the newest snapshots, None keeps all. `settings` are
    those of the object store of `to`.

    Raises NotFound for a topic that does not exist, InvalidRequest for a wrong position.
    """
    bucket = location.find_bucket()
    at_offset, at_ms = _split_position(at)
    return take_snapshot(
        topic,
        to,
        address=bucket,
        directories=location.directories,
        at_offset=at_offset,
        at_ms=at_ms,
        place_settings=choose_place_settings(to, settings or {}, bucket),
        settings=SnapshotSettings(is_full=full, buckets=buckets, keep=keep),
        runner=runner or _make_runner(spark, "snapshot", [topic]),
    )


def table(
    spark: "SparkSession | None",
    location: TopicLocation,
    topic: str,
    *,
    to: str,
    catalog: CatalogAddress | None = None,
    mode: str | None = None,
    format: str | None = None,
    schema: str | None = None,
    registry: str | None = None,
    add_columns: bool = False,
    buckets: int | None = None,
    commit_bytes: int | None = None,
    keep_expired: bool = False,
    runner: TaskRunner | None = None,
) -> TableResult:
    """Syncs an Iceberg table, NAMESPACE.NAME, with its topic; creates it if missing.

    Without a catalog the table is in the warehouse beside the log directory. `mode` is append or
    upsert and `format` raw, json or avro; None keeps those of the table, or chooses by the topic.
    `schema` is the path of a schema file, `registry` the URL of a schema registry.

    Raises NotFound for a topic or schema that does not exist, InvalidRequest for a name, mode or
    format that is wrong or differs from the table's.
    """
    split_name(to)
    catalog = find_catalog(location, catalog)
    settings = TableSettings(
        mode=None if mode is None else _choose(TableMode, mode, "mode"),
        format=None if format is None else _choose(ValueFormat, format, "format"),
        schema=None if schema is None else _read_schema(schema),
        schema_name=schema or registry or "the schema",
        registry=registry,
        buckets=buckets,
        commit_bytes=COMMIT_BYTES if commit_bytes is None else commit_bytes,
        is_adding_columns=add_columns,
        is_keeping_expired=keep_expired,
    )
    return sync_table(
        topic,
        to,
        catalog=catalog,
        address=location.find_bucket(),
        directories=location.directories,
        settings=settings,
        runner=runner or _make_runner(spark, "table", [topic]),
    )


def find_catalog(location: TopicLocation, catalog: CatalogAddress | None) -> CatalogAddress:
    """The catalog, or the one beside the log directories; raises InvalidRequest without one."""
    given = catalog or CatalogAddress()
    address = CatalogAddress.locate(
        given.warehouse, given.catalog, given.settings, location.directories
    )
    address.check()
    return address


def _read_schema(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise NotFound(f"the schema {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the schema {path} is not UTF-8 text: save it as UTF-8") from error


def read_table(
    spark: "SparkSession",
    catalog: CatalogAddress,
    name: str,
    *,
    snapshot_id: int | None = None,
) -> "DataFrame":
    """The rows of a snapshot, with None of the current one; Spark must reach the files itself.

    Raises NotFound for a table that does not exist, InvalidRequest for one with delete files of
    another program.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyspark.sql.pandas.types import from_arrow_schema

    found = find_table(catalog.open_existing(), name)
    if found is None:
        raise NotFound(f"{catalog.place} has no table {name}")
    with translate_catalog_errors(f"table {name}"):
        scan = found.scan(snapshot_id=snapshot_id)
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


def expire_table(catalog: CatalogAddress, name: str, *, older_than: Duration) -> list[ExpiryResult]:
    """Deletes snapshots of a table and its side table that are older, and their files.

    Raises NotFound for a table that does not exist, InvalidRequest for a wrong duration.
    """
    split_name(name)
    limit_ms = SystemClock().now_ms() - _to_ms(older_than, "older_than")
    return expire_snapshots(catalog, name, older_than_ms=limit_ms)


def erase(
    spark: "SparkSession | None",
    location: TopicLocation,
    topics: Sequence[str],
    *,
    keys: Iterable[str | bytes] = (),
    field: str | FieldMatch | None = None,
    values: Sequence[str] = (),
    format: str = "json",
    sign_key: str | None = None,
    receipt: str | None = None,
    requested: Time | None = None,
    deadline: str | None = None,
    grace: Duration = 0,
    id: str | None = None,
    finish: bool = False,
    rescan: str = "full",
    digests: bool = True,
    take_over: bool = False,
    snapshot_settings: Settings | None = None,
    table_settings: Settings | None = None,
    dry_run: bool = False,
    runner: TaskRunner | None = None,
) -> ErasureResult:
    """Erases records by key, or by the value of a field, everywhere, and issues the receipt.

    A key is bytes, or text as on the command line: plain, `base64:...` or `hex:...`. `sign_key` is
    the path of an Ed25519 key, `receipt` a path for copies of the receipt. `deadline` is a duration
    after `requested`, or a time; None is none. `id` names the erasure, None makes one; `finish`
    completes the erasure `id` once its grace is over. A dry run erases nothing. Topics that are
    only on local disks need no Spark.

    Raises InvalidRequest for a wrong key, field, format or time, NotFound for a topic that does not
    exist. What is out of reach is in the result.
    """
    if finish and id is None:
        raise InvalidRequest("--finish (finish=) needs --id (id=), the erasure to finish")
    names = check_list(topics, str, what="topics")
    given_keys = check_list(keys, str, bytes, what="keys")
    match = field
    if not isinstance(field, FieldMatch):
        texts = check_list(values, str, what="values")
        match = collect_field(field, texts, None, _choose(ErasedFormat, format, "format"))
    requested_ms = parse_requested(requested, SystemClock().now_ms())
    request = ErasureRequest(
        topics=names,
        id=id or new_erasure_id(),
        keys=frozenset(
            key if isinstance(key, bytes) else parse_key(key, "--key") for key in given_keys
        ),
        field=match,  # type: ignore[arg-type]  # not text any more
        asked_ms=requested_ms,
        deadline_ms=parse_deadline(deadline, requested_ms),
        grace_ms=_to_ms(grace, "--grace"),
        rescan=_choose(RescanMode, rescan, "rescan"),
        lists_digests=digests,
        takes_over=take_over,
    )
    bucket = location.find_bucket(with_mirror=True)
    if bucket is None:
        check_tier_location(location.directories, request.topics)
        runner = LocalRunner()
    signing_key = None if sign_key is None else read_signing_key(sign_key)
    if receipt is not None and not dry_run:
        receipts.check_receipt_path(receipt)
    result = run_erasure(
        request,
        runner=runner or _make_runner(spark, "erase", request.topics),
        address=bucket,
        directories=location.directories,
        snapshot_settings=snapshot_settings,
        table_settings=table_settings,
        signing_key=signing_key,
        is_finish=finish,
        is_dry_run=dry_run,
    )
    if receipt is not None and result.receipt is not None:
        receipts.write_receipt(receipt, result)
    return result


def parse_requested(time: Time | None, now_ms: int) -> int:
    """When the erasure was requested, by default now; raises InvalidRequest for the future."""
    if time is None:
        return now_ms
    requested_ms = parse_time(str(time), name="--requested")
    if requested_ms > now_ms:
        raise InvalidRequest(f"--requested {time!r:.40} is in the future")
    return requested_ms


def parse_deadline(text: str | None, requested_ms: int) -> int | None:
    """A duration after the request, or a time."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        raise InvalidRequest(
            f"--deadline {text:.40} has no unit: write {text:.40}d for days, or a time"
        )
    try:
        return requested_ms + parse_duration(text, name="--deadline")
    except InvalidRequest:
        return parse_time(text, name="--deadline")


# Arguments


def _make_runner(spark: "SparkSession | None", job: str, topics: Sequence[str]) -> TaskRunner:
    from varve.spark.runner import SparkRunner

    if spark is None:
        raise InvalidRequest(f"{job} needs a Spark session: give one of vs.get_session()")
    return SparkRunner(spark, job, topics)


def _choose(kind: type[E], text: str, name: str) -> E:
    """The member of an enum by its value; raises InvalidRequest."""
    for member in kind:
        if member.value == text:
            return member
    raise InvalidRequest(f"{name}={text!r:.80} is unknown; use one of {', '.join(map(str, kind))}")


def _to_ms(duration: Duration, name: str) -> int:
    return duration if isinstance(duration, int) else parse_duration(duration, name=name)


def _split_position(at: AtPosition | None) -> tuple[Offsets, int | None]:
    """The offset, of each partition or of all, or the time; None twice for the end."""
    if at is None or isinstance(at, Mapping):
        return at, None
    position = at if isinstance(at, ReadPosition) else parse_position(str(at), SystemClock())
    match position.kind:
        case PositionKind.END:
            return None, None
        case PositionKind.TIME:
            return None, position.number
        case _:
            return position.number, None
