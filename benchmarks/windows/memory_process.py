"""`python -m benchmarks.windows.memory_process DIRECTORY SEGMENTS ENTRIES`: fills live segments.

A process of its own, so that its memory is that of the segments; prints by how many bytes it grew,
at most, while entries went into all of them in turn.
"""

import sys
from pathlib import Path

from benchmarks.windows.stores import fill_segment, open_segments

_ROUNDS = 10
_FOR_EVER_MS = 1 << 60


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status has no VmRSS")


def grown_bytes(directory: Path, segment_count: int, entry_count: int) -> int:
    with open_segments(directory, retention_ms=_FOR_EVER_MS) as segments:
        before = peak = resident_bytes()
        per_round = max(1, entry_count // segment_count // _ROUNDS)
        for _ in range(_ROUNDS):
            for id in range(segment_count):
                fill_segment(segments, id, per_round)
            peak = max(peak, resident_bytes())
    return peak - before


def main() -> None:
    directory, segment_count, entry_count = sys.argv[1:]
    print(grown_bytes(Path(directory), int(segment_count), int(entry_count)))


if __name__ == "__main__":
    main()
