"""A verification as one HTML page: pictures of the tier as SVG, and a table of what was found.

Invariant  the page needs nothing from elsewhere, runs no script, and shows every text as text.
           However many segments there are, a strip has a limited number of rectangles: neighbours
           share one, and the worst of them gives its colour.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from varve.commit_log.check.findings import Severity
from varve.jobs.verify.result import (
    PartitionVerdict,
    SegmentVerdict,
    VerifyFinding,
    VerifyResult,
    gravest_first,
)

_ROWS_MAX: Final = 2000
"""Findings in the table; the JSON has all of them."""
_PICTURES_MAX: Final = 200
"""Partitions with a picture of their own, those with findings first."""

_STYLE: Final = """
:root{--ink:#1d2733;--soft:#5c6b7a;--line:#dde3ea;--page:#fbfcfd;--card:#fff;--good:#2f9e6e;
--mild:#8fcfb2;--stale:#d9a441;--bad:#d2453d;--warn:#e08a2e;--cold:#3f74c8;--fresh:#9bc1ff}
@media(prefers-color-scheme:dark){:root{--ink:#e4eaf1;--soft:#93a2b3;--line:#2b3644;--page:#11161d;
--card:#18202a;--good:#3fb883;--mild:#2c6b50;--stale:#d9a441;--bad:#f0655c;--warn:#f0a04b;
--cold:#5b93ea;--fresh:#2f4a75}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,Segoe UI,Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:36px 0 10px}
h3{font-size:15px;margin:18px 0 4px}
.soft{color:var(--soft)}.card{background:var(--card);border:1px solid var(--line);
border-radius:10px;padding:14px 16px;margin:10px 0;overflow-x:auto}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:18px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 16px;
min-width:130px}.tile b{display:block;font-size:22px}
.verdict{font-size:17px;padding:12px 16px;border-radius:10px;color:#fff;background:var(--good)}
.verdict.bad{background:var(--bad)}
table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;color:var(--soft);font-weight:600}
th,td{padding:6px 8px;border-bottom:1px solid var(--line);vertical-align:top;
overflow-wrap:anywhere}
code{font:12px ui-monospace,SFMono-Regular,Menlo,monospace}
.error{color:var(--bad);font-weight:600}.warning{color:var(--warn);font-weight:600}
.note{color:var(--soft)}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin:0 5px 0 14px;
vertical-align:-1px}
"""
_WIDTH: Final = 1000
_BLOCKS_MAX: Final = 600
_STRIP: Final = 22
_BAR: Final = 20
_LABEL: Final = 220
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def render_page(result: VerifyResult) -> str:
    """The whole page."""
    findings = gravest_first(result.findings)
    body = [
        f"<h1>Verification of {escape(result.store)}</h1>",
        f'<div class="soft">{_moment(result.started_ms)}, {result.elapsed_ms / 1000:.1f} s'
        + (f", with {escape(result.directory)}" if result.directory else "")
        + "</div>",
        _verdict(result, findings),
        _tiles(result),
        _findings(findings),
        "<h2>Bytes by topic</h2>",
        f'<div class="card">{draw_bars(_bytes_by_topic(result.partitions))}</div>',
        "<h2>Sizes of segments</h2>",
        f'<div class="card">{draw_sizes([one.size for one in _segments(result)])}</div>',
        "<h2>Partitions</h2>",
        _legend(),
        *_pictures(result),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<title>varve verify</title>"
        f"<style>{_STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _segments(result: VerifyResult) -> list[SegmentVerdict]:
    return [one for partition in result.partitions for one in partition.segments]


def _verdict(result: VerifyResult, findings: Sequence[VerifyFinding]) -> str:
    counts = Counter(one.severity for one in findings)
    words = ", ".join(
        f"{counts[one]} {one}{'s' if counts[one] > 1 else ''}" for one in Severity if counts[one]
    )
    state = "verdict bad" if result.has_damage else "verdict"
    text = "Damage was found" if result.has_damage else "No damage"
    return f'<p class="{state}">{text}{f": {words}" if words else "; nothing to report"}.</p>'


def _tiles(result: VerifyResult) -> str:
    partitions = result.partitions
    tiles = (
        ("topics", f"{len({one.partition.topic_id for one in partitions}):,}"),
        ("partitions", f"{len(partitions):,}"),
        ("segments", f"{sum(len(one.segments) for one in partitions):,}"),
        ("records", f"{sum(one.record_count for one in partitions):,}"),
        ("read and verified", show_bytes(result.verified_bytes)),
    )
    cells = "".join(
        f'<div class="tile"><b>{value}</b><span class="soft">{name}</span></div>'
        for name, value in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _bytes_by_topic(partitions: Sequence[PartitionVerdict]) -> list[tuple[str, int]]:
    sizes: Counter[str] = Counter()
    for one in partitions:
        sizes[one.partition.topic] += sum(one.bytes.values())
    return sizes.most_common()


def _findings(findings: Sequence[VerifyFinding]) -> str:
    if not findings:
        return ""
    rows = "".join(_row(one) for one in findings[:_ROWS_MAX])
    more = len(findings) - _ROWS_MAX
    rest = f'<p class="soft">and {more:,} more; --json has all.</p>' if more > 0 else ""
    return (
        '<h2>Findings</h2><div class="card"><table><tr><th>Severity</th><th>Rule</th><th>Where</th>'
        f"<th>What</th><th>Remedy</th></tr>{rows}</table>{rest}</div>"
    )


def _row(one: VerifyFinding) -> str:
    compared = ""
    if one.expected or one.found:
        compared = (
            f'<br><span class="soft">expected <code>{escape(one.expected)}</code>, '
            f"found <code>{escape(one.found)}</code></span>"
        )
    return (
        f'<tr><td class="{escape(one.severity)}">{escape(one.severity)}</td>'
        f"<td>{escape(one.rule)}</td><td><code>{escape(one.place)}</code></td>"
        f"<td>{escape(one.message)}{compared}</td><td>{escape(one.remedy)}</td></tr>"
    )


def _legend() -> str:
    keys = (
        ("--good", "in order"),
        ("--stale", "stale, the fuller the more"),
        ("--warn", "warning or note"),
        ("--bad", "damaged"),
        ("--cold", "age: the fuller the older"),
    )
    return (
        "<p class='soft'>"
        + "".join(
            f'<span class="key" style="background:var({colour})"></span>{name}'
            for colour, name in keys
        )
        + "</p>"
    )


def _pictures(result: VerifyResult) -> list[str]:
    order = sorted(result.partitions, key=lambda one: -one.damage_count)
    drawn = [_picture(one, result.started_ms) for one in order[:_PICTURES_MAX]]
    more = len(order) - _PICTURES_MAX
    if more > 0:
        drawn.append(f'<p class="soft">and {more:,} more partitions, without a picture.</p>')
    return drawn


def _picture(one: PartitionVerdict, now_ms: int) -> str:
    name = escape(f"{one.partition.topic}-{one.partition.partition}")
    head = (
        f"{len(one.segments):,} segments, {one.record_count:,} records, "
        f"{show_bytes(one.log_bytes)}, clean below offset {one.cleaned_up_to:,}, "
        f"manifest {one.manifest_version:,}"
    )
    if not one.segments:
        return f'<div class="card"><h3>{name}</h3><span class="soft">no segment</span></div>'
    return (
        f'<div class="card"><h3>{name}</h3><span class="soft">{head}</span>'
        f"{draw_segments(one, now_ms=now_ms)}{draw_times(one.segments)}</div>"
    )


# Pictures


def show_bytes(size: float) -> str:
    """A size in the unit that suits it."""
    unit = min(int(math.log(size, 1024)), len(_UNITS) - 1) if size >= 1 else 0
    return f"{size / 1024**unit:,.{1 if unit else 0}f} {_UNITS[unit]}"


@dataclass(frozen=True, slots=True)
class _Block:
    """Segments that follow each other, drawn as one."""

    base_offset: int
    end_offset: int
    segments: tuple[SegmentVerdict, ...]

    @property
    def stale_share(self) -> float:
        size = sum(one.size for one in self.segments)
        return sum(one.stale_bytes or 0 for one in self.segments) / size if size else 0.0

    @property
    def max_timestamp(self) -> int:
        return max(one.max_timestamp for one in self.segments)

    @property
    def title(self) -> str:
        size = sum(one.size for one in self.segments)
        records = sum(one.record_count for one in self.segments)
        found = sum(one.finding_count for one in self.segments)
        words = [
            f"offsets {self.base_offset:,} to {self.end_offset:,}",
            f"{records:,} records, {show_bytes(size)}",
            f"{self.stale_share:.0%} stale",
            f"newest {_day(self.max_timestamp)}",
        ]
        if len(self.segments) > 1:
            words.insert(0, f"{len(self.segments)} segments")
        if found:
            words.append(f"{found} findings")
        return escape("\n".join(words))


def _blocks(segments: Sequence[SegmentVerdict]) -> list[_Block]:
    step = -(-len(segments) // _BLOCKS_MAX)
    groups = [tuple(segments[at : at + step]) for at in range(0, len(segments), step)]
    return [_Block(one[0].base_offset, one[-1].end_offset, one) for one in groups]


def draw_segments(partition: PartitionVerdict, *, now_ms: int) -> str:
    """Segments along the offsets: how they are, and below how old."""
    blocks = _blocks(partition.segments)
    first, end = blocks[0].base_offset, blocks[-1].end_offset + 1
    oldest = min((one.max_timestamp for one in blocks if one.max_timestamp >= 0), default=now_ms)
    rows = [_axis_text(f"{first:,}", 0, 12, "start"), _axis_text(f"{end:,}", _WIDTH, 12, "end")]
    for one in blocks:
        left = _place(one.base_offset, first, end)
        width = max(_place(one.end_offset + 1, first, end) - left - 0.6, 0.8)
        colour, opacity = _state(one)
        rows.append(_rect(left, 18, width, _STRIP, colour, opacity, one.title))
        age = _age(one.max_timestamp, oldest, now_ms)
        rows.append(_rect(left, 44, width, 8, "--cold", 0.15 + 0.85 * age, one.title))
    if first < partition.cleaned_up_to <= end:
        at = _place(partition.cleaned_up_to, first, end)
        rows.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="14" y2="56" stroke="var(--ink)" '
            f'stroke-dasharray="3 3"><title>clean below {partition.cleaned_up_to:,}</title></line>'
        )
    return _svg(58, rows, "segments along the offsets")


def _state(block: _Block) -> tuple[str, float]:
    if any(one.damage_count for one in block.segments):
        return "--bad", 1.0
    if any(one.finding_count for one in block.segments):
        return "--warn", 1.0
    if block.stale_share > 0:
        return "--stale", 0.35 + 0.65 * min(block.stale_share, 1.0)
    return "--good", 0.85


def _age(timestamp: int, oldest: int, now_ms: int) -> float:
    span = now_ms - oldest
    return (now_ms - timestamp) / span if span > 0 and timestamp >= 0 else 0.0


def draw_times(segments: Sequence[SegmentVerdict]) -> str:
    """From the first to the largest timestamp of each segment, along the time."""
    known = [one for one in segments if 0 <= one.first_timestamp <= one.max_timestamp]
    if not known:
        return ""
    start = min(one.first_timestamp for one in known)
    end = max(max(one.max_timestamp for one in known), start + 1)
    rows = [
        _axis_text(_day(start), 0, 12, "start"),
        _axis_text("timestamps", _WIDTH / 2, 12, "middle"),
        _axis_text(_day(end), _WIDTH, 12, "end"),
    ]
    lanes = min(len(known), 8)
    step = -(-len(known) // _BLOCKS_MAX)
    for number, at in enumerate(range(0, len(known), step)):
        group = known[at : at + step]
        left = _place(min(one.first_timestamp for one in group), start, end)
        right = _place(max(one.max_timestamp for one in group), start, end)
        title = f"offsets {group[0].base_offset:,} to {group[-1].end_offset:,}"
        top = 18 + 5 * (number % lanes)
        rows.append(_rect(left, top, max(right - left, 1.0), 4, "--cold", 0.7, escape(title)))
    return _svg(20 + 5 * lanes, rows, "timestamps of segments")


def draw_bars(sizes: Sequence[tuple[str, int]], rows_max: int = 40) -> str:
    """A bar for each, the largest first; what does not fit is one bar more."""
    shown = list(sizes[:rows_max])
    if len(sizes) > rows_max:
        rest = sum(size for _, size in sizes[rows_max:])
        shown.append((f"{len(sizes) - rows_max} others", rest))
    largest = max((size for _, size in shown), default=0) or 1
    rows = []
    for number, (name, size) in enumerate(shown):
        top = number * (_BAR + 6)
        width = max((_WIDTH - _LABEL - 110) * size / largest, 1.0)
        label = name if len(name) <= 32 else f"{name[:31]}…"
        rows.append(_axis_text(label, _LABEL - 8, top + 14, "end"))
        title = escape(f"{name}: {size:,} bytes")
        rows.append(_rect(_LABEL, top, width, _BAR, "--cold", 0.8, title))
        rows.append(_axis_text(show_bytes(size), _LABEL + width + 8, top + 14, "start"))
    return _svg(max(len(shown) * (_BAR + 6), 1), rows, "bytes by topic")


def draw_sizes(sizes: Sequence[int]) -> str:
    """How many segments there are of each size, by powers of two."""
    if not sizes:
        return '<span class="soft">no segment</span>'
    counts = Counter(max(size, 1).bit_length() - 1 for size in sizes)
    low, high = min(counts), max(counts)
    width = min(_WIDTH / (high - low + 1), 90)
    most = max(counts.values())
    rows = []
    for number, power in enumerate(range(low, high + 1)):
        height = 70 * counts[power] / most
        left = number * width
        title = f"{counts[power]:,} segments from {show_bytes(2**power)} on"
        rows.append(_rect(left + 1, 90 - height, width - 4, height, "--good", 0.8, title))
        rows.append(_axis_text(show_bytes(2**power), left + width / 2, 104, "middle"))
        rows.append(_axis_text(f"{counts[power]:,}", left + width / 2, 84 - height, "middle"))
    return _svg(110, rows, "sizes of segments")


def _place(value: int, start: int, end: int) -> float:
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


def _svg(height: float, rows: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{label}">'
        f"{''.join(rows)}</svg>"
    )


def _day(timestamp: int) -> str:
    if not 0 <= timestamp < 253_402_300_800_000:
        return "-"
    return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M")
