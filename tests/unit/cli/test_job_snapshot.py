"""`varve snapshot`: places of snapshots are listed, verified and pruned."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.snapshot_topic import SMALL
from tests.support.source_topic import SourceTopic
from tests.support.varve_command import run_varve
from varve.foundation.errors import NotFound
from varve.jobs.snapshot.snapshot import take_snapshot
from varve.jobs.tasks import LocalRunner
from varve.jobs.tier.bucket import Bucket

run = partial(run_varve, "snapshot")


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[SourceTopic]:
    made = SourceTopic(tmp_path)
    made.put(("a", "1"), ("b", "2"))
    made.flush()
    yield made
    made.close()


def test_a_place_of_any_name_is_listed(topic: SourceTopic, tmp_path: Path) -> None:
    names = ("plain", "x%20y", "a#b", "what?", "a:b")
    for name in names:
        take_snapshot(
            "orders",
            str(tmp_path / "places" / name),
            directories=[topic.kit.path],
            settings=SMALL,
            runner=LocalRunner(),
        )
        run("list", str(tmp_path / "places" / name))
        run("verify", str(tmp_path / "places" / name))
    assert {path.name for path in (tmp_path / "places").iterdir()} == set(names)


@pytest.mark.parametrize("words", [("list",), ("verify",), ("prune", "--keep", "1", "--yes")])
def test_a_directory_without_snapshots_is_told(topic: SourceTopic, words: tuple[str, ...]) -> None:
    failed = run(*words, topic.kit.path, code=1)
    assert "does not hold a snapshot" in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_snapshots_are_listed_verified_and_pruned(topic: SourceTopic, tmp_path: Path) -> None:
    place = str(tmp_path / "place")
    for number in range(2):
        topic.put((f"k{number}", "v"))
        topic.flush()
        take_snapshot(
            "orders", place, directories=[topic.kit.path], settings=SMALL, runner=LocalRunner()
        )
    lines = run("list", place, "--json").rows
    assert [(line["type"], line["snapshot"]) for line in lines] == [
        ("snapshot", 1),
        ("snapshot", 2),
    ]
    run("prune", place, code=2)
    pruned = json.loads(run("prune", place, "--keep", "1", "--yes", "--json").stdout)
    assert "snapshot/" in pruned["removed"][0]
    table = run("list", place).stdout.splitlines()
    assert len(table) == 3, "header, snapshot and its resume offsets"
    next((tmp_path / "place" / "data").glob("*.parquet")).unlink()
    damaged = run("verify", place, "--json", code=1)
    fault, summary = damaged.rows
    assert fault["message"].endswith("is missing")
    assert (summary["snapshots"], summary["faults"]) == (1, 1)


def test_a_log_directory_that_is_taken_for_an_object_store_stays_as_it_is(
    topic: SourceTopic,
) -> None:
    before = sorted(os.listdir(topic.kit.path))
    with pytest.raises(NotFound):
        take_snapshot(
            "orders",
            f"{topic.kit.path}.state",
            address=Bucket(f"file:{topic.kit.path}", cluster="none"),
            runner=LocalRunner(),
        )
    assert sorted(os.listdir(topic.kit.path)) == before
