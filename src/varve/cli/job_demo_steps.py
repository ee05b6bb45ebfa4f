"""What `varve job demo` does on Spark, step by step; each compares what it left with the stream."""

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from varve.cli.job_demo_log import Batches, Place, replay, write_changes
from varve.cli.job_demo_stream import SETTINGS, TOPIC, CustomerStream, key_of
from varve.cli.output import draw_bar
from varve.commit_log import LogSettings
from varve.foundation.errors import Corrupt
from varve.foundation.settings import parse_settings
from varve.foundation.units import format_bytes

if TYPE_CHECKING:
    from varve.jobs.tasks import TaskRunner
    from varve.jobs.tier.bucket import Bucket
    from varve.spark.console import SparkJob

TABLE: Final = "shop.customers"
QUESTION: Final = (
    "SELECT plan, count(*) AS customers, round(sum(cents) / 100) AS euros "
    "FROM customers GROUP BY plan ORDER BY plan"
)
_BAR_WIDTH: Final = 28
_PERSON: Final = 42
_ALL: Final = 1 << 62


@dataclass
class Story:
    """What the steps share, and what they found."""

    place: Place
    stream: CustomerStream
    console: Console
    facts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def batches(self) -> Batches:
        """The stream, which is written in two parts."""
        return self.stream.batches()

    @property
    def address(self) -> "Bucket":
        from varve.jobs.tier.bucket import Bucket

        return Bucket(self.place.remote)

    def note(self, name: str, value: object) -> None:
        self.facts[name] = value

    def tell(self, title: str, text: str) -> None:
        self.console.print(f"[bold]{title:<14}[/]{text}", highlight=False, soft_wrap=True)

    def check(self, found: dict[bytes, bytes], what: str) -> None:
        """Raises Corrupt unless a state is the stream's."""
        wanted = self.stream.state()
        if found != wanted:
            differing = sum(found.get(key) != value for key, value in wanted.items())
            more = len(found.keys() - wanted.keys())
            raise Corrupt(
                f"{what}: {differing} of {len(wanted)} customers differ and {more} should not be "
                f"there; seed {self.facts['seed']}"
            )


def _runner(job: "SparkJob") -> "TaskRunner":
    from varve.spark.runner import SparkRunner

    return SparkRunner(job.spark)


def compact_remote(story: Story, job: "SparkJob") -> None:
    """Compacts the remote tier, and draws it before and after."""
    from varve.cleaning.removals.removal import Reason
    from varve.jobs.compact.job import compact
    from varve.jobs.compact.settings import CompactSettings

    settings = CompactSettings(log=parse_settings(LogSettings, SETTINGS, f"topic {TOPIC}"))
    result = job.run(
        lambda: compact(story.address, [TOPIC], settings=settings, runner=_runner(job))
    )
    for partition_result in result.partitions:
        if partition_result.error is not None or partition_result.held:
            raise Corrupt(
                f"compaction of {partition_result.path}: "
                f"{partition_result.error or partition_result.held}"
            )
    before = sum(partition_result.bytes_before for partition_result in result.partitions)
    after = sum(partition_result.bytes_after for partition_result in result.partitions)
    records = sum(sum(partition_result.records.values()) for partition_result in result.partitions)
    kept = sum(
        partition_result.records.get(Reason.KEPT, 0) for partition_result in result.partitions
    )
    story.note("compaction", {"bytes_before": before, "bytes_after": after, "kept": kept})
    story.tell(
        "3. Compact",
        f"in object storage, on Spark: {records:,} records, the latest {kept:,} stay "
        f"({result.elapsed_ms / 1000:.1f} s)",
    )
    _draw(story, (("before", before), ("after", after)))


def bootstrap(story: Story, job: "SparkJob") -> None:
    """Takes a snapshot, lets the log go on, and begins a consumer from both."""
    from varve.jobs.snapshot.snapshot import take_snapshot
    from varve.jobs.snapshot.store import open_snapshot

    place = story.place
    taken = job.run(
        lambda: take_snapshot(
            TOPIC,
            place.snapshots,
            address=story.address,
            directories=[place.directory],
            runner=_runner(job),
        )
    )
    late = write_changes(place, story.batches, _ALL)
    started = time.monotonic()
    snapshot = open_snapshot(place.snapshots)
    state: dict[bytes, bytes] = {}
    for batch in snapshot.batches(columns=["key", "value"]):
        state.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
    loaded = len(state)
    replayed = replay(place, state, snapshot.resume_offsets)
    seconds = time.monotonic() - started
    story.check(state, "a consumer that began with the snapshot")
    story.note("bootstrap", {"loaded": loaded, "replayed": replayed, "seconds": round(seconds, 3)})
    story.tell(
        "4. Snapshot",
        f"{loaded:,} rows as Parquet ({format_bytes(taken.bytes_written)}, "
        f"{taken.elapsed_ms / 1000:.1f} s); then {late:,} more changes were written",
    )
    story.tell(
        "5. Bootstrap",
        f"a consumer loaded the snapshot and read {replayed:,} records behind it in "
        f"{seconds:.1f} s: [bold green]the state of the stream[/], {len(state):,} customers",
    )


