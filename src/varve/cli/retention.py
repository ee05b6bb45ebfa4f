"""`varve explain` and `forecast`: why records are still here, and what retention will delete.

Invariant  nothing is changed; missing key indexes are built.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.options import TopicPartitionName
from varve.cli.output import Grouped, Output, draw_bar, make_console, print_details
from varve.cli.where import Where, find_topic, select_partitions
from varve.foundation.errors import InvalidRequest, NotFound, Unavailable
from varve.foundation.units import format_bytes, format_count, format_due, format_moment

if TYPE_CHECKING:
    from varve.cleaning.explanation import (
        RecordExplanation,
        RemovalPath,
        SegmentExplanation,
    )
    from varve.cleaning.retention.forecast import Forecast
    from varve.embedded import Store
    from varve.object_store import PriceTable

# explain


@command(
    "varve explain scores -d data --key alice",
    "varve explain scores:0 -d data --offset 1234 --json",
)
@options.topic_partition
@options.number("--offset", metavar="N", help="Explain this record.")
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
        rule = "" if block.text.startswith(f"{block.rule.value}=") else f"{block.rule.value}: "
        yield "", f"- {rule}{block.text}{until}"


def _print_segments(output: Output, segments: "Sequence[SegmentExplanation]") -> None:
    from varve.cleaning.retention.segments import SegmentLocation

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
    documents = [segment.to_json() for segment in segments]
    output.print_table("segment", columns, rows, details=details, documents=documents)


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


# forecast


_STEPS: Final = 10
_BAR_WIDTH: Final = 40
_COLUMNS: Final = ("partition", "bytes", "due now", "later", "stays", "stale")
_REMOTE_COLUMNS: Final = ("in the remote tier at", "segments", "readable", "stored", "per month")


@command(
    "varve forecast visits -d data -s retention.ms=1d",
    "varve forecast -d data -s remote.storage.enable=true -s local.retention.ms=1h --json",
)
@options.optional_topic_partition
@options.settings("Try a topic setting in place of the topics' own; nothing is changed.")
@options.directory
@options.output
def forecast(
    topic_partition: TopicPartitionName | None,
    where: Where,
    output: Output,
    settings: dict[str, str],
) -> None:
    """Show what retention will delete and when.

    It assumes that nothing more is appended. Whole segments expire, oldest first; for compaction it
    shows the bytes it would free now. For a topic with a remote tier the table shows the local
    disk, and below it when segments expire in the object store and what they cost until then at
    list prices, if copying keeps up. A partition whose object store does not respond is reported,
    and the exit status is 1.

    With --json a line per partition has `settings`, `size`, `due_now_bytes`, `kept_bytes` (never
    deleted), `stale_bytes`, `rows` (a segment each, with `when_ms`, null if it stays), `points`
    (totals at each deletion) and `remote`, the same for the remote tier. Missing key indexes are
    built.
    """
    forecasts: list[Forecast] = []
    failures: dict[str, str] = {}
    with where.open_store(maintain=False) as store:
        for name in select_partitions(store, topic_partition):
            try:
                forecasts += store.forecast(name.topic, name.partition, settings=settings)
            except Unavailable as error:
                failures[str(name)] = str(error)
    if output.is_json:
        for forecast in forecasts:
            output.print_object("forecast", forecast.to_json())
    elif forecasts or not failures:
        _print(where, output, forecasts, settings)
    for partition, failure in failures.items():
        output.print_partition_failure(partition, failure)
    if failures:
        raise click.exceptions.Exit(1)


def _print(
    where: Where, output: Output, forecasts: "Sequence[Forecast]", settings: Mapping[str, str]
) -> None:
    from varve.object_store import default_prices

    if not forecasts:
        click.echo("there are no topics")
        return
    if settings:
        click.echo("with " + ", ".join(f"{name}={value}" for name, value in settings.items()))
    rows: list[list[object]] = []
    details = []
    for forecast in forecasts:
        due, kept = forecast.due_now_bytes, forecast.kept_bytes
        later = forecast.size - due - kept
        stale = None if forecast.stale_bytes is None else Grouped(forecast.stale_bytes)
        rows.append(
            [str(forecast.partition), *map(Grouped, (forecast.size, due, later, kept)), stale]
        )
        remote = [] if forecast.remote is None else [("remote tier", _describe_remote(forecast))]
        details.append([("next", _describe_next(forecast)), *remote])
    output.print_table("forecast", _COLUMNS, rows, details=details)
    _print_local_sizes(output, forecasts)
    location = where.tier_location()
    _print_remote_sizes(output, forecasts, default_prices(location.url if location else ""))


def _describe_next(forecast: "Forecast") -> str:
    """The first segment that expires or, without one, what keeps the first segment."""
    rows = [row for row in forecast.rows if row.segment.size]
    if not rows:
        return "empty"
    first = rows[0]
    if first.when_ms is None:
        return f"stays: {first.rule}"
    return f"{format_due(first.when_ms, forecast.now_ms)}: {first.rule}"


def _print_local_sizes(output: Output, forecasts: "Sequence[Forecast]") -> None:
    """Bytes left on the local disk, from now to the last deletion, with bars."""
    now_ms = max(forecast.now_ms for forecast in forecasts)
    total = sum(forecast.size for forecast in forecasts)
    ends = [row.when_ms for forecast in forecasts for row in forecast.rows]
    end_ms = max((when_ms for when_ms in ends if when_ms is not None), default=None)
    if not total or end_ms is None:
        return
    times = [(format_moment(time, now_ms), time) for time in _spread(now_ms, end_ms)]
    sizes = [sum(forecast.at(time).left_bytes for forecast in forecasts) for _, time in times]
    used = max(len(text) for text, _ in times) + max(4, len(f"{total:,}")) + 4
    bar_width = max(1, min(_BAR_WIDTH, make_console().width - used))
    bars = [draw_bar(size, total, bar_width) for size in sizes]
    click.echo()
    if len(set(bars[:-1])) <= 1:
        end = "" if len(sizes) == 1 else f", {sizes[-1]:,} at {times[-1][0]}"
        click.echo(f"after retention {sizes[0]:,} of {total:,} bytes are left now{end}")
        return
    rows = [
        [text, Grouped(size), bar] for (text, _), size, bar in zip(times, sizes, bars, strict=True)
    ]
    output.print_table("local_size", ("after retention at", "left", ""), rows)


def _spread(now_ms: int, end_ms: int) -> list[int]:
    """Times from now to the end, at equal distances."""
    if end_ms <= now_ms:
        return [now_ms]
    return [now_ms + (end_ms - now_ms) * step // _STEPS for step in range(_STEPS + 1)]


# Remote tier


def _describe_remote(forecast: "Forecast") -> str:
    """What the object store holds of a partition, and what expires first."""
    from varve.cleaning.retention.segments import SegmentLocation

    assert forecast.remote is not None
    held = [
        row
        for row in forecast.remote
        if row.segment.location in (SegmentLocation.REMOTE, SegmentLocation.BOTH)
    ]
    waiting = [row for row in forecast.remote if row.segment.location is SegmentLocation.LOCAL]
    deleting = [row for row in forecast.remote if not row.segment.location.is_readable]
    held_bytes = sum(row.segment.size for row in held)
    parts = [f"{format_count(len(held), 'segment')}, {held_bytes:,} bytes"]
    if waiting:
        waiting_bytes = sum(row.segment.size for row in waiting)
        parts.append(f"{len(waiting)} to be copied, {waiting_bytes:,} bytes")
    if deleting:
        last_ms = max(row.deleted_ms or forecast.now_ms for row in deleting)
        parts.append(f"{len(deleting)} deleted by {format_due(last_ms, forecast.now_ms)}")
    first = next(iter([*held, *waiting]), None)
    if first is not None and first.when_ms is None:
        parts.append(f"stays: {first.rule}")
    elif first is not None:
        parts.append(f"expires {format_due(first.when_ms, forecast.now_ms)}: {first.rule}")
    return "; ".join(parts)


def _print_remote_sizes(
    output: Output, forecasts: "Sequence[Forecast]", prices: "PriceTable"
) -> None:
    """What the object store holds of all partitions, from now to the last deletion."""
    tiered = [forecast for forecast in forecasts if forecast.remote is not None]
    if not tiered:
        return
    now_ms = max(forecast.now_ms for forecast in tiered)
    times = [time for forecast in tiered for time in forecast.remote_moments()]
    rows: list[list[object]] = []
    for time in _spread(now_ms, max(times, default=now_ms)):
        points = [forecast.remote_at(time) for forecast in tiered]
        stored = sum(point.stored_bytes for point in points)
        cells: list[object] = [
            sum(point.segments for point in points),
            format_bytes(sum(point.bytes for point in points)),
            format_bytes(stored),
            prices.format_monthly_cost(stored),
        ]
        if not rows or cells != rows[-1][1:]:
            rows.append([format_moment(time, now_ms), *cells])
    click.echo()
    output.print_table("remote_size", _REMOTE_COLUMNS, rows)
