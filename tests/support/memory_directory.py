"""A directory in memory where the system has one: for files that never outlive their test."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def memory_directory() -> Iterator[Path]:
    is_usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if is_usable else None) as path:
        yield Path(path)
