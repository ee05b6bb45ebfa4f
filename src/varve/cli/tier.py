"""`varve tier status`, `copy` and `restore`: the remote tier of log directories."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.options import TopicPartitionName
from varve.cli.output import Output, interruptible_progress, note_interrupt
from varve.cli.where import TierWhere, find_topic, select_partitions, warn_of_deletions
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest, StoreError
from varve.foundation.units import format_bytes, format_count, format_moment, format_time

if TYPE_CHECKING:
    from varve.embedded import Store, Topic
    from varve.embedded.offline_tier import TopicRestore
    from varve.embedded.tier_report import TierReport, TopicReport
    from varve.object_store import ObjectStore, PriceTable
    from varve.tiering.copier import CopyReport
    from varve.tiering.restore import RestoreReport

_STATUS_COLUMNS: Final = ("topic", "copying", "local", "remote", "lag", "stored", "per month")
_OLDEST: Final = ("oldest_local_ms", "oldest_remote_ms")
_CATCH_UP_MS: Final = 60_000
"""A mirror that needs longer is repaired by `varve tier mirror --repair`."""


# Status


@command(
    "varve tier status -d data", "varve tier status orders -d data --store s3://bucket/varve --json"
)
@options.optional_topic_partition
@options.tier
@options.output
def tier_status(
    topic_partition: TopicPartitionName | None, where: TierWhere, output: Output
) -> None:
    """Show what each topic has on the local disk and in the object store.

    `local` and `remote` count bytes of data files and segments; what is in both counts in both.
    `lag` is closed but not copied. `stored` counts all objects, the basis of the cost per month at
    list prices. Topics without a remote tier need no request.

    If the object store does not respond, a topic is shown with its local disk and the error, and
    the exit status is 1. With --json a line per topic has the sums, `errors` and `partitions`;
    what is unknown is null.
    """
    from varve.embedded.tier_report import report_tiers
    from varve.object_store import default_prices

    with where.open_store(maintain=False) as store:
        partitions = select_partitions(store, topic_partition)
        location = where.tier_location()
        store_url = where.store_url if location is None else location.url
        report = report_tiers(store, partitions, store_url=store_url)
        is_deleting = topic_partition is None and bool(warn_of_deletions(store))
        mirror_trouble = report.mirror.trouble() if report.mirror else ""
    prices = default_prices(report.store_name)
    if output.is_json:
        for topic_report in report.topics:
            fields = _encode_topic(topic_report, prices)
            is_mirrored = report.mirror is not None and topic_report.is_enabled
            fields["mirror"] = report.mirror.second_name if report.mirror and is_mirrored else None
            fields["mirror_trouble"] = (mirror_trouble or None) if is_mirrored else None
            output.print_object("topic", fields)
    elif report.topics or not is_deleting:
        _print_status(output, report, prices, mirror_trouble)
    if any(topic_report.errors for topic_report in report.topics):
        raise click.exceptions.Exit(1)


def _encode_topic(report: "TopicReport", prices: "PriceTable") -> dict[str, Any]:
    from varve.embedded.tier_report import SUMS

    stored = report.sum("stored_bytes")
    return {
        "topic": report.name,
        "tiered": report.is_enabled,
        "copying": report.is_copying,
        **{name: report.sum(name) for name in SUMS},
        **{name: report.oldest(name) for name in _OLDEST},
        "cost_per_month": None if stored is None else prices.stored_cost_per_month(stored),
        "currency": prices.currency,
        "prices": prices.name,
        "errors": report.errors,
        "partitions": [
            {
                **asdict(partition.status),
                "partition": partition.status.partition.partition,
                "error": partition.error,
            }
            for partition in report.partitions
        ],
    }


def _print_status(
    output: Output, report: "TierReport", prices: "PriceTable", mirror_trouble: str
) -> None:
    from varve.object_store import default_prices

    if not report.topics:
        click.echo("there are no topics")
        return
    now_ms = SystemClock().now_ms()
    rows = [_status_row(topic, prices) for topic in report.topics]
    details = [list(_status_details(topic, now_ms)) for topic in report.topics]
    output.print_table("topic", _STATUS_COLUMNS, rows, details=details)
    click.echo(_summarize_status(report, prices))
    if report.mirror is not None:
        stored = sum(topic.sum("stored_bytes") or 0 for topic in report.topics)
        second = report.mirror.second_name
        cost = default_prices(second).format_monthly_cost(stored)
        state = mirror_trouble or "`varve tier mirror` compares the two"
        click.echo(f"mirrored in {second}, at {cost} per month more; {state}")


def _status_row(topic: "TopicReport", prices: "PriceTable") -> list[object]:
    stored = topic.sum("stored_bytes")
    return [
        topic.name,
        topic.is_copying if topic.is_enabled else None,
        *(_format_amount(topic, tier) for tier in ("local", "remote", "lag")),
        None if stored is None else format_bytes(stored),
        None if stored is None else prices.format_monthly_cost(stored),
    ]


def _format_amount(topic: "TopicReport", tier: str) -> str | None:
    size, segments = topic.sum(f"{tier}_bytes"), topic.sum(f"{tier}_segments")
    if size is None or segments is None:
        return None
    return f"{format_bytes(size)} in {segments:,}"


def _status_details(topic: "TopicReport", now_ms: int) -> Iterator[tuple[str, str]]:
    if not topic.is_enabled:
        return
    for partition in topic.partitions:
        status = partition.status
        copied = "" if status.copied_offset is None else f", copied up to {status.copied_offset}"
        yield (
            str(status.partition),
            f"log start {status.log_start_offset}, local start {status.local_start_offset}, end "
            f"{status.end_offset}{copied}",
        )
        if partition.error is not None:
            yield "error", partition.error
    local, remote = (format_moment(topic.oldest(name), now_ms) for name in _OLDEST)
    yield "oldest", f"remote {remote}, local {local}"
    if pending := topic.sum("pending_segments"):
        yield "pending", f"{format_count(pending, 'segment')} being copied to the store or deleted"


def _summarize_status(report: "TierReport", prices: "PriceTable") -> str:
    from varve.embedded.tier_report import SUMS

    tiered = [topic for topic in report.topics if topic.is_enabled]
    total = {name: sum(topic.sum(name) or 0 for topic in report.topics) for name in SUMS}
    text = f"{len(tiered)} of {len(report.topics)} topics have a remote tier: "
    text += f"{format_bytes(total['local_bytes'])} local"
    if tiered:
        text += (
            f", {format_bytes(total['remote_bytes'])} remote, {format_bytes(total['lag_bytes'])} "
            f"to copy; {format_bytes(total['stored_bytes'])} stored in "
            f"{report.store_name or 'no store'}, "
            f"{prices.format_monthly_cost(total['stored_bytes'])} per month"
        )
        if prices.stored_per_gib_month:
            text += f" at the list prices of {prices.name}, {prices.as_of}"
    failed = sum(bool(topic.errors) for topic in report.topics)
    if failed:
        text += f"; the remote tier of {format_count(failed, 'topic')} is unknown and not counted"
    return text


# Copy


@command(
    "varve tier copy -d data --store file:/backup/tier",
    "varve tier copy orders:0 -d data --roll --max-bytes-per-second 10MB --json",
)
@options.optional_topic_partition
@click.option(
    "--roll", is_flag=True, help="Close the active segments first; only closed ones are copied."
)
@options.size("--max-bytes-per-second", help="Limit the copy rate.")
@options.mirrored_tier
@options.output
def tier_copy(
    topic_partition: TopicPartitionName | None,
    where: TierWhere,
    output: Output,
    roll: bool,
    max_bytes_per_second: int | None,
) -> None:
    """Copy closed segments to the object store.

    It copies topics with remote.storage.enable=true: every closed segment without an open
    transaction, oldest first, with all its files. The local files stay. Ctrl-C stops between two
    chunks; what is copied stays, and the next run continues. The exit status is 1 if a partition
    fails.
    """
    if max_bytes_per_second is not None and max_bytes_per_second < 1:
        raise click.BadParameter(
            "0 copies nothing; write a size such as 10MB", param_hint="'--max-bytes-per-second'"
        )
    settings: dict[str, int] = {}
    if max_bytes_per_second is not None:
        settings["remote.log.manager.copy.max.bytes.per.second"] = max_bytes_per_second
    topic, partition = topic_partition or (None, None)
    is_successful = True
    with (
        note_interrupt(output, "stopped; what is copied stays, run it again to continue"),
        where.open_store(maintain=False, settings=settings) as store,
    ):
        if topic is not None:
            _check_copied(find_topic(store, topic))
        chosen = [
            name
            for name in store.partitions(topic, partition)
            if store.topic(name.topic).settings.copies_to_tier
        ]
        for name in chosen:
            if roll:
                store.topic(name.topic).partition(name.partition).log.roll()
            with interruptible_progress(output) as show:
                report = store.tier.copy(
                    name,
                    SystemClock().now_ms(),
                    progress=lambda progress: show(
                        f"{progress.partition} copy", progress.done_bytes, progress.total_bytes
                    ),
                )
            is_successful &= report.error is None
            _print_copy(output, report)
        if chosen:
            _update_mirror(store, output)
        if where.store_url and where.tier_location() is None:
            output.note("no segment was copied, so the directory does not remember --store yet")
    if not chosen:
        output.warn(
            "no topic is copied: `varve topic alter TOPIC -s remote.storage.enable=true "
            "-s remote.log.copy.disable=false` enables it"
        )
    if not is_successful:
        raise click.exceptions.Exit(1)


def _check_copied(topic: "Topic") -> None:
    settings = topic.settings
    if not settings.copies_to_tier:
        raise InvalidRequest(
            f"topic {topic.name} is not copied: remote.storage.enable is "
            f"{str(settings.remote_storage_enable).lower()} and remote.log.copy.disable "
            f"{str(settings.remote_log_copy_disable).lower()}; `varve topic alter {topic.name} "
            "-s remote.storage.enable=true -s remote.log.copy.disable=false` enables it"
        )


def _update_mirror(store: "Store", output: Output) -> None:
    """Copy what the mirror lacks now: a store that is closed forgets what it was."""
    from varve.object_store import MirroredObjectStore

    mirror = store.tier.objects
    if isinstance(mirror, MirroredObjectStore):
        mirror.catch_up(within_ms=_CATCH_UP_MS)
        if trouble := mirror.trouble():
            output.warn(trouble)


def _print_copy(output: Output, report: "CopyReport") -> None:
    text = "nothing to copy" if report.error is None else "nothing was copied: it failed"
    if report.segments:
        count = format_count(len(report.segments), "segment")
        text = f"{count} copied, {report.log_bytes:,} bytes"
    if report.copied_offset is not None:
        text += f"; copied up to offset {report.copied_offset}"
    if report.resumed_count:
        text += f"; {report.resumed_count} had been uploaded before"
    if report.removed_count:
        text += f"; {report.removed_count} unfinished or replaced ones removed"
    output.print_result(
        f"{report.partition}  {text}",
        "copy",
        partition=str(report.partition),
        copied_offset=report.copied_offset,
        segments=len(report.segments),
        log_bytes=report.log_bytes,
        stored_bytes=report.stored_bytes,
        resumed=report.resumed_count,
        removed=report.removed_count,
        error=report.error,
    )
    if report.error is not None:
        output.print_partition_failure(report.partition, report.error)


# Restore


def _parse_version(text: str) -> tuple[int | None, int | None]:
    """A version of a manifest, or a time; both as `(version, time_ms)`."""
    from varve.foundation.units import parse_time

    if text.isascii() and text.isdigit() and len(text) < 20:
        if not int(text):
            raise InvalidRequest("versions of a manifest start at 1")
        return int(text), None
    return None, parse_time(text, name="")


@command(
    "varve tier restore orders -d data --store s3://bucket/varve",
    "varve tier restore orders:3 -d copy --store file:/backup/tier --at 2026-01-31T12:00",
)
@options.topic_partition
@click.option("--topic-id", metavar="ID", help="Which of several topics that had the name.")
@click.option(
    "--at",
    type=options.ParsedType("VERSION|TIME", _parse_version),
    metavar="VERSION|TIME",
    help="An older manifest: its version, or the one of a time (UTC unless it has a zone).",
)
@options.number(
    "--to",
    "until_offset",
    min=1,
    metavar="OFFSET",
    help="Restore only the records before this offset.",
)
@options.settings("A setting of a topic that the directory does not know.")
@options.number("--workers", min=1, max=64, default=4, help="Files to fetch at the same time.")
@options.restored_tier
@options.output
def tier_restore(
    topic_partition: TopicPartitionName,
    where: TierWhere,
    output: Output,
    topic_id: str | None,
    at: tuple[int | None, int | None] | None,
    until_offset: int | None,
    settings: dict[str, str],
    workers: int,
) -> None:
    """Restore partitions from the object store, byte for byte.

    Every file is verified by the size and checksum in the manifest. A partition that exists is not
    changed; a directory that does not exist is created. An interrupted restore continues when it
    is run again.

    Without --set a topic that the directory does not know keeps its records until `varve topic
    alter` sets a policy. After a restore of the newest state the directory remembers the object
    store, and with remote.storage.enable=true copying continues there.
    """
    from varve.disk import RealFileSystem
    from varve.embedded.offline_tier import RestoreRequest, TopicRestore, check_restore_directory

    if len(where.directories) > 1:
        raise click.UsageError("partitions are restored into one directory; name one with --dir")
    fs = RealFileSystem()
    directory = os.path.abspath(where.directories[0])
    check_restore_directory(fs, directory)
    version, time_ms = at or (None, None)
    request = RestoreRequest(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        cluster=where.cluster,
        topic_id=topic_id,
        version=version,
        time_ms=time_ms,
        until_offset=until_offset,
        settings=settings,
    )
    with (
        contextlib.closing(where.open_objects()) as objects,
        note_interrupt(output, "stopped; what was fetched is kept, run it again to continue"),
    ):
        plan = TopicRestore(objects, where.find_store_url(), request)
        _warn_of_cluster(output, directory, plan)
        _register(output, objects, directory, request.topic, plan)
        with output.progress("Restoring", plan.stored_bytes) as bar:
            for report in plan.run(
                fs, directory, clock=SystemClock(), workers=workers, advance=bar.advance
            ):
                _print_restored(output, report)


def _register(
    output: Output, objects: "ObjectStore", directory: str, topic: str, plan: "TopicRestore"
) -> None:
    """Registers the directory, so that receipts of erasures name it.

    A bucket that cannot be written is no reason not to restore.
    """
    from varve.topics.outputs import (
        DerivedOutput,
        OutputKind,
        RemoteOutputRegistry,
        on_this_machine,
    )

    restored = DerivedOutput(
        kind=OutputKind.DIRECTORY,
        topic=topic,
        topic_id=plan.topic_id,
        place=on_this_machine(directory),
        name=topic,
        noted_ms=SystemClock().now_ms(),
    )
    try:
        RemoteOutputRegistry(objects, plan.cluster).note(restored)
    except StoreError as error:
        output.warn(
            f"receipts of erasures will not name {directory}: it could not be noted in the object "
            f"store ({error}); give it with --dir when you erase"
        )


def _warn_of_cluster(output: Output, directory: str, plan: "TopicRestore") -> None:
    from varve.disk import RealFileSystem
    from varve.tiering.restore import read_cluster

    cluster = read_cluster(RealFileSystem(), directory)
    if cluster not in (None, plan.cluster):
        output.warn(
            f"{directory} belongs to cluster {cluster}: what it copies later goes there, not to "
            f"{plan.cluster}"
        )


def _print_restored(output: Output, report: "RestoreReport") -> None:
    state = f"manifest version {report.manifest_version} of {format_time(report.manifest_ms)}"
    if report.was_there:
        text = f"{report.path}: was restored before from {state}"
    else:
        reused = f", {format_bytes(report.reused_bytes)} reused" if report.reused_bytes else ""
        text = (
            f"{report.path}: offsets {report.log_start_offset} to {report.end_offset - 1} in "
            f"{format_count(report.segment_count, 'segment')}, "
            f"{format_bytes(report.fetched_bytes)} fetched{reused}, from {state}"
        )
    output.print_result(
        text,
        "restored",
        topic=report.path.topic,
        partition=report.path.partition,
        topic_id=report.path.topic_id,
        directory=report.directory,
        manifest_version=report.manifest_version,
        manifest_ms=report.manifest_ms,
        segments=report.segment_count,
        log_start_offset=report.log_start_offset,
        end_offset=report.end_offset,
        fetched_bytes=report.fetched_bytes,
        reused_bytes=report.reused_bytes,
        was_there=report.was_there,
    )
