"""Shapes in one process: a store, an engine, and clients that follow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.shape_engine import Follower, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    made.store.create_topic("items")
    yield made
    made.close()


def test_a_client_gets_the_rows_and_then_the_changes(stage: Stage) -> None:
    stage.put("items", "a", {"n": 1})
    stage.put("items", "b", {"n": 2})
    client = Follower(stage, "items")
    assert client.catch_up() == {"a": {"key": "a", "n": 1}, "b": {"key": "b", "n": 2}}
    stage.put("items", "a", {"n": 3})
    stage.put("items", "b", None)
    stage.put("items", "c", {"n": 4})
    assert client.catch_up() == {"a": {"key": "a", "n": 3}, "c": {"key": "c", "n": 4}}
    assert client.refetches == 0
