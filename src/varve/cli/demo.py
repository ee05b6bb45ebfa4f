"""`varve demo`: write a keyed stream, kill the writer, recover, compact, and move it to a bucket.

Nothing is staged but the torn tail: the writer is a process of its own that is killed in the
middle, and what it had acknowledged is compared, record by record, with what is found.
"""

import itertools
import random
import secrets
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

import varve
from varve.cli import demo_compaction, options
from varve.cli.command import command
from varve.cli.demo_compaction import show_compaction
from varve.cli.demo_stage import demo_directory, writing_progress
from varve.cli.demo_stream import PARTITION_COUNT, TOPIC, record_at
from varve.cli.demo_tier import show_tiering
from varve.cli.output import Output
from varve.cli.segment_picture import draw_segments, topic_facts
from varve.commit_log.names import LOG
from varve.embedded.topic import partition_of
from varve.foundation.errors import Corrupt, Unavailable

_TORN_BYTES: Final = 777
_KILL_SHARES: Final = (0.45, 0.9)
_KILL_DELAY_SECONDS: Final = 0.003


@dataclass(slots=True)
class _Outcome:
    """What the demo did and found."""

    directory: str
    seed: int
    acknowledged: int = 0
    end_offsets: list[int] = field(default_factory=lambda: [0] * PARTITION_COUNT)
    found: int = 0
    lost: int = 0
    torn_bytes: int = 0
    recovered: dict[str, list[str]] = field(default_factory=dict)
    write_seconds: float = 0.0
    recovery_seconds: float = 0.0
    segments: list[dict[str, object]] = field(default_factory=list)
    compaction: dict[str, Any] = field(default_factory=dict)
    tiering: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@command(examples=("varve demo", "varve demo -d demo-data --records 500000 --seed 7"))
@click.option(
    "-d",
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A new directory to use and keep; default a temporary one.",
)
@click.option(
    "--records",
    type=click.IntRange(min=1000),
    default=60_000,
    show_default=True,
    metavar="N",
    help="How many records to write.",
)
@click.option("--seed", type=int, metavar="N", help="Repeat the records of another run.")
@options.output
def demo(directory: Path | None, output: Output, records: int, seed: int | None) -> None:
    """Write a keyed stream, crash it, recover, compact, and move it to object storage.

    A process appends orders keyed by customer and is killed in the middle. The store is opened
    again: torn batches are cut, indexes are rebuilt, and every acknowledged record is looked up.
    Then balances are written over and over and compacted by account. Last, the orders move to
    object storage, here a directory, and are read from there.
    """
    console = Console(stderr=output.is_json, quiet=output.is_json)
    chosen = secrets.randbelow(1 << 32) if seed is None else seed
    with demo_directory(directory) as root:
        outcome = _Outcome(str(root), chosen)
        _write_and_kill(outcome, records, console)
        _tear(outcome, console)
        _recover(outcome, console)
        _compact(outcome, records, console)
    if output.is_json:
        output.print_object("demo", outcome.as_json())
    else:
        _suggest(directory, outcome.compaction["key"], console)


