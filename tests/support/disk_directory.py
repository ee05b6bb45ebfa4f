"""A `tmp_path` on the disk, for tests whose subject it is; that of the others is in memory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="varve-", ignore_cleanup_errors=True) as path:
        yield Path(path)
