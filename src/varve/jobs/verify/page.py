"""A verification as one HTML page: pictures of the tier, and a table of what was found.

Invariant  the page needs nothing from elsewhere, runs no script, and shows every text as text.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from varve.commit_log.finding import Severity
from varve.jobs.verify.findings import VerifyFinding, gravest_first
from varve.jobs.verify.pictures import (
    draw_bars,
    draw_segments,
    draw_sizes,
    draw_times,
    show_bytes,
)
from varve.jobs.verify.result import PartitionVerdict, SegmentVerdict, VerifyResult

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
        ("topics", f"{len({one.home.topic_id for one in partitions}):,}"),
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
        sizes[one.home.topic] += sum(one.bytes.values())
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
    name = escape(f"{one.home.topic}-{one.home.partition}")
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