def _write_and_kill(outcome: _Outcome, record_count: int, console: Console) -> None:
    console.print(f"[bold]1. Write[/]    {record_count:,} orders, keyed by customer, seed", end=" ")
    console.print(f"{outcome.seed}, in a process of its own")
    chance = random.Random(outcome.seed)
    kill_at = int(record_count * chance.uniform(*_KILL_SHARES))
    delay = chance.uniform(0, _KILL_DELAY_SECONDS)
    arguments = [outcome.directory, str(outcome.seed), str(record_count)]
    started = time.monotonic()
    writer = subprocess.Popen(
        [sys.executable, "-m", "varve.cli.demo_writer", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with writer, writing_progress(console, record_count) as show:
        assert writer.stdout is not None
        try:
            for line in writer.stdout:
                outcome.acknowledged, *outcome.end_offsets = map(int, line.split())
                show(outcome.acknowledged)
                if kill_at and outcome.acknowledged >= kill_at:
                    threading.Event().wait(delay)
                    writer.kill()
                    kill_at = 0
        finally:
            writer.kill()
        complaint = writer.stderr.read() if writer.stderr is not None else ""
    outcome.write_seconds = round(time.monotonic() - started, 3)
    if kill_at:
        raise Unavailable(f"the writer ended by itself: {complaint.strip()[-500:]}")
    console.print(
        f"[bold]2. Kill[/]     process {writer.pid} with SIGKILL after "
        f"{outcome.acknowledged:,} acknowledged records"
    )


def _tear(outcome: _Outcome, console: Console) -> None:
    """Puts half a batch behind the last one; a kill seldom does, a power cut often."""
    folder = Path(outcome.directory) / f"{TOPIC}-0"
    active = max(folder.glob(f"*{LOG}"))
    data = active.read_bytes()
    with active.open("ab") as file:
        file.write(data[:_TORN_BYTES])
    outcome.torn_bytes = _TORN_BYTES
    console.print(
        f"[bold]3. Tear[/]     {_TORN_BYTES} bytes of half a batch after the last one, as a power "
        "cut leaves them"
    )


def _recover(outcome: _Outcome, console: Console) -> None:
    started = time.monotonic()
    with varve.open(outcome.directory) as store:
        outcome.recovery_seconds = round(time.monotonic() - started, 3)
        outcome.recovered = store.recovered
        topic = store.topic(TOPIC)
        console.print(
            f"[bold]4. Recover[/]  opened in {outcome.recovery_seconds:.2f} s; rebuilt the "
            "indexes of the active segments"
        )
        for partition, messages in outcome.recovered.items():
            for message in messages:
                console.print(f"   [yellow]{partition}[/]: {_shortened(message, outcome)}")
        _compare(outcome, topic)
        style = "red" if outcome.lost else "green"
        beyond = outcome.found - outcome.acknowledged
        console.print(
            f"[bold]5. Compare[/]  acknowledged {outcome.acknowledged:,}, found {outcome.found:,} "
            f"({beyond:,} were written but not yet acknowledged): "
            f"[bold {style}]{outcome.lost or 'none'} lost[/]\n"
        )
        facts = topic_facts(topic)
        console.print(draw_segments(TOPIC, facts))
        outcome.segments = [fact.as_json() for fact in facts]
    if outcome.lost:
        raise Corrupt(f"{outcome.lost} acknowledged records were lost; seed {outcome.seed}")


def _compact(outcome: _Outcome, record_count: int, console: Console) -> None:
    with varve.open(outcome.directory, maintain=False) as store:
        compaction = show_compaction(store, outcome.seed, record_count, console)
        outcome.compaction = compaction.as_json()
        outcome.tiering = show_tiering(store, TOPIC, console).as_json()


def _shortened(message: str, outcome: _Outcome) -> str:
    return message.replace(f"{outcome.directory}/", "")


def _compare(outcome: _Outcome, topic: varve.Topic) -> None:
    """Every record found must be the next of its partition's stream; what is missing is lost."""
    readers = [topic.read(partition=number) for number in range(PARTITION_COUNT)]
    intact = [0] * PARTITION_COUNT
    ended: set[int] = set()
    for number in itertools.count():
        wanted = record_at(outcome.seed, number)
        assert wanted.key is not None
        partition = partition_of(wanted.key, PARTITION_COUNT)
        record = next(readers[partition], None)
        if record is None:
            ended.add(partition)
            if len(ended) == PARTITION_COUNT:
                break
            continue
        outcome.found += 1
        if record == _stored(wanted, partition, intact[partition]):
            intact[partition] += 1
    missing = zip(outcome.end_offsets, intact, strict=True)
    outcome.lost = sum(max(0, end - count) for end, count in missing)


def _stored(record: varve.NewRecord, partition: int, offset: int) -> varve.Record:
    return varve.Record(partition, offset, record.timestamp, record.key, record.value)


def _suggest(directory: Path | None, found_key: str, console: Console) -> None:
    place = directory or Path("demo-data")
    first = [] if directory else [f"varve demo --dir {place}"]
    commands = [
        *first,
        f"varve consume {TOPIC} --dir {place} --partition 0 --from 1000 --limit 3 --json",
        f"varve topic describe {TOPIC} --dir {place}",
        f"varve get {demo_compaction.TOPIC} {found_key} --dir {place}",
        f"varve explain {demo_compaction.TOPIC} --key {found_key} --dir {place}",
        f"varve forecast --dir {place}",
        f"varve audit --dir {place}",
        f"varve tier status --dir {place}",
        f"varve dump {place}/{TOPIC}-0",
        f"varve check --dir {place}",
    ]
    console.print("\n[bold]Try next[/]")
    for line in commands:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
