"""What Spark's processes write to standard error, in a file of its own.

Invariant  the file goes with the job unless the job asks to keep it.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator


class SparkLog:
    """The file; a process that is started while it catches writes to it as long as it runs."""

    def __init__(self) -> None:
        self._descriptor, self.path = tempfile.mkstemp(prefix="varve-job-", suffix=".log")
        self._is_kept = False

    def __enter__(self) -> "SparkLog":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if not self._is_kept:
            os.unlink(self.path)

    def keep(self) -> str:
        """Lets the file outlive the job, and gives its path."""
        self._is_kept = True
        return self.path

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Standard error of this process, and of those it starts meanwhile, goes to the file."""
        saved = os.dup(2)
        os.dup2(self._descriptor, 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
