"""`varve job demo`: the life of a table's changes, from the first write to an erasure.

Nothing is staged: what every step leaves is compared with a dictionary that saw the same stream,
and the receipt is asked for again by whoever holds the public key.
"""

import secrets
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from varve.cli import options, spark_options
from varve.cli.command import command
from varve.cli.demo_stage import demo_directory, writing_progress
from varve.cli.job_demo_log import Place, move_to_remote, write_changes
from varve.cli.job_demo_steps import (
    Story,
    bootstrap,
    compact_remote,
    erase_person,
    make_table,
    verify_all,
)
from varve.cli.job_demo_stream import TOPIC, CustomerStream
from varve.cli.job_printing import open_spark_job
from varve.cli.output import Output
from varve.cli.spark_options import JobOptions
from varve.foundation.units import format_bytes

_LATE_COUNT: Final = 20_000
"""Changes written when the snapshot is taken, for a consumer to catch up with."""


@command(examples=("varve job demo", "varve job demo -d story --records 500000 --seed 7 --json"))
@click.option(
    "-d",
    "--dir",
    "directory",
    type=options.DIRECTORY,
    metavar="DIR",
    help="A new directory to use and keep.",
)
@click.option(
    "--records",
    type=click.IntRange(min=10_000),
    default=2_000_000,
    show_default=True,
    metavar="N",
    help="The number of changes.",
)
@click.option("--seed", type=int, metavar="N", help="Repeat the stream of another run.")
@spark_options.spark
@options.output
def demo(
    directory: Path | None,
    records: int,
    seed: int | None,
    job_options: JobOptions,
    output: Output,
) -> None:
    """Write changes of a table, and take them through every job.

    Changes of customers are written to a compacted topic, copied to object storage (a directory
    beside the first) and compacted there on Spark. A consumer starts from a snapshot, SQL reads an
    Iceberg table, and one person is erased from log, snapshot and table with a signed receipt.
    Finally every object is verified.
    """
    console = Console(stderr=output.is_json, quiet=output.is_json)
    chosen = secrets.randbelow(1 << 32) if seed is None else seed
    with demo_directory(directory) as root:
        place = Place(str(root.absolute()), is_kept=directory is not None)
        story = Story(place, CustomerStream(seed=chosen, count=records), console)
        story.note("seed", chosen)
        started = time.monotonic()
        _write(story, records)
        with open_spark_job("demo", job_options, output) as job:
            compact_remote(story, job)
            bootstrap(story, job)
            make_table(story, job)
            erase_person(story, job)
            verify_all(story, job)
        story.note("seconds", round(time.monotonic() - started, 1))
    if output.is_json:
        output.print_object("demo", story.facts)
        return
    console.print(f"\nAll of it took {story.facts['seconds']:.0f} s.")
    _suggest(directory, story, console)


def _write(story: Story, count: int) -> None:
    """All but the late changes, and off to object storage with them."""
    stream = story.stream
    story.tell(
        "1. Write",
        f"{count:,} changes of {stream.customers:,} customers as JSON, keyed by id; seed "
        f"{story.facts['seed']}",
    )
    started = time.monotonic()
    with writing_progress(story.console, count) as show:
        written = write_changes(story.place, story.batches, count - _late(count), show)
    story.note("written", written)
    tiered = move_to_remote(story.place)
    story.note("cold_bytes", tiered.cold_bytes)
    story.tell(
        "2. Tier",
        f"{format_bytes(tiered.cold_bytes)} in {tiered.cold_segments} segments are in object "
        f"storage, {format_bytes(tiered.hot_bytes)} on the local disk "
        f"({time.monotonic() - started:.1f} s for both)",
    )


def _late(count: int) -> int:
    """No more than half of them."""
    return min(_LATE_COUNT, count // 2)


def _suggest(directory: Path | None, story: Story, console: Console) -> None:
    place = story.place if directory else Place("story")
    commands = [
        *([] if directory else [f"varve job demo --dir {place.directory}"]),
        f"varve job query {TOPIC} --dir {place.directory} --latest --limit 5",
        f"varve job snapshot {TOPIC} --dir {place.directory} --to {place.snapshots}",
        f"varve job verify --dir {place.directory}",
        f"varve audit --dir {place.directory}",
    ]
    console.print("\n[bold]Try next[/]")
    for line in commands:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
