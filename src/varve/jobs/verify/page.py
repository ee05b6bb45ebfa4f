"""Renders a verification as one HTML page: pictures of the tier, and a table of findings.

Invariant  a picture has at most _BLOCKS_MAX boxes in a row: adjacent segments share one, in the
           colour of the worst of them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from varve.commit_log.check.findings import Severity
from varve.foundation.units import format_bytes
from varve.jobs.results import render_template
from varve.jobs.verify.result import PartitionVerdict, SegmentVerdict, VerifyResult, gravest_first

_FINDINGS_MAX: Final = 2000
"""Findings in the table; the JSON has all of them."""
_PICTURES_MAX: Final = 200
"""Partitions with a picture, those with most damage first."""
_LEGEND: Final = (
    ("--good", "no finding"),
    ("--stale", "stale bytes: the stronger, the more"),
    ("--warn", "warning or note"),
    ("--bad", "damaged"),
    ("--cold", "age: the stronger, the older"),
)
_BLOCKS_MAX: Final = 600
_BARS_MAX: Final = 40
_LANES_MAX: Final = 8
_YEAR_10000_MS: Final = 253_402_300_800_000


def render_page(result: VerifyResult) -> str:
    """Renders the page."""
    findings = gravest_first(result.findings)
    severities = Counter(finding.severity for finding in findings)
    partitions = sorted(result.partitions, key=lambda partition: -partition.damage_count)
    topic_bytes: Counter[str] = Counter()
    for partition in partitions:
        topic_bytes[partition.partition.topic] += sum(partition.bytes.values())
    values = {
        "result": result,
        "counts": [(level, severities[level]) for level in Severity if severities[level]],
        "tiles": [
            ("topics", f"{len({partition.partition.topic_id for partition in partitions}):,}"),
            ("partitions", f"{len(partitions):,}"),
            ("segments", f"{sum(len(partition.segments) for partition in partitions):,}"),
            ("records", f"{sum(partition.record_count for partition in partitions):,}"),
            ("read and verified", format_bytes(result.verified_bytes)),
        ],
        "findings": findings,
        "findings_max": _FINDINGS_MAX,
        "topic_bars": _scale_bars(
            [(topic, format_bytes(size), size) for topic, size in topic_bytes.most_common()]
        ),
        "size_bars": _scale_bars(_count_sizes(partitions)),
        "legend": _LEGEND,
        "partitions": [
            (partition, _draw_partition(partition, result.started_ms))
            for partition in partitions[:_PICTURES_MAX]
        ],
        "partitions_left": len(partitions) - _PICTURES_MAX,
    }
    return render_template("verification.html", values)


# Bars


@dataclass(frozen=True, slots=True)
class Bar:
    """A labelled bar; `share` is its length as a percentage of the longest."""

    label: str
    text: str
    share: float


def _scale_bars(rows: Sequence[tuple[str, str, int]]) -> list[Bar]:
    """Scales rows of label, text and number; those beyond _BARS_MAX are counted in one more."""
    largest = max((number for _, _, number in rows), default=0) or 1
    bars = [Bar(label, text, 100 * number / largest) for label, text, number in rows[:_BARS_MAX]]
    return [*bars, Bar(f"{len(rows) - _BARS_MAX} more", "", 0)] if len(rows) > _BARS_MAX else bars


def _count_sizes(partitions: Sequence[PartitionVerdict]) -> list[tuple[str, str, int]]:
    """Counts segments by powers of two of their size."""
    counts = Counter(
        max(segment.size, 1).bit_length() - 1
        for partition in partitions
        for segment in partition.segments
    )
    powers = range(min(counts), max(counts) + 1) if counts else ()
    return [
        (f"from {format_bytes(2**power)} on", f"{counts[power]:,}", counts[power])
        for power in powers
    ]


# Pictures of a partition


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle: left edge and width in percent of the picture, top and height in pixels."""

    left: float
    width: float
    top: int
    height: int
    colour: str
    opacity: float
    title: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Boxes along an axis, with the texts at its start and end."""

    label: str
    start: str
    end: str
    height: int
    boxes: list[Box]


def _draw_partition(partition: PartitionVerdict, now_ms: int) -> list[Picture]:
    if not partition.segments:
        return []
    times = _draw_times(partition.segments)
    pictures = [_draw_offsets(partition, now_ms)]
    return pictures if times is None else [*pictures, times]


def _group(segments: Sequence[SegmentVerdict]) -> list[Sequence[SegmentVerdict]]:
    """Groups adjacent segments that share a box."""
    step = -(-len(segments) // _BLOCKS_MAX)
    return [segments[start : start + step] for start in range(0, len(segments), step)]


def _draw_offsets(partition: PartitionVerdict, now_ms: int) -> Picture:
    """Draws the segments along the offsets: their findings, and below their age."""
    segments = partition.segments
    first, end = segments[0].base_offset, segments[-1].end_offset + 1
    newest = [segment.max_timestamp for segment in segments if segment.max_timestamp >= 0]
    age_max = max(now_ms - min(newest, default=now_ms), 1)
    boxes = []
    for group in _group(segments):
        left = _percent(group[0].base_offset, first, end)
        width = _percent(group[-1].end_offset + 1, first, end) - left
        colour, opacity = _find_colour(group)
        title = _describe(group)
        boxes.append(Box(left, width, 0, 22, colour, opacity, title))
        timestamp = max(segment.max_timestamp for segment in group)
        age = (now_ms - timestamp) / age_max if timestamp >= 0 else 0.0
        boxes.append(Box(left, width, 26, 8, "--cold", 0.15 + 0.85 * age, title))
    if first < partition.cleaned_up_to <= end:
        left = _percent(partition.cleaned_up_to, first, end)
        title = f"clean below {partition.cleaned_up_to:,}"
        boxes.append(Box(left, 0.2, -4, 42, "--ink", 1.0, title))
    return Picture("segments along the offsets", f"{first:,}", f"{end:,}", 34, boxes)


def _find_colour(segments: Sequence[SegmentVerdict]) -> tuple[str, float]:
    if any(segment.damage_count for segment in segments):
        return "--bad", 1.0
    if any(segment.finding_count for segment in segments):
        return "--warn", 1.0
    stale_share = _stale_share(segments)
    return ("--stale", 0.35 + 0.65 * min(stale_share, 1.0)) if stale_share else ("--good", 0.85)


def _stale_share(segments: Sequence[SegmentVerdict]) -> float:
    size = sum(segment.size for segment in segments)
    return sum(segment.stale_bytes or 0 for segment in segments) / size if size else 0.0


def _describe(segments: Sequence[SegmentVerdict]) -> str:
    records = sum(segment.record_count for segment in segments)
    findings = sum(segment.finding_count for segment in segments)
    lines = [
        f"{len(segments)} segments" if len(segments) > 1 else "",
        f"offsets {segments[0].base_offset:,} to {segments[-1].end_offset:,}",
        f"{records:,} records, {format_bytes(sum(segment.size for segment in segments))}",
        f"{_stale_share(segments):.0%} stale",
        f"newest {_format_minute(max(segment.max_timestamp for segment in segments))}",
        f"{findings} findings" if findings else "",
    ]
    return "\n".join(filter(None, lines))


def _draw_times(segments: Sequence[SegmentVerdict]) -> Picture | None:
    """Draws the range of timestamps of each segment; None if they have none."""
    dated = [
        segment for segment in segments if 0 <= segment.first_timestamp <= segment.max_timestamp
    ]
    if not dated:
        return None
    start = min(segment.first_timestamp for segment in dated)
    end = max(segment.max_timestamp for segment in dated)
    lanes = min(len(dated), _LANES_MAX)
    boxes = []
    for number, group in enumerate(_group(dated)):
        left = _percent(min(segment.first_timestamp for segment in group), start, end)
        right = _percent(max(segment.max_timestamp for segment in group), start, end)
        top = 5 * (number % lanes)
        boxes.append(Box(left, right - left, top, 4, "--cold", 0.7, _describe(group)))
    minutes = _format_minute(start), _format_minute(end)
    return Picture("timestamps of segments", *minutes, 5 * lanes, boxes)


def _percent(value: int, start: int, end: int) -> float:
    return 100 * (value - start) / max(end - start, 1)


def _format_minute(timestamp: int) -> str:
    if not 0 <= timestamp < _YEAR_10000_MS:
        return "-"
    return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M")
