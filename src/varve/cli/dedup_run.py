"""`varve dedup run`: a topic without its duplicates, as another topic, exactly once.

Crash      a run may be killed anywhere; the next one goes on.
"""

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from varve.cli.dedup_options import (
    After,
    Before,
    Broker,
    By,
    ClientFile,
    ClientSettings,
    Directories,
    Lateness,
    Name,
    Refresh,
    State,
    Window,
    make_place,
    make_rules,
)
from varve.cli.dedup_table import PartitionRow, print_rows
from varve.cli.store_access import AsJson

if TYPE_CHECKING:
    from varve.dedup.processor import Deduplicator
    from varve.dedup.task import TaskState


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that is read.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TOPIC",
            help="The topic that gets the records; made if need be, with as many partitions.",
        ),
    ],
    by: By,
    window: Window = None,
    before: Before = None,
    after: After = None,
    lateness: Lateness = None,
    late: Annotated[
        str,
        typer.Option(
            "--late",
            metavar="forward|drop|side:TOPIC",
            help="What becomes of a later one, of one from the future, and of one without a time.",
        ),
    ] = "forward",
    null: Annotated[
        str,
        typer.Option("--null", metavar="forward|drop", help="And of one that has no id."),
    ] = "forward",
    refresh: Refresh = False,
    max_future: Annotated[
        str,
        typer.Option(
            "--max-future", metavar="SPAN", help="A record further ahead of now moves no clock."
        ),
    ] = "1h",
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Wait for more at the end, until Ctrl-C or SIGTERM."),
    ] = False,
    name: Name = None,
    state: State = None,
    skip_lost: Annotated[
        bool,
        typer.Option(
            "--skip-lost", help="Go on behind records that were deleted before they were read."
        ),
    ] = False,
    chunk_bytes: Annotated[
        int | None,
        typer.Option(
            "--chunk-bytes",
            metavar="BYTES",
            min=1,
            help="About how much of a partition is committed at a time.",
        ),
    ] = None,
    directories: Directories = [],  # noqa: B006, typer copies it
    broker: Broker = None,
    settings: ClientSettings = [],  # noqa: B006
    file: ClientFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy a topic without its duplicates to another topic, exactly once.

    A record is a duplicate if one of the same id and partition was kept whose event time is within
    the window around its own. The first one that is read wins. Records without an id, late ones,
    ones from the future and ones without a time go by --null and --late; each is counted.

    Output, ids and progress are committed together: a run may be killed anywhere, and the next one
    goes on. Read the output with read_committed. Copies must be in one partition of the input: let
    producers key records by the id.

    A name keeps its rules: another window needs another --name. --late, --null and --lateness may
    be changed at any time.

    \b
    Examples:
      varve dedup run orders --to orders-once --by key --window 10m --dir data
      varve dedup run clicks --to clicks-once --by header:id --window 1h --late side:clicks-late \\
        --follow --bootstrap-server localhost:9092 --state /var/lib/clicks
      varve dedup run orders --to orders-once --by field:order.id --window 7d --dir data --json
    """
    from varve.dedup.processor import Deduplicator
    from varve.dedup.task import CHUNK_BYTES, TaskSettings

    rules, side = make_rules(
        by,
        window,
        before,
        after,
        lateness,
        refresh=refresh,
        late=late,
        null=null,
        max_future=max_future,
    )
    place = make_place(directories, broker, settings, file, state)
    started = monotonic()
    with (
        place.open() as opened,
        _bar(is_wanted=not as_json) as show,
        Deduplicator.open(
            opened,
            topic,
            to,
            rules,
            side=side,
            name=name,
            state=str(place.state),
            settings=TaskSettings(chunk_bytes=chunk_bytes or CHUNK_BYTES, skips_lost=skip_lost),
            on_progress=show,
        ) as dedup,
    ):
        before_count = sum(task_state.counts.total for task_state in dedup.states())
        with _stopped_by_signals(dedup) as was_interrupted:
            if follow:
                dedup.run()
            else:
                dedup.run_once()
        rows = [_row(task_state) for task_state in dedup.states()]
    seconds = monotonic() - started
    records = sum(row.counts.total for row in rows) - before_count
    if as_json:
        for row in rows:
            typer.echo(json.dumps({"type": "partition", **row.to_json()}))
        told = {"input": topic, "output": to, "name": name or to, "records": records}
        typer.echo(json.dumps({"type": "dedup", **told, "seconds": round(seconds, 3)}))
    else:
        print_rows(rows)
        rate = f", {records / seconds:,.0f} records/s" if records else ""
        typer.echo(f"{records:,} records in {seconds:.1f} s{rate}", err=True)
    if was_interrupted() and not follow:
        typer.secho(
            "stopped; what is committed stays, and the next run goes on", fg="yellow", err=True
        )
        raise KeyboardInterrupt


def _row(state: "TaskState") -> PartitionRow:
    return PartitionRow(
        partition=state.partition,
        position=state.position,
        lag=state.lag,
        stream_time_ms=state.stream_time_ms,
        counts=state.counts,
    )


@contextlib.contextmanager
def _stopped_by_signals(dedup: "Deduplicator") -> Iterator[Callable[[], bool]]:
    """The first signal lets the chunks under way end; a second Ctrl-C is taken at once."""
    is_interrupted = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted and number == signal.SIGINT:
            raise KeyboardInterrupt
        is_interrupted = True
        dedup.stop()

    before = {signals: signal.signal(signals, stop) for signals in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: is_interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _bar(*, is_wanted: bool) -> "Iterator[Callable[[TaskState], None]]":
    """A bar of records over all partitions on a terminal; of the restore first."""
    if not is_wanted or not sys.stderr.isatty():
        yield lambda state: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=None, told="")
        states: dict[int, TaskState] = {}

        def show(state: "TaskState") -> None:
            states[state.partition] = state
            all_of = states.values()
            if state.restore_end:
                done = sum(task_state.restored for task_state in all_of)
                total = sum(task_state.restore_end for task_state in all_of)
                bars.update(bar, description="restoring ids", completed=done, total=total)
                return
            kept = sum(task_state.counts.kept for task_state in all_of)
            duplicates = sum(task_state.counts.duplicates for task_state in all_of)
            bars.update(
                bar,
                description="deduplicating",
                completed=sum(task_state.position for task_state in all_of),
                total=sum(task_state.end_offset for task_state in all_of),
                told=f"{kept:,} kept, {duplicates:,} duplicates",
            )

        yield show