def make_table(story: Story, job: "SparkJob") -> None:
    """The topic as an Iceberg table, asked by SQL."""
    from varve.jobs.table.catalog import CatalogAddress
    from varve.jobs.table.definition import TableMode, TableSettings, ValueFormat
    from varve.jobs.table.sync import sync_table
    from varve.spark.functions import read_table

    place = story.place
    catalog = CatalogAddress(warehouse=place.warehouse)
    result = job.run(
        lambda: sync_table(
            TOPIC,
            TABLE,
            catalog=catalog,
            address=story.address,
            directories=[place.directory],
            settings=TableSettings(mode=TableMode.UPSERT, format=ValueFormat.JSON),
            runner=_runner(job),
        )
    )
    story.tell(
        "6. Table",
        f"{TABLE} in Iceberg, one row per customer: {result.records:,} records read, "
        f"{result.files} files ({result.elapsed_ms / 1000:.1f} s)",
    )
    frame = read_table(job.spark, catalog, TABLE)
    frame.createOrReplaceTempView("customers")
    rows = job.run(lambda: job.spark.sql(QUESTION).collect())
    count = sum(row["customers"] for row in rows)
    if count != len(story.stream.state()):
        raise Corrupt(f"the table has {count} rows, the stream {len(story.stream.state())}")
    story.note("table", {"rows": count, "files": result.files})
    _show_rows(story, [row.asDict() for row in rows])


def erase_person(story: Story, job: "SparkJob") -> None:
    """Erases one customer from everything, and checks the receipt and the outcome."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from varve.jobs.erase.erasure import erase
    from varve.jobs.erase.receipt import SigningKey, encode_receipt, render_receipt, verify_receipt
    from varve.jobs.erase.request import ErasureRequest

    place, key = story.place, key_of(_PERSON)
    signing = SigningKey(Ed25519PrivateKey.generate())
    result = job.run(
        lambda: erase(
            ErasureRequest(topics=(TOPIC,), id="demo", keys=frozenset([key])),
            address=story.address,
            directories=[place.directory],
            signing_key=signing,
            runner=_runner(job),
        )
    )
    assert result.receipt is not None, "an erasure without a grace time ends with its receipt"
    receipt = encode_receipt(result.receipt)
    verify_receipt(receipt, signing.private.public_key(), where="the receipt")
    Path(place.receipt).write_text(render_receipt(result.receipt), encoding="utf-8")
    left = _look_for(story, job, key)
    if left:
        raise Corrupt(f"{left} records of {key.decode()} were found after the erasure")
    story.note("erasure", {"records": result.records, "left": left})
    story.tell(
        "7. Erase",
        f"{key.decode()}: {result.records} records, and its rows in the snapshot and the table "
        f"({result.elapsed_ms / 1000:.1f} s); asked again: [bold green]none left[/]",
    )
    path = f": {place.receipt}" if place.is_kept else ""
    story.tell("", f"the receipt is signed, and the signature holds{path}")


def _look_for(story: Story, job: "SparkJob", key: bytes) -> int:
    """Rows of a key by the source, over both tiers."""
    from varve.spark.data_source import FORMAT

    options = {
        "url": story.place.remote,
        "directory": story.place.directory,
        "topic": TOPIC,
        "isolation": "read_uncommitted",
    }
    return job.run(
        lambda: int(
            job.spark.read.format(FORMAT)
            .options(**options)
            .load()
            .where(f"key = X'{key.hex()}'")
            .count()
        )
    )


def verify_all(story: Story, job: "SparkJob") -> None:
    """Every object of the remote tier, and a page with pictures."""
    from varve.jobs.verify.page import render_page
    from varve.jobs.verify.verification import verify

    result = job.run(lambda: verify(story.address, [TOPIC], runner=_runner(job)))
    Path(story.place.page).write_text(render_page(result), encoding="utf-8")
    if result.has_damage:
        raise Corrupt(f"{len(result.findings)} findings, the first: {result.findings[0]}")
    story.note("verified_bytes", result.verified_bytes)
    path = f"; {story.place.page}" if story.place.is_kept else ""
    story.tell(
        "8. Verify",
        f"{format_bytes(result.verified_bytes)} of objects, keys and indexes read and compared: "
        f"[bold green]no damage[/] ({result.elapsed_ms / 1000:.1f} s){path}",
    )


def _draw(story: Story, sizes: tuple[tuple[str, int], ...]) -> None:
    table = Table.grid(padding=(0, 2))
    largest = max([size for _, size in sizes] + [1])
    for name, size in sizes:
        bar = Text(draw_bar(size, largest, _BAR_WIDTH), "cyan")
        table.add_row(f"{'':<12}{name}", bar, format_bytes(size))
    story.console.print(table)


def _show_rows(story: Story, rows: list[dict[str, Any]]) -> None:
    table = Table(*rows[0].keys() if rows else (), box=None, padding=(0, 3), pad_edge=False)
    for row in rows:
        table.add_row(
            *(f"{one:,.0f}" if isinstance(one, int | float) else str(one) for one in row.values())
        )
    from rich.padding import Padding

    story.console.print(Padding(table, (0, 0, 0, 14)))
