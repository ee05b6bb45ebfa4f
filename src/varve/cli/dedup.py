"""`varve dedup`: topics without duplicates.

Crash      a run may be killed at any time; the next one continues.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Output
from varve.cli.where import Where
from varve.foundation.units import format_bytes, format_time

if TYPE_CHECKING:
    from varve.dedup.insight import DedupInsight, PartitionInsight
    from varve.dedup.processor import Deduplicator
    from varve.dedup.rules import Counts, RuleOptions
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
_STATE_FIELDS: Final = ("segments", "ids", "bytes")

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
    click.option(
        "--window",
        type=options.DURATION,
        help="How far apart in event time duplicates may be: 10m, 1h30m, 7d.",
    ),
    click.option(
        "--before", type=options.DURATION, help="With --after, instead of --window: how far back."
    ),
    click.option(
        "--after", type=options.DURATION, help="With --before, instead of --window: how far ahead."
    ),
    click.option(
        "--lateness",
        type=options.DURATION,
        help="How late a record may be to be compared; default the window.",
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
    click.option(
        "--max-future",
        type=options.DURATION,
        default="1h",
        help="Times further in the future do not move stream time.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition; the fields of the state are None if the directory is not here."""

    partition: int
    position: int
    lag: int
    stream_time_ms: int
    counts: "Counts"
    segments: int | None = None
    ids: int | None = None
    bytes: int | None = None

    def fields(self) -> dict[str, Any]:
        fields = asdict(self)
        counts = fields.pop("counts")
        if self.segments is None:
            fields = {name: fields[name] for name in fields if name not in _STATE_FIELDS}
        return {**fields, "records": self.counts.total, **counts}


# run


@command(
    examples=(
        "varve dedup run orders --to orders-once --by key --window 10m -d data",
        "varve dedup run clicks --to clicks-once --by header:id --window 1h -f -b kafka:9092",
    )
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
@click.option(
    "--chunk-bytes", type=options.SIZE, help="About how much of a partition is committed at a time."
)
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
        rows = [_task_row(state) for state in dedup.states()]
    seconds = monotonic() - started
    count = sum(row.counts.total for row in rows) - count_before
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
    from varve.dedup.processor import STATE_SUFFIX

    if state is not None or where.is_broker:
        return state or DEFAULT_STATE
    return Path(f"{where.directories[0].absolute()}{STATE_SUFFIX}")


def _task_row(state: "TaskState") -> PartitionRow:
    return PartitionRow(
        partition=state.partition,
        position=state.position,
        lag=state.lag,
        stream_time_ms=state.stream_time_ms,
        counts=state.counts,
    )


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
    examples=(
        "varve dedup status orders-once -d data",
        "varve dedup status clicks-once -b kafka:9092 --state /var/lib/clicks --json",
    )
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
    fields = [
        {
            "name": name,
            "input": partition.progress.input,
            "output": partition.progress.output,
            "rules": partition.progress.rules.fingerprint(),
            "committed_ms": partition.progress.committed_ms,
        }
        for partition in partitions
    ]
    _print_rows(output, [_insight_row(partition) for partition in partitions], fields)
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


def _insight_row(insight: "PartitionInsight") -> PartitionRow:
    from varve.rocks.database import estimate_entries

    state = insight.state
    return PartitionRow(
        partition=insight.partition,
        position=insight.progress.position,
        lag=insight.lag,
        stream_time_ms=insight.progress.stream_time_ms,
        counts=insight.progress.counts,
        segments=None if state is None else len(state.paths),
        ids=None if state is None else sum(map(estimate_entries, state.paths)),
        bytes=None if state is None else state.bytes,
    )


# explain


@command(
    examples=(
        "varve dedup explain orders-once --offset 1234 -d data",
        "varve dedup explain clicks-once -p 3 --offset 12 -b kafka:9092 --json",
    )
)
@_name
@click.option("--offset", type=options.Number(min=0), required=True, help="The record's offset.")
@click.option(
    "-p",
    "--partition",
    type=options.Number(min=0),
    default=0,
    help="The record's partition.",
)
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


def _print_rows(
    output: Output, rows: Sequence[PartitionRow], fields: Sequence[dict[str, Any]] | None = None
) -> None:
    """A line per partition, and one of sums if there are several."""
    if output.is_json:
        for row, more in zip(rows, fields or [{}] * len(rows), strict=True):
            output.print_object("partition", {**more, **row.fields()})
        return
    has_state = any(row.segments is not None for row in rows)
    columns = ["partition", "position", "lag", "stream time", "records", *_COUNTS.values()]
    columns += ["segments", "ids", "size"] if has_state else []
    lines = [[str(row.partition), f"{row.position:,}", *_cells([row], has_state)] for row in rows]
    if len(rows) > 1:
        lines.append(["all", "", *_cells(rows, has_state)])
    output.print_table("partition", columns, lines, right=True)


def _cells(rows: Sequence[PartitionRow], has_state: bool) -> list[str]:
    """The cells after the position; sums for several rows."""
    counts = [asdict(row.counts) for row in rows]
    numbers = [sum(row.counts.total for row in rows)]
    numbers += [sum(count[name] for count in counts) for name in _COUNTS]
    time = _format_time(rows[0].stream_time_ms) if len(rows) == 1 else ""
    cells = [f"{sum(row.lag for row in rows):,}", time, *(f"{number:,}" for number in numbers)]
    if not has_state:
        return cells
    sums = []
    for name in _STATE_FIELDS:
        values = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        sums.append(sum(values) if values else None)
    segments, ids, size = sums
    return [
        *cells,
        *("-" if number is None else f"{number:,}" for number in (segments, ids)),
        "-" if size is None else format_bytes(size),
    ]


def _format_time(time_ms: int) -> str:
    return "-" if time_ms < 0 else format_time(time_ms)
