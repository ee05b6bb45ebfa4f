"""Renders a verification as one HTML page: SVG pictures of the tier, and a table of findings.

Invariant  a strip of a picture has at most _BLOCKS_MAX rectangles: adjacent segments share one, in
           the colour of the worst of them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from markupsafe import Markup

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
_WIDTH: Final = 1000
_BLOCKS_MAX: Final = 600
_STRIP_HEIGHT: Final = 22
_BAR_HEIGHT: Final = 20
_LABEL_WIDTH: Final = 220


def render_page(result: VerifyResult) -> str:
    """Renders the page."""
    findings = gravest_first(result.findings)
    severities = Counter(finding.severity for finding in findings)
    partitions = sorted(result.partitions, key=lambda partition: -partition.damage_count)
    sizes = [segment.size for partition in partitions for segment in partition.segments]
    values = {
        "result": result,
        "counts": [(level, severities[level]) for level in Severity if severities[level]],
        "tiles": _tiles(result),
        "findings": findings,
        "findings_max": _FINDINGS_MAX,
        "topic_bars": draw_bars(_bytes_by_topic(partitions)),
        "size_bars": draw_sizes(sizes),
        "legend": _LEGEND,
        "partitions": [
            (partition, _draw_partition(partition, result.started_ms))
            for partition in partitions[:_PICTURES_MAX]
        ],
        "partitions_left": len(partitions) - _PICTURES_MAX,
    }
    return render_template("verification.html", values)


def _tiles(result: VerifyResult) -> list[tuple[str, str]]:
    partitions = result.partitions
    return [
        ("topics", f"{len({partition.partition.topic_id for partition in partitions}):,}"),
        ("partitions", f"{len(partitions):,}"),
        ("segments", f"{sum(len(partition.segments) for partition in partitions):,}"),
        ("records", f"{sum(partition.record_count for partition in partitions):,}"),
        ("read and verified", format_bytes(result.verified_bytes)),
    ]


def _bytes_by_topic(partitions: Sequence[PartitionVerdict]) -> list[tuple[str, int]]:
    sizes: Counter[str] = Counter()
    for partition in partitions:
        sizes[partition.partition.topic] += sum(partition.bytes.values())
    return sizes.most_common()


def _draw_partition(partition: PartitionVerdict, now_ms: int) -> Markup:
    if not partition.segments:
        return Markup()
    return draw_segments(partition, now_ms=now_ms) + draw_times(partition.segments)


# Pictures


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive segments that are drawn as one rectangle."""

    base_offset: int
    end_offset: int
    segments: tuple[SegmentVerdict, ...]

    @property
    def stale_share(self) -> float:
        size = sum(segment.size for segment in self.segments)
        return sum(segment.stale_bytes or 0 for segment in self.segments) / size if size else 0.0

    @property
    def max_timestamp(self) -> int:
        return max(segment.max_timestamp for segment in self.segments)

    @property
    def title(self) -> str:
        size = sum(segment.size for segment in self.segments)
        records = sum(segment.record_count for segment in self.segments)
        findings = sum(segment.finding_count for segment in self.segments)
        words = [
            f"offsets {self.base_offset:,} to {self.end_offset:,}",
            f"{records:,} records, {format_bytes(size)}",
            f"{self.stale_share:.0%} stale",
            f"newest {_day(self.max_timestamp)}",
        ]
        if len(self.segments) > 1:
            words.insert(0, f"{len(self.segments)} segments")
        if findings:
            words.append(f"{findings} findings")
        return escape("\n".join(words))


def _blocks(segments: Sequence[SegmentVerdict]) -> list[_Block]:
    step = -(-len(segments) // _BLOCKS_MAX)
    groups = [tuple(segments[start : start + step]) for start in range(0, len(segments), step)]
    return [_Block(group[0].base_offset, group[-1].end_offset, group) for group in groups]


def draw_segments(partition: PartitionVerdict, *, now_ms: int) -> Markup:
    """Draws the segments along the offsets: their findings, and below their age."""
    blocks = _blocks(partition.segments)
    first, end = blocks[0].base_offset, blocks[-1].end_offset + 1
    oldest = min(
        (block.max_timestamp for block in blocks if block.max_timestamp >= 0), default=now_ms
    )
    rows = [_axis_text(f"{first:,}", 0, 12, "start"), _axis_text(f"{end:,}", _WIDTH, 12, "end")]
    for block in blocks:
        left = _to_x(block.base_offset, first, end)
        width = max(_to_x(block.end_offset + 1, first, end) - left - 0.6, 0.8)
        colour, opacity = _state(block)
        rows.append(_rect(left, 18, width, _STRIP_HEIGHT, colour, opacity, block.title))
        age = _age(block.max_timestamp, oldest, now_ms)
        rows.append(_rect(left, 44, width, 8, "--cold", 0.15 + 0.85 * age, block.title))
    if first < partition.cleaned_up_to <= end:
        at = _to_x(partition.cleaned_up_to, first, end)
        rows.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="14" y2="56" stroke="var(--ink)" '
            f'stroke-dasharray="3 3"><title>clean below {partition.cleaned_up_to:,}</title></line>'
        )
    return _svg(58, rows, "segments along the offsets")


