"""The segments of a topic as bars in the terminal: one per segment, as long as it has bytes."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from varve.cli.output import draw_bar
from varve.embedded import Partition, Topic

_BAR_WIDTH: Final = 20
_ACTIVE_STYLE: Final = "green"
_CLOSED_STYLE: Final = "blue"


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What the picture shows of a segment; timestamps are -1 where it has none."""

    partition: int
    base_offset: int
    next_offset: int
    size: int
    batch_count: int
    offset_entries: int
    time_entries: int
    first_timestamp: int
    max_timestamp: int
    is_active: bool

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def segment_facts(partition: Partition) -> list[SegmentFacts]:
    """The segments of a partition, counted by reading their batches."""
    log = partition.log
    view = log.view
    segments = list(view)
    ends = [segment.base_offset for segment in segments[1:]] + [log.end_offset]
    facts = []
    for segment, end in zip(segments, ends, strict=True):
        start = max(segment.base_offset, log.log_start_offset)
        headers = []
        if start < end:
            headers = [batch.header for batch in partition.batches(start, end)]
        facts.append(
            SegmentFacts(
                partition=partition.number,
                base_offset=segment.base_offset,
                next_offset=end,
                size=segment.size,
                batch_count=len(headers),
                offset_entries=segment.offset_index().count,
                time_entries=segment.time_index().count,
                first_timestamp=headers[0].base_timestamp if headers else -1,
                max_timestamp=segment.max_timestamp,
                is_active=segment is view.active,
            )
        )
    return facts


def topic_facts(topic: Topic) -> list[SegmentFacts]:
    """The segments of all partitions."""
    return [fact for partition in topic.partitions for fact in segment_facts(partition)]


def draw_segments(topic_name: str, facts: Sequence[SegmentFacts]) -> RenderableType:
    """All partitions of a topic, drawn to one scale."""
    largest = max((fact.size for fact in facts), default=0)
    parts: list[RenderableType] = []
    for number, found in itertools.groupby(facts, key=lambda fact: fact.partition):
        parts += [Text(f"{topic_name}-{number}", style="bold"), _draw(found, largest)]
    legend = Text("█ closed", style=_CLOSED_STYLE).append("  █ active", style=_ACTIVE_STYLE)
    legend.append("  indexes: entries by offset + by time", style="dim")
    parts.append(legend)
    return Group(*parts)


def _draw(found: Iterable[SegmentFacts], largest: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("base", "bytes", "batches", "indexes"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=_BAR_WIDTH)
    table.add_column("timestamps", no_wrap=True)
    for fact in found:
        style = _ACTIVE_STYLE if fact.is_active else _CLOSED_STYLE
        table.add_row(
            str(fact.base_offset),
            f"{fact.size:,}",
            str(fact.batch_count),
            f"{fact.offset_entries}+{fact.time_entries}",
            Text(draw_bar(fact.size, largest, _BAR_WIDTH), style=style),
            f"{_moment(fact.first_timestamp)} to {_moment(fact.max_timestamp)[-5:]}",
        )
    return table


def _moment(timestamp: int) -> str:
    if timestamp < 0:
        return "-"
    return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%m-%d %H:%M")
