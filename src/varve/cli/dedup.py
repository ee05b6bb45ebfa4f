"""`varve dedup`: topics without duplicates.

Crash      a run may be killed at any time; the next one continues.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Grouped, Output
from varve.cli.where import Where
from varve.foundation.units import format_bytes, format_time

if TYPE_CHECKING:
    from varve.dedup.insight import DedupInsight, PartitionInsight
    from varve.dedup.processor import Deduplicator
    from varve.dedup.progress import Progress
    from varve.dedup.rules import RuleOptions
    from varve.dedup.task import TaskState

DEFAULT_STATE: Final = Path("varve-dedup")
"""The directory of the ids, of topics of a broker."""

_COUNTS: Final = {
    "kept": "kept",
    "duplicates": "duplicates",
    "late": "late",
    "future": "future",
    "missing": "no time",
    "no_id": "no id",
}

_name = click.argument("name", metavar="NAME")
_state = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The directory of the ids; default DIR.dedup, with a broker varve-dedup. If it is lost, "
    "it is restored.",
)


def _build_rules(**values: Any) -> "RuleOptions":
    from varve.dedup.rules import build_rules

    if values["window"] is not None and (values["before"], values["after"]) != (None, None):
        raise click.UsageError("--window replaces --before and --after: give it or both of them")
    return build_rules(**values)


rule_options = options.bundle(
    "rule_options",
    _build_rules,
    click.option(
        "--by",
        required=True,
        metavar="ID",
        help="What identifies a record: key, header:NAME or field:PATH of JSON values.",
    ),
    options.duration(
        "--window", help="How far apart in event time duplicates may be: 10m, 1h30m, 7d."
    ),
    options.duration("--before", help="With --after, instead of --window: how far back."),
    options.duration("--after", help="With --before, instead of --window: how far ahead."),
    options.duration(
        "--lateness", help="How late a record may be to be compared; default the window."
    ),
    click.option(
        "--late",
        default="forward",
        metavar="POLICY",
        help="Late, future-dated and untimed records: forward, drop or side:TOPIC.",
    ),
    click.option(
        "--no-id",
        type=click.Choice(["forward", "drop"]),
        default="forward",
        help="Records without an id.",
    ),
    click.option("--refresh", is_flag=True, help="A duplicate restarts the window of its id."),
    options.duration(
        "--max-future", default="1h", help="Times further in the future do not move stream time."
    ),
)


def _build_row(
    state: "TaskState | Progress", partition: int, lag: int, **size: int
) -> dict[str, Any]:
    """One partition; `size` is that of its ids, if their directory is here."""
    return {
        "partition": partition,
        "position": state.position,
        "lag": lag,
        "stream_time_ms": state.stream_time_ms,
        **size,
        "records": state.counts.total,
        **asdict(state.counts),
    }


# run


@command(
    "varve dedup run orders --to orders-once --by key --window 10m -d data",
    "varve dedup run clicks --to clicks-once --by header:id --window 1h -f -b kafka:9092",
)
@options.topic
@click.option(
    "--to",
    required=True,
    metavar="TOPIC",
    help="The output topic; created with as many partitions.",
)
@rule_options
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until Ctrl-C or SIGTERM.")
@click.option(
    "--name", metavar="NAME", help="The name of its ids and progress; default the output's."
)
@_state
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Continue after records that were deleted before they were read.",
)
@options.size("--chunk-bytes", help="About how much of a partition is committed at a time.")
@options.where
@options.output
def dedup_run(
    topic: str,
    where: Where,
    output: Output,
    to: str,
    rule_options: "RuleOptions",
    follow: bool,
    name: str | None,
    state: Path | None,
    skip_lost: bool,
    chunk_bytes: int | None,
) -> None:
    """Copy a topic without its duplicates to another topic, exactly once.

    A record is a duplicate if a record of the same id and partition was kept whose event time is
    within the window around its own; the first one read wins. Output, ids and progress are
    committed together: read the output with read_committed. Duplicates must be in one partition, so
    key the records by the id. Another window needs another --name.
    """
    from varve.dedup.processor import Deduplicator
    from varve.dedup.task import CHUNK_BYTES, TaskSettings

    started = monotonic()
    with (
        where.open_topics() as source,
        _progress(is_shown=not output.is_json) as show,
        Deduplicator.open(
            source,
            topic,
            to,
            rule_options.rules,
            side=rule_options.side_topic,
            name=name,
            state=str(_state_directory(where, state)),
            settings=TaskSettings(chunk_bytes=chunk_bytes or CHUNK_BYTES, skips_lost=skip_lost),
            on_progress=show,
        ) as dedup,
    ):
        count_before = sum(state.counts.total for state in dedup.states())
        with _stopped_by_signals(dedup) as was_interrupted:
            if follow:
                dedup.run()
            else:
                dedup.run_once()
        rows = [_build_row(state, state.partition, state.lag) for state in dedup.states()]
    seconds = monotonic() - started
    count = sum(row["records"] for row in rows) - count_before
    _print_rows(output, rows)
    fields = {"input": topic, "output": to, "name": name or to, "records": count}
    if output.is_json:
        output.print_object("dedup", {**fields, "seconds": round(seconds, 3)})
    else:
        rate = f", {count / seconds:,.0f} records/s" if count else ""
        output.note(f"{count:,} records in {seconds:.1f} s{rate}")
    if was_interrupted() and not follow:
        output.warn("interrupted; committed records stay, and the next run continues")
        raise KeyboardInterrupt


def _state_directory(where: Where, state: Path | None) -> Path:
    from varve.dedup.directories import state_root

    if state is not None or where.is_broker:
        return state or DEFAULT_STATE
    return Path(state_root(str(where.directories[0].absolute())))


@contextlib.contextmanager
def _stopped_by_signals(dedup: "Deduplicator") -> Iterator[Callable[[], bool]]:
    """The first signal finishes the current chunks; a second Ctrl-C interrupts at once."""
    is_interrupted = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted and number == signal.SIGINT:
            raise KeyboardInterrupt
        is_interrupted = True
        dedup.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: is_interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _progress(*, is_shown: bool) -> "Iterator[Callable[[TaskState], None]]":
    """A bar of records over all partitions; of restored ids first."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda state: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=None, counts="")
        states: dict[int, TaskState] = {}

        def show(state: "TaskState") -> None:
            states[state.partition] = state
            if state.restore_end:
                done = sum(state.restored for state in states.values())
                total = sum(state.restore_end for state in states.values())
                bars.update(bar, description="restoring ids", completed=done, total=total)
                return
            kept = sum(state.counts.kept for state in states.values())
            duplicates = sum(state.counts.duplicates for state in states.values())
            bars.update(
                bar,
                description="deduplicating",
                completed=sum(state.position for state in states.values()),
                total=sum(state.end_offset for state in states.values()),
                counts=f"{kept:,} kept, {duplicates:,} duplicates",
            )

        yield show


