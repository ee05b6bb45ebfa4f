"""A directory for one run on the disk under test, removed when the run ends, however it ends."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from varve.foundation.errors import DiskFull, InvalidRequest

_HEADROOM_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Workspace:
    """Hands out paths below its own directory."""

    root: Path

    def require(self, size: int) -> None:
        """Raises `DiskFull` before a case that would fill the disk."""
        free = shutil.disk_usage(self.root).free
        if free < size + _HEADROOM_BYTES:
            raise DiskFull(
                f"{self.root} has {free} bytes free, the case needs {size + _HEADROOM_BYTES}: "
                "pass smaller sizes or another --directory"
            )

    @contextmanager
    def directory(self, prefix: str) -> Iterator[Path]:
        """A fresh directory, removed on leaving."""
        path = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=self.root))
        try:
            yield path
        finally:
            shutil.rmtree(path)


@contextmanager
def open_workspace(parent: Path) -> Iterator[Workspace]:
    """A workspace below `parent`, which is made if it is missing."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix="varve-benchmarks-", dir=parent))
    except OSError as error:
        raise InvalidRequest(f"--directory {parent} cannot be used: {error}") from error
    try:
        yield Workspace(root)
    finally:
        shutil.rmtree(root)
