"""A directory in memory where the system has one: for files that never outlive their test."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
"""What there must be for all files of all tests; a container has 64 MiB unless told otherwise."""


def is_usable() -> bool:
    return SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)


def has_room_for_all() -> bool:
    return is_usable() and shutil.disk_usage(SHARED_MEMORY).free >= ROOM_BYTES


@contextmanager
def memory_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if is_usable() else None) as path:
        yield Path(path)
