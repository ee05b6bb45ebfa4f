"""The last part of `varve demo`: the history moves to object storage, and readers go on.

What is read afterwards is compared, by a digest of every record, with what was read before.
"""

import hashlib
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

import varve
from varve.cli.output import draw_bar
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Corrupt

SETTINGS: Final = {
    "remote.storage.enable": True,
    "local.retention.bytes": 200_000,
    "file.delete.delay.ms": 0,
}
_BAR_WIDTH: Final = 24


@dataclass(slots=True)
class Tiering:
    """What lay where before and after, and what was read through both."""

    place: str = ""
    records: int = 0
    hot_bytes_before: int = 0
    hot_bytes: int = 0
    cold_bytes: int = 0
    objects: int = 0
    copy_seconds: float = 0.0
    is_same: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def show_tiering(store: varve.Store, name: str, console: Console) -> Tiering:
    """Copies a topic's closed segments, lets them leave the local disk, and reads all again."""
    outcome = Tiering()
    partitions = store.partitions(name)
    outcome.records, before = _read_all(store, name)
    outcome.hot_bytes_before = _hot_bytes(store, name)
    topic = store.alter_topic(name, SETTINGS)
    started = time.monotonic()
    now_ms = SystemClock().now_ms()
    for partition in partitions:
        topic.partition(partition.partition).log.roll()
        report = store.tier.copy(partition, now_ms)
        if report.error is not None:
            raise Corrupt(f"the demo could not copy {partition}: {report.error}")
        outcome.objects += sum(len(segment.parts) for segment in report.segments)
        store.tier.expire(partition, now_ms)
    outcome.copy_seconds = round(time.monotonic() - started, 3)
    outcome.place = store.tier.objects.name
    statuses = [store.tier.status(partition) for partition in partitions]
    outcome.hot_bytes = sum(status.local_bytes for status in statuses)
    outcome.cold_bytes = sum(status.remote_bytes or 0 for status in statuses)
    console.print(
        f"\n[bold]11. Tier[/]    remote.storage.enable=true on {name}: {outcome.objects} objects "
        f"copied and checked in {outcome.copy_seconds:.2f} s, then off the local disk"
    )
    console.print(_picture(outcome))
    count, after = _read_all(store, name)
    outcome.is_same = (count, after) == (outcome.records, before)
    style, word = ("green", "the same") if outcome.is_same else ("red", "not the same")
    console.print(
        f"[bold]12. Read[/]    {count:,} records from the first offset on, through both tiers: "
        f"[bold {style}]{word}[/] as before"
    )
    if not outcome.is_same:
        raise Corrupt(f"topic {name} reads differently from the remote tier")
    return outcome


def _read_all(store: varve.Store, name: str) -> tuple[int, str]:
    """How many records there are, and the digest of all of them in order."""
    digest, count = hashlib.sha256(), 0
    for partition in store.partitions(name):
        for columns in store.topic(name).partition(partition.partition).columns():
            digest.update(columns.payload.tobytes())
            digest.update(columns.table.tobytes())
            count += len(columns)
    return count, digest.hexdigest()


def _hot_bytes(store: varve.Store, name: str) -> int:
    topic = store.topic(name)
    return sum(
        topic.partition(partition.partition).log.size for partition in store.partitions(name)
    )


def _picture(outcome: Tiering) -> Table:
    table = Table.grid(padding=(0, 2))
    largest = max(outcome.hot_bytes_before, outcome.cold_bytes, 1)
    for what, size, style in (
        ("local disk, before", outcome.hot_bytes_before, "yellow"),
        ("local disk", outcome.hot_bytes, "yellow"),
        ("object storage", outcome.cold_bytes, "cyan"),
    ):
        bar = Text(draw_bar(size, largest, _BAR_WIDTH), style)
        table.add_row(f"   {what}", bar, f"{size:,} bytes")
    return table
