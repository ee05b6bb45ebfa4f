"""`python -m benchmarks.compaction.plan_process DIRECTORY BUFFER_BYTES CLOCK`: plans once.

A process of its own, so that its memory is that of planning; answers with one JSON object.
"""

import json
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.compaction.sidecars import write_sidecars
from varve.cleaning.compaction.key_plan import plan_keys
from varve.cleaning.key_index.key_index import KeyIndex, SegmentKeys
from varve.commit_log.names import KEYS
from varve.disk import RealFileSystem
from varve.kernels.key_merge import Tally

_WARM_UP_KEYS = 1000


@dataclass(frozen=True, slots=True)
class Planned:
    """What one planning pass took; `peak_bytes` is what the process held more than before it."""

    seconds: float
    kept: int
    superseded: int
    range_count: int
    peak_bytes: int


def plan_once(directory: Path, buffer_bytes: int, *, counts_cpu: bool) -> Planned:
    """Plans over all key indexes of a directory."""
    fs = RealFileSystem()
    keys = []
    for path in sorted(directory.glob(f"*{KEYS}")):
        with KeyIndex(fs.open(str(path))) as index:
            keys.append(SegmentKeys(fs, str(path), index.header))
    ticker = time.thread_time if counts_cpu else time.perf_counter
    held = _reset_peak()
    start = ticker()
    plan = plan_keys(keys, buffer_bytes=buffer_bytes)
    seconds = ticker() - start
    return Planned(
        seconds=seconds,
        kept=int(plan.tallies[:, Tally.KEPT].sum()),
        superseded=int(plan.tallies[:, Tally.SUPERSEDED].sum()),
        range_count=plan.range_count,
        peak_bytes=_peak() - held,
    )


def _reset_peak() -> int:
    """What the process holds now, from where its peak counts on where the system can do that."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def main() -> None:
    directory, buffer_bytes, clock = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        write_sidecars(Path(scratch), _WARM_UP_KEYS)
        plan_once(Path(scratch), buffer_bytes, counts_cpu=False)
    print(json.dumps(asdict(plan_once(directory, buffer_bytes, counts_cpu=clock == "cpu"))))


if __name__ == "__main__":
    main()
