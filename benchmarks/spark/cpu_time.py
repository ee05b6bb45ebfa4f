"""The processor's time of this process and all below it: driver, Java, and Python workers."""

import os
from pathlib import Path

_PARENT = 1  # fields of /proc/PID/stat behind the name, from 0
_TIMES = slice(11, 15)  # user and system: its own, and of children that have ended


def read_cpu_seconds() -> float:
    """User and system seconds so far.

    Of a child that has ended its parent tells, so that the sum grows as long as the parent lives.
    """
    stats = _read_stats()
    wanted, found = {os.getpid()}, 0
    while len(wanted) > found:
        found = len(wanted)
        wanted |= {pid for pid, fields in stats.items() if int(fields[_PARENT]) in wanted}
    ticks = sum(int(one) for pid in wanted & stats.keys() for one in stats[pid][_TIMES])
    return ticks / os.sysconf("SC_CLK_TCK")


def _read_stats() -> dict[int, list[str]]:
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # it has ended meanwhile
        stats[int(path.parent.name)] = text.rpartition(")")[2].split()
    return stats