# status


@command(
    "varve dedup status orders-once -d data",
    "varve dedup status clicks-once -b kafka:9092 --state /var/lib/clicks --json",
)
@_name
@_state
@options.where
@options.output
def dedup_status(name: str, where: Where, output: Output, state: Path | None) -> None:
    """Show how far a deduplication is, and the size of its ids.

    NAME is its output topic, or the --name of its run. Positions and counts are those of the last
    commit, since the first run. Segments, ids and size are those of the state directory, if it is
    on this machine. A deduplication of a broker's topics may be running.
    """
    with _open_insight(where, name, state) as insight:
        partitions, count = insight.partitions(), insight.partition_count()
    if not partitions:
        output.note(f"{name} has committed nothing yet")
        return
    progress = partitions[0].progress
    if not output.is_json:
        click.echo(f"{progress.input} to {progress.output} {progress.rules.fingerprint()}")
    _print_rows(output, [_describe_partition(name, partition) for partition in partitions])
    if len(partitions) < count:
        output.note(f"{count - len(partitions)} of {count} partitions have committed nothing yet")


@contextlib.contextmanager
def _open_insight(where: Where, name: str, state: Path | None) -> "Iterator[DedupInsight]":
    from varve.dedup.insight import DedupInsight
    from varve.disk import RealFileSystem
    from varve.topics import open_cluster

    with where.open_topics(maintain=False) as source:
        insight = DedupInsight(
            open_cluster(source),
            name,
            state_directory=str(_state_directory(where, state)),
            file_system=RealFileSystem(),
        )
        try:
            yield insight
        finally:
            insight.close()


