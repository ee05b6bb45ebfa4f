"""Planning over more keys than the buffer holds: keys per second, and the memory it takes."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.compaction.plan_process import Planned
from benchmarks.compaction.sidecars import UPDATE_SHARE, write_sidecars
from benchmarks.machine import REPOSITORY
from benchmarks.measure import Contest, Scale
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace
from varve.cleaning.compaction.key_plan import ENTRY_BYTES


class ManyKeysMeasure:
    """Size: number of distinct keys. Ask for 100000000 to see a hundred million."""

    name = "many_keys"
    title = "one planning pass over many keys, and the memory it takes beside its buffer"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (500_000, 2_000_000) if quick else (10_000_000, 40_000_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(int(size * (1 + UPDATE_SHARE) * ENTRY_BYTES))
        with workspace.directory("keys") as parent:
            directory = parent / "sidecars"
            directory.mkdir()
            entry_count = write_sidecars(directory, size)
            first = plan_in_process(directory, size, entry_count, scale)
            buffer = format_bytes(scale.buffer_bytes)
            again = partial(plan_in_process, directory, size, entry_count, scale)
            yield [
                Contest(
                    "plan_keys",
                    "keys/s",
                    lambda: size / (first if scale.is_quick else again()).seconds,
                    None,
                    note=f"{first.range_count} ranges of hashes in one pass over {entry_count} "
                    "entries; every key counted once, checked",
                    within=buffer,
                    repeat_count_max=1 if scale.is_quick else None,
                ),
                Contest(
                    "plan_memory",
                    "MiB",
                    lambda: _mib(first.peak_bytes),
                    lambda: _mib(scale.buffer_bytes),
                    note="most the process held beyond what it held before, against the buffer; "
                    "besides the buffer there are three bits for each record",
                    within=buffer,
                    repeat_count_max=1,
                ),
            ]


def plan_in_process(directory: Path, key_count: int, entry_count: int, scale: Scale) -> Planned:
    """One planning pass in a new process; raises unless it kept every key once."""
    clock = "cpu" if scale.ticker is time.thread_time else "wall"
    command = [
        sys.executable,
        "-m",
        "benchmarks.compaction.plan_process",
        str(directory),
        str(scale.buffer_bytes),
        clock,
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"planning failed: {done.stderr[-2000:]}")
    planned = Planned(**json.loads(done.stdout))
    if (planned.kept, planned.kept + planned.superseded) != (key_count, entry_count):
        raise AssertionError(f"{planned} for {key_count} keys in {entry_count} entries")
    return planned


def _mib(size: int) -> float:
    return size / (1 << 20)
