"""Many ids on disk: what a look-up costs, what they take on disk and in memory."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.measure import Contest, MeasureSkipped, Scale
from benchmarks.sizes import SizeUnit
from benchmarks.windows.many_ids_process import Asked, Found
from benchmarks.workspace import Workspace
from varve.foundation.errors import InvalidRequest

IDS_MAX: Final = 100_000_000
_ID_BYTES_MAX: Final = 120
_KEY_AND_VALUE_BYTES: Final = 33


class ManyIdsMeasure:
    """Size: ids in the store."""

    name = "many_ids"
    title = "look-ups among many ids on disk, against multi-gets in the same databases"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (20_000, 100_000) if quick else (100_000, 1_000_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        if not Path("/proc/self/status").exists():
            raise MeasureSkipped("memory is read from /proc, which is not there")
        if size > IDS_MAX:
            raise InvalidRequest(f"{self.name}={size} is more than {IDS_MAX}: choose fewer ids")
        workspace.require(size * _ID_BYTES_MAX)

        @cache
        def found() -> Found:
            return _measure(workspace, size, scale)

        us = f"µs of {'the processor' if scale.ticker is time.thread_time else 'the wall'}"
        yield [
            Contest(
                f"{self.name}_absent",
                "us/id",
                lambda: found().absent.ours_us,
                lambda: found().absent.bare_us,
                None,
                f"{us}; ids that are new, looked for in each segment that the window touches",
                repeat_count_max=1,
            ),
            Contest(
                f"{self.name}_present",
                "us/id",
                lambda: found().present.ours_us,
                lambda: found().present.bare_us,
                None,
                f"{us}; ids drawn by lot, each found in the segment of its time",
                repeat_count_max=1,
            ),
            Contest(
                f"{self.name}_disk",
                "B/id",
                lambda: found().disk_bytes / size,
                lambda: float(_KEY_AND_VALUE_BYTES),
                None,
                "against the bytes of key and value",
                repeat_count_max=1,
            ),
            Contest(
                f"{self.name}_memory",
                "MiB",
                lambda: found().resident_bytes / (1 << 20),
                None,
                None,
                "growth of the process while it filled the store and asked",
                repeat_count_max=1,
            ),
            Contest(
                f"{self.name}_fill",
                "ids/s",
                lambda: size / found().fill_seconds,
                None,
                None,
                "by restore, in the order of ids, flushed at the end",
                repeat_count_max=1,
            ),
        ]


def _measure(workspace: Workspace, count: int, scale: Scale) -> Found:
    clock = "cpu" if scale.ticker is time.thread_time else "wall"
    with workspace.directory("many") as directory:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.windows.many_ids_process",
                str(directory / "s"),
                str(count),
                clock,
            ],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    told = json.loads(done.stdout)
    for name in ("absent", "present"):
        told[name] = Asked(**told[name])
    return Found(**told)
