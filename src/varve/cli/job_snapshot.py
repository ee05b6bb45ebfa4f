"""`varve job snapshot`: the state of a topic as Parquet, with the offsets to read on from.

Crash      there is a whole snapshot or none; a later run sweeps what was left.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from varve.cli.job_options import (
    Conf,
    Master,
    ReadDirectories,
    ReportPath,
    SparkOptions,
    find_tier,
    full_paths,
    spark_options,
)
from varve.cli.job_run import open_job, tell_report, write_report
from varve.cli.store_access import AsJson, parse_setting
from varve.cli.tier_access import Cluster, StoreSettings, TierUrl
from varve.foundation.settings import GivenValue
from varve.foundation.units import format_bytes, format_count

if TYPE_CHECKING:
    from varve.jobs.snapshot.document import SnapshotDocument
    from varve.jobs.snapshot.snapshot import SnapshotResult
    from varve.jobs.snapshot.store import SnapshotStore
    from varve.jobs.source.options import SourceOptions
    from varve.spark.stages import JobReport

_WHEN_INTERRUPTED: Final = "stopped; no snapshot was made, and a later run sweeps what was left"


def command(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where the snapshots of the topic are: a directory, or the URL of an object store "
            "such as s3://bucket/snapshots/orders.",
        ),
    ] = None,
    at_offset: Annotated[
        str | None,
        typer.Option(
            "--at-offset",
            metavar="OFFSET",
            help="The state before this offset of each partition, or as JSON by partition, such as "
            '\'{"0": 5, "1": 7}\'; left out, at the end.',
        ),
    ] = None,
    at_time: Annotated[
        str | None,
        typer.Option(
            "--at-time",
            metavar="TIME",
            help="The state before the first record of this time or later; UTC if it says nothing.",
        ),
    ] = None,
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006 - typer copies it, and shows no default
    directories: ReadDirectories = [],  # noqa: B006
    cluster: Cluster = None,
    place_settings: Annotated[
        list[str],
        typer.Option(
            "--place-setting",
            metavar="NAME=VALUE",
            help="A setting of the object store of the place; repeatable. Left out, they are those "
            "of --store-setting where both URLs are of one kind.",
        ),
    ] = [],  # noqa: B006
    full: Annotated[
        bool, typer.Option("--full", help="Read everything, even where a snapshot is there.")
    ] = False,
    buckets: Annotated[
        int | None,
        typer.Option(
            "--buckets",
            metavar="COUNT",
            min=1,
            help="Into how many files a partition is parted; the first snapshot of a place decides "
            "it, by the size if nothing is said.",
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="COUNT",
            min=1,
            help="Remove all snapshots but the newest ones; without a topic nothing else is done.",
        ),
    ] = None,
    list_place: Annotated[
        str | None, typer.Option("--list", metavar="PLACE", help="Show the snapshots of a place.")
    ] = None,
    verify_place: Annotated[
        str | None,
        typer.Option(
            "--verify", metavar="PLACE", help="Check the digests of all files of a place."
        ),
    ] = None,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = [],  # noqa: B006
    report: ReportPath = None,
) -> None:
    """Take a snapshot: the latest record of each key as Parquet, and where to read on.

    A consumer loads the rows, reads on from the resume offset of each partition, and has the state
    without replaying the log. Deleted keys are left out, transactions that were aborted are not
    seen, and nothing behind an open one is.

    The first snapshot of a place reads the topic; each one after it reads what is new, and rewrites
    the files whose keys changed. It is read in full where a compaction may have removed tombstones
    that the last snapshot has not seen. With --dir the files of log directories are read too;
    without, what was not copied yet is not in it.

    The exit status of --verify is 1 when a file is damaged or missing.

    \b
    Examples:
      varve job snapshot orders --dir data --to /backup/orders
      varve job snapshot orders --store s3://bucket/varve --to s3://bucket/state/orders --keep 7
      varve job snapshot orders --dir data --to /backup/orders --at-time 2026-03-01
      varve job snapshot --list /backup/orders
    """
    given: dict[str, GivenValue] = dict(parse_setting(text) for text in place_settings)
    if list_place is not None and verify_place is not None:
        raise typer.BadParameter("give --list or --verify, not both")
    if list_place is not None:
        _list(_open_place(list_place, given), as_json=as_json)
        return
    if verify_place is not None:
        _verify(_open_place(verify_place, given), as_json=as_json)
        return
    if to is None:
        raise typer.BadParameter("--to is missing: where the snapshot goes")
    if topic is None:
        if keep is None:
            raise typer.BadParameter("name the topic, or give --keep to remove old snapshots")
        _keep(_open_place(to, given), keep, as_json=as_json)
        return
    options = _source(
        topic, store_url, store_settings, directories, cluster, at_offset=at_offset, at_time=at_time
    )
    result, done = _take(
        options,
        to,
        given,
        spark_options(master, conf),
        is_full=full,
        buckets=buckets,
        keep=keep,
    )
    if report is not None:
        write_report(done, report)
    if as_json:
        typer.echo(json.dumps({"type": "snapshot", **result.to_json()}))
        typer.echo(json.dumps({"type": "report", **done.to_document()}))
    else:
        _print_result(result)
        tell_report(done)


def _source(
    topic: str,
    url: str,
    settings: list[str],
    directories: Sequence[Path],
    cluster: str | None,
    *,
    at_offset: str | None,
    at_time: str | None,
) -> "SourceOptions":
    """Where the topic is, and up to where; what is wrong is refused before Spark starts."""
    from varve.jobs.source.options import parse_options

    paths = full_paths(directories)
    given = {"topic": topic, "mode": "latest"}
    if paths:
        given["directory"] = ",".join(paths)
    address = find_tier(url, settings, paths, cluster)
    if address is not None:
        given["url"] = address.url
        given |= {f"store.{name}": str(value) for name, value in address.settings}
        given |= {} if cluster is None else {"cluster": cluster}
    given |= {} if at_offset is None else {"endingOffset": at_offset}
    given |= {} if at_time is None else {"endingTimestamp": at_time}
    # A path may hold a comma, which parts directories in that option.
    return replace(parse_options(given), directories=paths)


def _take(
    options: "SourceOptions",
    to: str,
    place_settings: dict[str, GivenValue],
    spark: SparkOptions,
    *,
    is_full: bool,
    buckets: int | None,
    keep: int | None,
) -> "tuple[SnapshotResult, JobReport]":
    from varve.jobs.snapshot.snapshot import SnapshotSettings, take_snapshot
    from varve.object_store.opening import find_scheme, to_url
    from varve.spark.runner import SparkRunner

    address = options.address
    is_alike = address is not None and find_scheme(to_url(to)) == find_scheme(address.url)
    if address is not None and is_alike and not place_settings:
        place_settings = dict(address.settings)
    with open_job("snapshot", spark, when_interrupted=_WHEN_INTERRUPTED) as job:
        runner = SparkRunner(job.spark, "snapshot", [options.topic])
        result = job.run(
            lambda: take_snapshot(
                options.topic,
                to,
                address=address,
                directories=options.directories,
                at_offset=options.ending,
                at_ms=options.ending_ms,
                place_settings=place_settings,
                settings=SnapshotSettings(is_full=is_full, buckets=buckets, keep=keep),
                runner=runner,
            )
        )
        return result, job.report(result.rows, result.to_json())


def _open_place(place: str, settings: dict[str, GivenValue]) -> "SnapshotStore":
    """A place that holds a snapshot; raises NotFound."""
    from varve.jobs.snapshot.store import SnapshotStore, get_store_address

    opened = SnapshotStore(get_store_address(place, settings).objects())
    opened.get()
    return opened


def _print_result(result: "SnapshotResult") -> None:
    from varve.cli.screen import make_console, print_details, print_rows_with_details

    console, document = make_console(), result.document
    print_rows_with_details(
        console,
        ("partition", "read from", "resume", "rows"),
        [
            (
                f"{document.topic}-{partition_state.partition}",
                f"{partition_state.read_from:,}",
                f"{partition_state.resume_offset:,}",
                f"{partition_state.rows:,}",
            )
            for partition_state in result.partitions
        ],
        [
            [("note", partition_state.note)] if partition_state.note else []
            for partition_state in result.partitions
        ],
        left=("partition",),
    )
    print_details(console, list(_details(result)), indent=0)


def _details(result: "SnapshotResult") -> Iterator[tuple[str, Any]]:
    document = result.document
    state = f"{document.rows:,} rows, {len(document.files):,} files, {format_bytes(document.size)}"
    origin = "" if document.previous is None else f", goes on from {document.previous}"
    if result.is_new:
        yield "snapshot", f"{document.snapshot} in {result.place}{origin}: {state}"
        yield "written", f"{result.files_written:,} files, {format_bytes(result.bytes_written)}"
    else:
        yield "snapshot", f"{document.snapshot} in {result.place} was there already: {state}"
    if result.removed:
        yield "removed", f"{len(result.removed):,} older snapshots and files"
    if result.swept:
        yield "swept", f"{len(result.swept):,} leftovers of runs that were killed"


def _list(place: "SnapshotStore", *, as_json: bool) -> None:
    documents = place.documents()
    if as_json:
        for document in documents:
            typer.echo(json.dumps(_to_json(document)))
        return
    from varve.cli.moments import show_moment
    from varve.cli.screen import make_console, print_rows_with_details
    from varve.foundation.clock import SystemClock

    now_ms = SystemClock().now_ms()
    rows = [
        (
            str(document.snapshot),
            document.topic,
            show_moment(document.taken_ms, now_ms),
            "-" if document.previous is None else str(document.previous),
            f"{document.rows:,}",
            f"{len(document.files):,}",
            format_bytes(document.size),
        )
        for document in documents
    ]
    details = [
        [
            (
                "resume",
                " ".join(
                    f"{number}:{offset}" for number, offset in document.resume_offsets.items()
                ),
            )
        ]
        for document in documents
    ]
    columns = ("snapshot", "topic", "taken", "from", "rows", "files", "bytes")
    print_rows_with_details(make_console(), columns, rows, details, left=("topic", "taken"))


def _to_json(document: "SnapshotDocument") -> dict[str, object]:
    return {
        "snapshot": document.snapshot,
        "previous": document.previous,
        "topic": document.topic,
        "topic_id": document.topic_id,
        "taken_ms": document.taken_ms,
        "rows": document.rows,
        "files": len(document.files),
        "bytes": document.size,
        "resume_offsets": document.resume_offsets,
    }


def _verify(place: "SnapshotStore", *, as_json: bool) -> None:
    documents = place.documents()
    files = {file.path: file for document in documents for file in document.files}
    found = [(path, place.find_fault(file)) for path, file in sorted(files.items())]
    faults = [fault for _, fault in found if fault is not None]
    if as_json:
        typer.echo(json.dumps({"snapshots": len(documents), "files": len(files), "faults": faults}))
    else:
        for fault in faults:
            typer.echo(fault)
        state = f"{len(faults):,} are not as they were written" if faults else "all as written"
        snapshots = format_count(len(documents), "snapshot")
        typer.echo(f"{snapshots}, {format_count(len(files), 'file')}: {state}")
    if faults:
        raise typer.Exit(1)


def _keep(place: "SnapshotStore", count: int, *, as_json: bool) -> None:
    from varve.foundation.clock import SystemClock
    from varve.jobs.snapshot.snapshot import DAY_MS

    removed = place.keep(count)
    swept = place.sweep(before_ms=SystemClock().now_ms() - DAY_MS)
    if as_json:
        typer.echo(json.dumps({"removed": removed, "swept": swept}))
    else:
        typer.echo(f"{len(removed):,} older snapshots and files removed, {len(swept):,} leftovers")
