"""The second half of `varve demo`: compact a keyed stream, and show what went and why.

What is left is compared with a dictionary that saw the same stream.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

import varve
from varve.cleaning.removals.removal import Reason
from varve.cli.output import draw_bar
from varve.foundation.errors import Corrupt

TOPIC: Final = "balances"
SETTINGS: Final[dict[str, str | int]] = {"cleanup.policy": "compact", "segment.bytes": 500_000}

_ACCOUNTS: Final = 2_000
_CLOSED_EACH: Final = 40
_MIX: Final = 0xBF58476D1CE4E5B9
_BAR_WIDTH: Final = 20


@dataclass(slots=True)
class Compaction:
    """What was written, what cleaning did to it, and what was found again."""

    written: int = 0
    keys: int = 0
    segments_before: dict[int, int] = field(default_factory=dict)
    segments_after: dict[int, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    clean_seconds: float = 0.0
    balance: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    key: str = ""
    value: str = ""
    get_seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def account_records(seed: int, count: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Balances by account; now and then an account is closed, which deletes its key."""
    for number in range(count):
        mixed = (number + seed + 1) * _MIX & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
        key = b"account-%d" % (mixed % _ACCOUNTS)
        is_closed = mixed >> 40 & 0xFFFF < 0x10000 // _CLOSED_EACH
        text = f'{{"cents": {(mixed >> 20) % 1_000_000}, "entry": {number}}}'
        yield key, None if is_closed else text.encode()


def show_compaction(store: varve.Store, seed: int, count: int, console: Console) -> Compaction:
    """Writes, cleans, compares and looks a key up."""
    outcome = Compaction(written=count)
    topic = store.create_topic(TOPIC, settings=SETTINGS)
    latest: dict[bytes, bytes | None] = dict(account_records(seed, count))
    topic.append_many(account_records(seed, count), codec="none")
    outcome.keys = len(latest)
    deleted = sum(value is None for value in latest.values())
    console.print(
        f"\n[bold]6. Update[/]   {count:,} balances of {outcome.keys:,} accounts into a topic with "
        f"cleanup.policy=compact; {deleted:,} end deleted"
    )
    _clean(store, topic, outcome, console)
    _show_balance(store, outcome, console)
    _compare(topic, latest, outcome, console)
    _look_up(topic, latest, outcome, console)
    if outcome.lost:
        raise Corrupt(f"{outcome.lost} latest values were lost by compaction; seed {seed}")
    return outcome


def _sizes(topic: varve.Topic) -> dict[int, int]:
    return {segment.base_offset: segment.size for segment in topic.partition().log.view}


def _clean(store: varve.Store, topic: varve.Topic, outcome: Compaction, console: Console) -> None:
    topic.partition().log.roll()
    outcome.segments_before = _sizes(topic)
    started = time.monotonic()
    (cleaned,) = store.clean(TOPIC)
    outcome.clean_seconds = round(time.monotonic() - started, 3)
    outcome.segments_after = _sizes(topic)
    assert cleaned.compaction is not None
    outcome.records = {reason.value: n for reason, n in cleaned.compaction.records.items()}
    before, after = (sum(one.values()) for one in (outcome.segments_before, outcome.segments_after))
    console.print(
        f"[bold]7. Clean[/]    in {outcome.clean_seconds:.2f} s: {before:,} to {after:,} bytes, "
        f"{100 * (before - after) / before:.0f} % less\n"
    )
    console.print(_picture(outcome))


def _picture(outcome: Compaction) -> Table:
    largest = max(outcome.segments_before.values())
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("segment", justify="right", no_wrap=True)
    for title, style in (("before", "blue"), ("after", "green")):
        table.add_column(title, justify="right", no_wrap=True)
        table.add_column("", style=style, no_wrap=True, min_width=_BAR_WIDTH)
    for base in sorted({*outcome.segments_before, *outcome.segments_after}):
        cells: list[str | Text] = [str(base)]
        for sizes in (outcome.segments_before, outcome.segments_after):
            size = sizes.get(base)
            cells.append("-" if size is None else f"{size:,}")
            cells.append(Text(draw_bar(size or 0, largest, _BAR_WIDTH)))
        table.add_row(*cells)
    return table


def _show_balance(store: varve.Store, outcome: Compaction, console: Console) -> None:
    (report,) = store.audit(TOPIC)
    balances = [entry.removal for entry in report.entries]
    inputs = sum(removal.records_before for removal in balances)
    reasons = {
        reason.value: sum(removal.records.get(reason, 0) for removal in balances)
        for reason in Reason
        if any(removal.records.get(reason) for removal in balances)
    }
    outcome.balance = {"inputs": inputs, "reasons": reasons, "is_clean": report.is_clean}
    counts = " + ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    verdict = "[bold green]it adds up[/]" if report.is_clean else "[bold red]it does not add up[/]"
    console.print(f"\n[bold]8. Balance[/]  {inputs:,} records = {counts}: {verdict}")


def _compare(
    topic: varve.Topic, latest: dict[bytes, bytes | None], outcome: Compaction, console: Console
) -> None:
    found = {record.key: record.value for record in topic.read()}
    outcome.lost = sum(
        value is not None and found.get(key) != value for key, value in latest.items()
    )
    live = sum(value is not None for value in latest.values())
    style = "red" if outcome.lost else "green"
    console.print(
        f"[bold]9. Compare[/]  {live:,} latest values by a dictionary of the same stream: "
        f"[bold {style}]{outcome.lost or 'none'} lost[/]"
    )


def _look_up(
    topic: varve.Topic, latest: dict[bytes, bytes | None], outcome: Compaction, console: Console
) -> None:
    key = next(key for key, value in latest.items() if value is not None)
    started = time.monotonic()
    record = topic.get(key)
    outcome.get_seconds = round(time.monotonic() - started, 4)
    assert record is not None
    outcome.key = key.decode()
    outcome.value = (record.value or b"").decode()
    console.print(
        f"[bold]10. Get[/]     {outcome.key} is {outcome.value} at offset {record.offset}, found "
        f"through the key indexes in {1000 * outcome.get_seconds:.1f} ms",
        highlight=False,
    )
