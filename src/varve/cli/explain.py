"""`varve explain`: why a record, a key or a segment is still here, and when it can go."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from varve.cleaning.explain.explanation import (
    RecordExplanation,
    RecordState,
    RemovalPath,
    SegmentExplanation,
)
from varve.cleaning.retention.rules import BlockingRule
from varve.cleaning.retention.segments import SegmentLocation
from varve.cli.moments import show_due, show_moment
from varve.cli.screen import WIDE, make_console, print_details, print_rows_with_details
from varve.cli.store_access import Directory, find_topic, open_existing, parse_wanted
from varve.cli.tier_access import StoreSettings, tier_settings
from varve.foundation.errors import InvalidRequest, NotFound

_FIGURES: Final = ("partition", "segment", "bytes", "stale")
_SENTENCES: Final = ("age counts from", "retention takes it", "compaction cleans it")
_TIER: Final = "tier"
_LEAVES: Final = "leaves the local disk"


def command(
    directory: Directory,
    wanted: Annotated[
        str,
        typer.Argument(metavar="TOPIC[:PARTITION]", help="The topic, or one of its partitions."),
    ],
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", min=0, help="Why is this record still here?")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "-k", help="Why is the latest record of this key still here?"),
    ] = None,
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per record or segment.")
    ] = False,
) -> None:
    """Tell why a record or a segment is still here, which rule keeps it, and when it can go.

    Without --offset and --key every segment is explained. An offset needs a partition where the
    topic has several; a key is looked for where Kafka's default partitioner puts it. A time is the
    earliest: a later pass of retention or of the cleaner takes it then. Key indexes are built where
    they are missing.

    Of a topic in the cold tier the segments there are explained too: those in object storage alone
    (cold), those in both tiers, those whose copy was begun (copying), and those that have expired
    and whose objects go (leaving). One that is down is named in the place of what it would tell.

    The exit status is 1 when no record has the key. With --json a segment has its offsets, size,
    times, `place`, `retention`, `compaction` and `local`, its way from the local disk; a record its
    `state`, `key`, `superseded_by`, `compaction` and its `segment`. Ways out have `earliest_ms`,
    null where nobody knows, and `blocks`, each with `rule`, `text` and `until_ms`.

    \b
    Examples:
      varve explain data scores
      varve explain data scores --key alice
      varve explain data scores:0 --offset 1234 --json
    """
    if offset is not None and key is not None:
        raise typer.BadParameter("--offset and --key exclude each other")
    topic, partition = parse_wanted(wanted)
    assert topic is not None
    record: RecordExplanation | None = None
    segments: list[SegmentExplanation] = []
    settings = tier_settings("", store_settings)
    with open_existing([directory], maintain=False, settings=settings) as store:
        count = find_topic(store, topic).partition_count
        if offset is not None:
            if partition is None and count > 1:
                raise InvalidRequest(
                    f"topic {topic} has {count} partitions, each with its own offsets; write "
                    f"TOPIC:PARTITION, from {topic}:0 to {topic}:{count - 1}"
                )
            record = store.explain_offset(topic, offset, partition)
        elif key is not None:
            data = key.encode(errors="surrogateescape")
            record = store.explain_key(topic, data, partition)
            if record is None:
                raise NotFound(f"topic {topic} has no record of key {key!r}")
        else:
            segments = store.explain(topic, partition)
    if as_json:
        for segment in segments if record is None else [record]:
            sys.stdout.write(json.dumps(segment.to_json()) + "\n")
        return
    console = make_console()
    if record is not None:
        by = "" if record.superseded_by is None else f" by offset {record.superseded_by}"
        if by and record.state is RecordState.REMOTE:
            by = f", superseded{by}"
        title = f"{record.partition} offset {record.offset}: {record.state.value}{by}"
        console.print(Text(title, "bold"))
        print_details(console, list(_record_lines(record)), indent=2)
    else:
        _print_segments(console, segments)


def _record_lines(record: RecordExplanation) -> Iterator[tuple[str, str]]:
    if record.state in (RecordState.REMOVED, RecordState.BELOW_LOG_START):
        partition = f"{record.partition.topic}:{record.partition.partition}"
        yield "removal", f"`varve audit` of {partition} tells what was taken, when and why"
    if record.key is not None:
        yield "key", record.key.decode(errors="backslashreplace")
    if record.timestamp is not None:
        yield "timestamp", show_moment(record.timestamp, record.now_ms)
    if record.compaction is not None:
        yield from _way_lines(record.compaction, record.now_ms)
    if record.segment is None and record.state is RecordState.REMOTE:
        yield "cold tier", "its object store cannot be asked now, `varve tier status` tells more"
    if record.segment is not None:
        yield from _way_lines(record.segment.retention, record.now_ms)
        if record.segment.local is not None:
            yield from _way_lines(record.segment.local, record.now_ms)
        segment = record.segment
        kind = "active segment" if segment.is_active else "segment"
        if segment.place is SegmentLocation.REMOTE:
            kind = "segment of the cold tier"
        yield (
            "in",
            f"{kind} {segment.base_offset} to {segment.next_offset}, {segment.size:,} bytes; age "
            f"counts from {show_moment(segment.age_from.ms, record.now_ms)}, "
            f"{segment.age_from.source} time",
        )
        if segment.age_from.note:
            yield "", segment.age_from.note


def _way_lines(way: RemovalPath, now_ms: int) -> Iterator[tuple[str, str]]:
    if _is_held(way):
        when = "not before it is mended, see `varve check`"
    elif way.earliest_ms is None:
        when = "not by itself" if way.blocks else "never"
    else:
        when = f"{show_due(way.earliest_ms, now_ms)} at the earliest"
        if way.earliest_ms <= now_ms:
            when = "at its next pass"
    yield way.by, f"can take it: {when}"
    for block in way.blocks:
        until = ""
        if block.until_ms is not None and block.rule is not BlockingRule.HELD:
            until = f", until {show_moment(block.until_ms, now_ms)}"
        yield "", f"- {block.rule.value}: {block.text}{until}"


def _print_segments(console: Console, segments: Sequence[SegmentExplanation]) -> None:
    is_tiered = any(
        explanation.place is not SegmentLocation.LOCAL or explanation.local is not None
        for explanation in segments
    )
    figures = (*_FIGURES, _TIER) if is_tiered else _FIGURES
    titles = (*_SENTENCES, _LEAVES) if is_tiered else _SENTENCES
    rows = [_figures(explanation)[: len(figures)] for explanation in segments]
    sentences = [_sentences(explanation)[: len(titles)] for explanation in segments]
    if console.width < WIDE:
        details = [
            [pair for pair in zip(titles, texts, strict=True) if pair != (_LEAVES, "-")]
            for texts in sentences
        ]
        print_rows_with_details(console, figures, rows, details, left=["partition", _TIER])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in figures:
        is_number = column not in ("partition", _TIER)
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for column in titles:
        table.add_column(column, overflow="fold")
    for row, texts in zip(rows, sentences, strict=True):
        table.add_row(*row, *texts)
    console.print(table)


def _figures(explanation: SegmentExplanation) -> list[str]:
    stale = "-" if explanation.stale_bytes is None else f"{explanation.stale_bytes:,}"
    return [
        str(explanation.partition),
        str(explanation.base_offset),
        f"{explanation.size:,}",
        stale,
        explanation.place.value,
    ]


def _sentences(explanation: SegmentExplanation) -> list[str]:
    age = "-"
    if explanation.size:
        by = ", append" if explanation.age_from.is_rejected else ""
        age = f"{show_moment(explanation.age_from.ms, explanation.now_ms)}{by}"
    return [
        age,
        _way_cell(explanation.retention, explanation.now_ms),
        "-"
        if explanation.compaction is None
        else _way_cell(explanation.compaction, explanation.now_ms),
        "-" if explanation.local is None else _way_cell(explanation.local, explanation.now_ms),
    ]


def _is_held(way: RemovalPath) -> bool:
    """Whether damage is in the way: a store that runs tries again, this command does not."""
    return any(block.rule is BlockingRule.HELD for block in way.blocks)


def _way_cell(way: RemovalPath, now_ms: int) -> str:
    """When, or what is in the way."""
    if _is_held(way):
        return "; ".join(block.text for block in way.blocks if block.rule is BlockingRule.HELD)
    if way.earliest_ms is not None:
        return show_due(way.earliest_ms, now_ms)
    waiting = [block for block in way.blocks if block.until_ms is None]
    return "; ".join(block.text for block in waiting) or "-"
