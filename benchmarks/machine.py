"""Where the figures come from: machine and commit, as one line each."""

import os
import platform
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def describe_machine() -> str:
    """Processor, cores, memory, kernel and Python."""
    parts = [
        _processor(),
        f"{len(os.sched_getaffinity(0))} cores",
        f"{_memory_gib():.0f} GiB memory",
        f"{platform.system()} {platform.release()}",
        f"{platform.python_implementation()} {platform.python_version()}",
    ]
    return ", ".join(parts)


def describe_load() -> str:
    """Load average of the last minute: above zero, others were using the machine."""
    return f"{os.getloadavg()[0]:.2f}"


def describe_commit(repository: Path = REPOSITORY) -> str:
    """Short commit id, with `-dirty` for a changed work tree; `unknown` outside of git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
