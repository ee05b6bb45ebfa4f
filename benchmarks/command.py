"""The command line of the benchmarks."""

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.harness import Case, plan_cases, run_cases
from benchmarks.machine import REPOSITORY, describe_commit, describe_load, describe_machine
from benchmarks.measure import (
    FULL_BUFFER_BYTES,
    FULL_SEGMENT_BYTES,
    FULL_VOLUME_BYTES,
    QUICK_BUFFER_BYTES,
    QUICK_SEGMENT_BYTES,
    QUICK_VOLUME_BYTES,
    Scale,
    Suite,
)
from benchmarks.report import Clock, Row, json_line, make_row, print_table
from benchmarks.sampling import FULL_POLICY, QUICK_POLICY, QUICK_SECONDS, Budget, RepeatPolicy
from benchmarks.sizes import SizeUnit, format_bytes, parse_size, parse_size_argument
from benchmarks.suites import SUITES
from benchmarks.workspace import Workspace, open_workspace
from varve.foundation.errors import InvalidRequest, StoreError
from varve.records import Codec

_DEFAULT_DIRECTORY = REPOSITORY / ".cache" / "benchmarks"
_WIDTH_IN_FILES = 140
_OPTION_BYTES_MAX = 64 << 20


@click.command(name="benchmarks")
@click.argument("name", metavar="[SUITE|all]", required=False)
@click.argument("sizes", metavar="[SIZE...]", nargs=-1)
@click.option("--json", is_flag=True, help="One JSON object per line.")
@click.option(
    "--quick",
    is_flag=True,
    help="Smaller and fewer: hot_log, compaction and cold_tier within 45 seconds, the others in "
    "one to two minutes.",
)
@click.option("--measure", multiple=True, metavar="NAME", help="Run only this measure.")
@click.option(
    "--batch-bytes",
    metavar="SIZES",
    help="Batch sizes where the size is that of a record or a log.",
)
@click.option(
    "--record-bytes",
    default="100B,1KiB",
    show_default=True,
    metavar="SIZES",
    help="Sizes of a record's value where the size is that of a log.",
)
@click.option(
    "--codec",
    default="none,zstd",
    show_default=True,
    metavar="NAMES",
    help="Codecs of a log's batches: none, gzip, snappy, lz4, zstd.",
)
@click.option(
    "--unique-share",
    type=float,
    default=0.2,
    show_default=True,
    metavar="SHARE",
    help="Distinct keys among a log's records, above 0, at most 1.",
)
@click.option("--segment-bytes", metavar="SIZE", help="Segment size of a log to be cleaned.")
@click.option("--buffer-bytes", metavar="SIZE", help="Memory that a cleaner may use for keys.")
@click.option(
    "--clock",
    type=click.Choice(list(Clock)),
    default=Clock.WALL,
    show_default=True,
    help="Wall time, or CPU time where others use the machine.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=_DEFAULT_DIRECTORY,
    metavar="DIR",
    help="Parent of the temporary files: the disk under test.",
)
@click.pass_context
def run(
    context: click.Context,
    name: str | None,
    sizes: tuple[str, ...],
    json: bool,
    quick: bool,
    measure: tuple[str, ...],
    batch_bytes: str | None,
    record_bytes: str,
    codec: str,
    unique_share: float,
    segment_bytes: str | None,
    buffer_bytes: str | None,
    clock: Clock,
    directory: Path,
) -> None:
    """Measure varve against real baselines in the same run on the same disk.

    Repeats of both sides are interleaved; the median and the spread from least to most are shown.
    Without a suite they are listed. A size is 16KiB (all measures in bytes), 10000 (counts) or
    MEASURE=SIZE,SIZE.
    """
    if name is None:
        _list_suites()
        return
    requests = [parse_size_argument(text) for text in sizes]
    scale = Scale(
        volume_bytes=QUICK_VOLUME_BYTES if quick else FULL_VOLUME_BYTES,
        batch_bytes=_parse_bytes("--batch-bytes", batch_bytes) if batch_bytes else (),
        ticker=time.thread_time if clock is Clock.CPU else time.perf_counter,
        record_bytes=_parse_bytes("--record-bytes", record_bytes, least=1),
        codecs=_parse_codecs(codec),
        unique_share=_check_share(unique_share),
        segment_bytes=_one_size("--segment-bytes", segment_bytes)
        or (QUICK_SEGMENT_BYTES if quick else FULL_SEGMENT_BYTES),
        buffer_bytes=_one_size("--buffer-bytes", buffer_bytes)
        or (QUICK_BUFFER_BYTES if quick else FULL_BUFFER_BYTES),
        is_quick=quick,
    )
    planned = [
        (suite, plan_cases(suite, requests, only=list(measure), quick=quick))
        for suite in _suites_named(name)
    ]
    case_count = sum(len(cases) for _, cases in planned)
    allowed = max(QUICK_SECONDS, *(suite.quick_seconds for suite, _ in planned))
    seconds = allowed - (time.perf_counter() - context.obj) if quick else None
    budget = Budget(case_count, time.perf_counter, total_seconds=seconds)
    policy = QUICK_POLICY if quick else FULL_POLICY
    with _ending_cleanly_on_sigterm(), open_workspace(directory) as workspace:
        for suite, cases in planned:
            _run_suite(
                suite, cases, workspace, scale, budget, policy=policy, clock=clock, as_json=json
            )


