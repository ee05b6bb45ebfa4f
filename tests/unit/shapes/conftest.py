"""An engine of shapes over a store, in a directory that costs no disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.memory_directory import memory_directory
from tests.support.shape_engine import Stage


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_directory() as created:
        yield created


@pytest.fixture
def stage(path: Path) -> Iterator[Stage]:
    created = Stage(path)
    created.store.create_topic("items")
    yield created
    created.close()
