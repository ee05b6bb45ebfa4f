"""The processor's time of this process and all below it: driver, Java, and Python workers.

Invariant  only processes count that are there at the end, with what they took since the start:
           Spark ends workers that were idle for a while, and their whole lives are nobody's share.
"""

import os
from pathlib import Path

_PARENT = 1  # fields of /proc/PID/stat behind the name, from 0
_TIMES = slice(11, 13)  # user and system


def read_cpu_seconds() -> dict[int, float]:
    """User and system seconds so far, by process."""
    stats = _read_stats()
    wanted, found = {os.getpid()}, 0
    while len(wanted) > found:
        found = len(wanted)
        wanted |= {pid for pid, fields in stats.items() if int(fields[_PARENT]) in wanted}
    tick = os.sysconf("SC_CLK_TCK")
    return {pid: sum(map(int, stats[pid][_TIMES])) / tick for pid in wanted & stats.keys()}


def count_cpu_seconds(*, since: dict[int, float]) -> float:
    """What all of them took since a reading."""
    now = read_cpu_seconds()
    return sum(seconds - since.get(pid, 0.0) for pid, seconds in now.items())


def _read_stats() -> dict[int, list[str]]:
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # it has ended meanwhile
        stats[int(path.parent.name)] = text.rpartition(")")[2].split()
    return stats