def _describe_partition(name: str, insight: "PartitionInsight") -> dict[str, Any]:
    from varve.rocks.database import estimate_entries

    progress, state = insight.progress, insight.state
    size: dict[str, int] = {}
    if state is not None:
        ids = sum(map(estimate_entries, state.paths))
        size = {"segments": len(state.paths), "ids": ids, "bytes": state.bytes}
    return {
        "name": name,
        "input": progress.input,
        "output": progress.output,
        "rules": progress.rules.fingerprint(),
        "committed_ms": progress.committed_ms,
        **_build_row(progress, insight.partition, insight.lag, **size),
    }


# explain


@command(
    "varve dedup explain orders-once --offset 1234 -d data",
    "varve dedup explain clicks-once -p 3 --offset 12 -b kafka:9092 --json",
)
@_name
@options.number("--offset", required=True, help="The record's offset.")
@options.number("-p", "--partition", default=0, help="The record's partition.")
@_state
@options.where
@options.output
def dedup_explain(
    name: str, where: Where, output: Output, offset: int, partition: int, state: Path | None
) -> None:
    """Explain why a record of the input was kept or dropped.

    Of a duplicate it shows the record that was kept. The changelog has the answer as long as it
    retains the time of the record. Lateness and policies are those of the last commit.
    """
    with _open_insight(where, name, state) as insight:
        explanation = insight.explain(partition, offset)
    witness = explanation.witness
    sentence = explanation.describe()
    output.print_result(
        sentence,
        "explanation",
        partition=explanation.partition,
        offset=explanation.offset,
        timestamp=explanation.timestamp,
        verdict=None if explanation.verdict is None else explanation.verdict.name.lower(),
        witness_offset=None if witness is None else witness.offset,
        witness_timestamp=None if witness is None else witness.time_ms,
        text=sentence,
    )


# Tables


def _print_rows(output: Output, rows: Sequence[dict[str, Any]]) -> None:
    """A line per partition, and one of sums if there are several."""
    has_state = any("ids" in row for row in rows)
    columns = ["partition", "position", "lag", "stream time", "records", *_COUNTS.values()]
    columns += ["segments", "ids", "size"] if has_state else []
    lines = [
        [row["partition"], Grouped(row["position"]), *_cells([row], has_state)] for row in rows
    ]
    if len(rows) > 1:
        lines.append(["all", "", *_cells(rows, has_state)])
    output.print_table("partition", columns, lines, right=True, documents=rows)


def _cells(rows: Sequence[dict[str, Any]], has_state: bool) -> list[object]:
    """The cells after the position; sums for several rows."""
    time = _format_time(rows[0]["stream_time_ms"]) if len(rows) == 1 else ""
    lag, *counts = (
        Grouped(sum(row[name] for row in rows)) for name in ("lag", "records", *_COUNTS)
    )
    if not has_state:
        return [lag, time, *counts]
    known = [row for row in rows if "ids" in row]
    segments, ids, size = (
        sum(row[name] for row in known) if known else None for name in ("segments", "ids", "bytes")
    )
    numbers = [None if number is None else Grouped(number) for number in (segments, ids)]
    return [lag, time, *counts, *numbers, None if size is None else format_bytes(size)]


def _format_time(time_ms: int) -> str:
    return "-" if time_ms < 0 else format_time(time_ms)
