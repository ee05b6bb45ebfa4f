"""Engines of shapes over a store, in a directory that costs no disk."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_directory import memory_directory
from tests.support.shape_engine import Stage, StageMaker


@pytest.fixture
def path() -> Iterator[Path]:
    with memory_directory() as created:
        yield created


@pytest.fixture
def make_stage(path: Path) -> Iterator[StageMaker]:
    """Opens a stage, with an empty topic unless that is None, and closes it in the end."""
    with ExitStack() as stack:

        def make(topic: str | None = "t", **options: Any) -> Stage:
            stage = stack.enter_context(closing(Stage(path, **options)))
            if topic is not None:
                stage.store.create_topic(topic)
            return stage

        yield make


@pytest.fixture
def stage(make_stage: StageMaker) -> Stage:
    return make_stage("items")