def _run_suite(
    suite: Suite,
    cases: list[Case],
    workspace: Workspace,
    scale: Scale,
    budget: Budget,
    *,
    policy: RepeatPolicy,
    clock: Clock,
    as_json: bool,
) -> None:
    machine, commit = describe_machine(), describe_commit()
    if not scale.batch_bytes:
        scale = replace(scale, batch_bytes=suite.batch_bytes)
    note = Console(stderr=True)
    note.print(
        f"{machine}; commit {commit}; load {describe_load()}", highlight=False, soft_wrap=True
    )
    rows: list[Row] = []
    with _progress(note, len(cases)) as show:
        for outcome in run_cases(
            cases,
            workspace,
            scale,
            policy=policy,
            budget=budget,
            ticker=time.perf_counter,
            progress=show,
            skipped=lambda text: note.print(f"SKIPPED {text}", highlight=False, soft_wrap=True),
        ):
            rows.append(make_row(outcome, clock=clock))
            if as_json:
                print(json_line(rows[-1], machine=machine, commit=commit), flush=True)
    if not as_json:
        print_table(_console_for_table(), suite.title, rows, machine=machine, commit=commit)


def _console_for_table() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_IN_FILES)


@contextmanager
def _progress(console: Console, case_count: int) -> Iterator[Callable[[str], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task("", total=case_count)

        def show(text: str) -> None:
            is_new_case = text.endswith("preparing") and bar.tasks[0].description
            bar.update(task, description=text, advance=1 if is_new_case else 0)

        yield show


def _suites_named(name: str) -> list[Suite]:
    if name == "all":
        return list(SUITES)
    found = [suite for suite in SUITES if suite.name == name]
    if not found:
        known = ", ".join([*(suite.name for suite in SUITES), "all"])
        raise InvalidRequest(f"no benchmark {name!r}: choose from {known}")
    return found


def _list_suites() -> None:
    for suite in SUITES:
        print(f"{suite.name}  {suite.title}")
        for measure in suite.measures:
            print(f"    {measure.name:<10} {measure.title}")


def _parse_bytes(option: str, text: str, *, least: int = 1 << 10) -> tuple[int, ...]:
    sizes = parse_size_argument(text).sizes
    for size in sizes:
        if size.unit is not SizeUnit.BYTES or not least <= size.amount <= _OPTION_BYTES_MAX:
            limits = f"{format_bytes(least)}..{format_bytes(_OPTION_BYTES_MAX)}"
            raise InvalidRequest(f"{option} {text!r}: {size} is outside {limits}")
    return tuple(size.amount for size in sizes)


def _one_size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    size = parse_size(text)
    if size.unit is not SizeUnit.BYTES or not 1 << 20 <= size.amount <= 1 << 30:
        raise InvalidRequest(f"{option} {text!r}: {size} is outside 1MiB..1GiB")
    return size.amount


def _parse_codecs(text: str) -> tuple[Codec, ...]:
    names = [name.strip().upper() for name in text.split(",")]
    for name in names:
        if name not in Codec.__members__:
            known = ", ".join(codec.name.lower() for codec in Codec)
            raise InvalidRequest(f"--codec {text!r}: choose from {known}")
    return tuple(Codec[name] for name in names)


def _check_share(share: float) -> float:
    if not 0 < share <= 1:
        raise InvalidRequest(f"--unique-share {share} is outside 0..1, 0 excluded")
    return share


@contextmanager
def _ending_cleanly_on_sigterm() -> Iterator[None]:
    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signal_number)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Recovering a torn log is what one measure does, not news."""
    logger = logging.getLogger("varve")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def main(*, started: float) -> None:
    """Entry point: errors of ours end in one line on stderr and exit code 2.

    A quick run counts its seconds from `started`.
    """
    try:
        with _without_warnings():
            run(prog_name="python -m benchmarks", obj=started)
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(2) from error