def _state(block: _Block) -> tuple[str, float]:
    if any(segment.damage_count for segment in block.segments):
        return "--bad", 1.0
    if any(segment.finding_count for segment in block.segments):
        return "--warn", 1.0
    if block.stale_share > 0:
        return "--stale", 0.35 + 0.65 * min(block.stale_share, 1.0)
    return "--good", 0.85


def _age(timestamp: int, oldest: int, now_ms: int) -> float:
    span = now_ms - oldest
    return (now_ms - timestamp) / span if span > 0 and timestamp >= 0 else 0.0


def draw_times(segments: Sequence[SegmentVerdict]) -> Markup:
    """Draws the range of timestamps of each segment on a time axis."""
    dated = [
        segment for segment in segments if 0 <= segment.first_timestamp <= segment.max_timestamp
    ]
    if not dated:
        return Markup()
    start = min(segment.first_timestamp for segment in dated)
    end = max(max(segment.max_timestamp for segment in dated), start + 1)
    rows = [
        _axis_text(_day(start), 0, 12, "start"),
        _axis_text("timestamps", _WIDTH / 2, 12, "middle"),
        _axis_text(_day(end), _WIDTH, 12, "end"),
    ]
    lanes = min(len(dated), 8)
    step = -(-len(dated) // _BLOCKS_MAX)
    for number, at in enumerate(range(0, len(dated), step)):
        group = dated[at : at + step]
        left = _to_x(min(member.first_timestamp for member in group), start, end)
        right = _to_x(max(member.max_timestamp for member in group), start, end)
        title = f"offsets {group[0].base_offset:,} to {group[-1].end_offset:,}"
        top = 18 + 5 * (number % lanes)
        rows.append(_rect(left, top, max(right - left, 1.0), 4, "--cold", 0.7, escape(title)))
    return _svg(20 + 5 * lanes, rows, "timestamps of segments")


def draw_bars(sizes: Sequence[tuple[str, int]], rows_max: int = 40) -> Markup:
    """Draws a bar for each name; those beyond `rows_max` share one more bar."""
    shown = list(sizes[:rows_max])
    if len(sizes) > rows_max:
        others_size = sum(size for _, size in sizes[rows_max:])
        shown.append((f"{len(sizes) - rows_max} others", others_size))
    largest = max((size for _, size in shown), default=0) or 1
    rows = []
    for number, (name, size) in enumerate(shown):
        top = number * (_BAR_HEIGHT + 6)
        width = max((_WIDTH - _LABEL_WIDTH - 110) * size / largest, 1.0)
        label = name if len(name) <= 32 else f"{name[:31]}…"
        rows.append(_axis_text(label, _LABEL_WIDTH - 8, top + 14, "end"))
        title = escape(f"{name}: {size:,} bytes")
        rows.append(_rect(_LABEL_WIDTH, top, width, _BAR_HEIGHT, "--cold", 0.8, title))
        rows.append(_axis_text(format_bytes(size), _LABEL_WIDTH + width + 8, top + 14, "start"))
    return _svg(max(len(shown) * (_BAR_HEIGHT + 6), 1), rows, "bytes by topic")


def draw_sizes(sizes: Sequence[int]) -> Markup:
    """Draws a histogram of segment sizes, by powers of two."""
    if not sizes:
        return Markup('<span class="soft">no segment</span>')
    counts = Counter(max(size, 1).bit_length() - 1 for size in sizes)
    low, high = min(counts), max(counts)
    width = min(_WIDTH / (high - low + 1), 90)
    most = max(counts.values())
    rows = []
    for number, power in enumerate(range(low, high + 1)):
        height = 70 * counts[power] / most
        left = number * width
        title = f"{counts[power]:,} segments from {format_bytes(2**power)} on"
        rows.append(_rect(left + 1, 90 - height, width - 4, height, "--good", 0.8, title))
        rows.append(_axis_text(format_bytes(2**power), left + width / 2, 104, "middle"))
        rows.append(_axis_text(f"{counts[power]:,}", left + width / 2, 84 - height, "middle"))
    return _svg(110, rows, "sizes of segments")


def _to_x(value: int, start: int, end: int) -> float:
    return _WIDTH * (value - start) / max(end - start, 1)


def _rect(
    left: float, top: float, width: float, height: float, colour: str, opacity: float, title: str
) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" '
        f'fill="var({colour})" fill-opacity="{opacity:.2f}"><title>{title}</title></rect>'
    )


def _axis_text(text: str, left: float, top: float, anchor: str) -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, rows: Sequence[str], label: str) -> Markup:
    """Wraps rows in an SVG element; their text is already escaped."""
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{label}">'
        f"{''.join(rows)}</svg>"
    )


def _day(timestamp: int) -> str:
    if not 0 <= timestamp < 253_402_300_800_000:
        return "-"
    return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M")
