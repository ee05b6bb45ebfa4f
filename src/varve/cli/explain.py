"""`varve explain`: why a record, a key or a segment is still here, and when it can be removed."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.options import TopicPartitionName
from varve.cli.output import Grouped, Output, make_console, print_details
from varve.cli.where import Where, find_topic
from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.units import format_due, format_moment

if TYPE_CHECKING:
    from varve.cleaning.explanation import (
        RecordExplanation,
        RemovalPath,
        SegmentExplanation,
    )
    from varve.embedded import Store


@command(
    examples=(
        "varve explain scores -d data --key alice",
        "varve explain scores:0 -d data --offset 1234 --json",
    )
)
@options.topic_partition
@click.option("--offset", type=options.Number(min=0), metavar="N", help="Explain this record.")
@click.option("-k", "--key", metavar="KEY", help="Explain the latest record of this key.")
@options.directory
@options.output
def explain(
    topic_partition: TopicPartitionName,
    where: Where,
    output: Output,
    offset: int | None,
    key: str | None,
) -> None:
    """Show why a record or a segment is still here.

    It shows the rules that keep it, and until when. Without --offset and --key it explains every
    segment, of the remote tier too. A key is looked up in the partition that Kafka's default
    partitioner chooses. Times are the earliest ones: the next pass of retention or of the cleaner
    removes it then. Missing key indexes are built.

    The exit status is 1 if no record has the key. With --json a segment has its offsets, size,
    times, `place`, `retention`, `compaction` and `local` (how it leaves the local disk), a record
    its `state`, `key`, `superseded_by`, `compaction` and `segment`. Each way to be removed has
    `earliest_ms`, null if unknown, and `blocks` with `rule`, `text` and `until_ms`.
    """
    if offset is not None and key is not None:
        raise click.UsageError("--offset and --key exclude each other")
    topic, partition = topic_partition
    with where.open_store(maintain=False) as store:
        count = find_topic(store, topic).partition_count
        if offset is None and key is None:
            _print_segments(output, store.explain(topic, partition))
            return
        if offset is not None and partition is None and count > 1:
            raise InvalidRequest(
                f"topic {topic} has {count} partitions, each with its own offsets; write "
                f"TOPIC:PARTITION, from {topic}:0 to {topic}:{count - 1}"
            )
        record = _explain_record(store, topic, partition, offset, key)
    if output.is_json:
        output.print_object("record", record.to_json())
        return
    click.secho(_describe_state(record), bold=True)
    print_details(make_console(), list(_record_details(record)), indent=2)


def _explain_record(
    store: "Store", topic: str, partition: int | None, offset: int | None, key: str | None
) -> "RecordExplanation":
    if offset is not None:
        return store.explain_offset(topic, offset=offset, partition=partition)
    assert key is not None
    record = store.explain_key(topic, key=key.encode(errors="surrogateescape"), partition=partition)
    if record is None:
        raise NotFound(f"topic {topic} has no record with key {key!r}")
    return record


def _describe_state(record: "RecordExplanation") -> str:
    from varve.cleaning.explanation import RecordState

    later = "" if record.superseded_by is None else f" by offset {record.superseded_by}"
    if later and record.state is RecordState.REMOTE:
        later = f", superseded{later}"
    return f"{record.partition} offset {record.offset}: {record.state.value}{later}"


def _record_details(record: "RecordExplanation") -> Iterator[tuple[str, str]]:
    from varve.cleaning.explanation import RecordState

    if record.state in (RecordState.REMOVED, RecordState.BELOW_LOG_START):
        partition = f"{record.partition.topic}:{record.partition.partition}"
        yield "removal", f"`varve audit {partition}` shows what was removed, when and why"
    if record.key is not None:
        yield "key", record.key.decode(errors="backslashreplace")
    if record.timestamp is not None:
        yield "timestamp", format_moment(record.timestamp, record.now_ms)
    if record.compaction is not None:
        yield from _path_details(record.compaction, record.now_ms)
    if record.segment is not None:
        yield from _segment_details(record.segment)
    elif record.state is RecordState.REMOTE:
        yield "remote tier", "its object store does not respond; `varve tier status` shows why"


def _segment_details(segment: "SegmentExplanation") -> Iterator[tuple[str, str]]:
    """The segment of a record."""
    from varve.cleaning.retention.segments import SegmentLocation

    for path in (segment.retention, segment.local):
        if path is not None:
            yield from _path_details(path, segment.now_ms)
    kind = "active segment" if segment.is_active else "segment"
    if segment.location is SegmentLocation.REMOTE:
        kind = "segment of the remote tier"
    yield (
        "in",
        f"{kind} {segment.base_offset} to {segment.next_offset}, {segment.size:,} bytes; age "
        f"counts from {format_moment(segment.age_from.ms, segment.now_ms)}, "
        f"{segment.age_from.source} time",
    )
    if segment.age_from.note:
        yield "", segment.age_from.note


def _path_details(path: "RemovalPath", now_ms: int) -> Iterator[tuple[str, str]]:
    from varve.cleaning.retention.rules import BlockingRule

    if _held_texts(path):
        when = "not before it is repaired, see `varve check`"
    elif path.earliest_ms is None:
        when = "not by itself" if path.blocks else "never"
    elif path.earliest_ms <= now_ms:
        when = "at its next pass"
    else:
        when = f"{format_due(path.earliest_ms, now_ms)} at the earliest"
    yield path.by, f"can remove it: {when}"
    for block in path.blocks:
        until = ""
        if block.until_ms is not None and block.rule is not BlockingRule.HELD:
            until = f", until {format_moment(block.until_ms, now_ms)}"
        yield "", f"- {block.rule.value}: {block.text}{until}"


def _print_segments(output: Output, segments: "Sequence[SegmentExplanation]") -> None:
    from varve.cleaning.retention.segments import SegmentLocation

    if output.is_json:
        for segment in segments:
            output.print_object("segment", segment.to_json())
        return
    is_tiered = any(
        segment.location is not SegmentLocation.LOCAL or segment.local is not None
        for segment in segments
    )
    columns = ["partition", "segment", "bytes", "stale", *(["tier"] if is_tiered else [])]
    rows = [
        [
            str(segment.partition),
            segment.base_offset,
            Grouped(segment.size),
            None if segment.stale_bytes is None else Grouped(segment.stale_bytes),
            *([segment.location.value] if is_tiered else []),
        ]
        for segment in segments
    ]
    details = [list(_row_details(segment)) for segment in segments]
    output.print_table("segment", columns, rows, details=details)


def _row_details(segment: "SegmentExplanation") -> Iterator[tuple[str, str]]:
    """When a segment is removed, in each way that applies."""
    if segment.size:
        source = ", append" if segment.age_from.is_rejected else ""
        yield "age from", f"{format_moment(segment.age_from.ms, segment.now_ms)}{source}"
    for label, path in (
        ("retention", segment.retention),
        ("compaction", segment.compaction),
        ("local disk", segment.local),
    ):
        if path is not None:
            yield label, _summarize(path, segment.now_ms)


def _held_texts(path: "RemovalPath") -> list[str]:
    """The damage in the way: an open store tries again, this command does not."""
    from varve.cleaning.retention.rules import BlockingRule

    return [block.text for block in path.blocks if block.rule is BlockingRule.HELD]


def _summarize(path: "RemovalPath", now_ms: int) -> str:
    """When, or what is in the way."""
    if held := _held_texts(path):
        return "; ".join(held)
    if path.earliest_ms is not None:
        return format_due(path.earliest_ms, now_ms)
    return "; ".join(block.text for block in path.blocks if block.until_ms is None) or "-"
