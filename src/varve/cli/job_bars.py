"""Bars of the running stages of a job, one line for each, on a terminal alone."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from varve.spark.stages import JobProgress, StageProgress


@contextlib.contextmanager
def stage_bars(*, is_wanted: bool) -> "Iterator[Callable[[JobProgress], None]]":
    """Gives the function that shows how far it is; it does nothing where there is no terminal."""
    if not is_wanted or not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks{task.fields[more]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Bars(bars).show


class _Bars:
    """One bar for each stage that runs; one that says so while none does."""

    def __init__(self, bars: "Progress") -> None:
        self._bars = bars
        self._ids: dict[int, TaskID] = {}
        self._idle = bars.add_task("planning", total=None, more="")

    def show(self, progress: "JobProgress") -> None:
        running = {stage_progress.stage: stage_progress for stage_progress in progress.running}
        for gone in self._ids.keys() - running.keys():
            self._bars.remove_task(self._ids.pop(gone))
        for stage, stage_progress in running.items():
            if stage not in self._ids:
                self._ids[stage] = self._bars.add_task(
                    stage_progress.name, total=stage_progress.tasks, more=""
                )
            self._bars.update(
                self._ids[stage],
                completed=stage_progress.tasks_done,
                total=stage_progress.tasks,
                more=_more(stage_progress),
            )
        done = f"after {progress.stages_done} stages" if progress.stages_done else "planning"
        self._bars.update(self._idle, description=done, visible=not running)


def _more(progress: "StageProgress") -> str:
    from varve.foundation.units import format_bytes

    read = f", {format_bytes(progress.read_bytes)}" if progress.read_bytes else ""
    failed = f", {progress.failed_tasks} failed" if progress.failed_tasks else ""
    return f"{read}{failed}"
