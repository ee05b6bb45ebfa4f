"""`varve output`: what was made of a topic is listed, and forgotten when it is gone."""

from functools import partial
from pathlib import Path

import pytest

import varve
from tests.support.varve_command import run_varve
from varve.commit_log.directory_files import encode_topic_id
from varve.topics.outputs import DerivedOutput, LocalOutputRegistry, OutputKind

run = partial(run_varve, COLUMNS="300")


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A topic, and notes of a snapshot and a table whose places are gone."""
    path = tmp_path / "data"
    with varve.open(path, maintain=False) as store:
        topic = store.create_topic("people")
        topic.append(key="ann", value="v")
        assert topic.id is not None
        topic_id = encode_topic_id(topic.id)
    for kind, name in ((OutputKind.SNAPSHOT, "daily"), (OutputKind.TABLE, "shop.people")):
        LocalOutputRegistry(str(path)).note(
            DerivedOutput(
                kind=kind,
                topic="people",
                topic_id=topic_id,
                place=str(tmp_path / "gone"),
                name=name,
                how=(("warehouse", str(tmp_path / "gone")),),
            )
        )
    return str(path)


def test_what_is_gone_for_good_is_named_forgotten_and_keeps_no_erasure_back(data: str) -> None:
    listed = run("output", "list", "people", "--dir", data, "--json")
    snapshot, table = listed.rows
    assert (snapshot["kind"], table["kind"]) == ("snapshot", "table")
    assert snapshot["id"] in run("output", "list", "people", "--dir", data).stdout
    for one in (snapshot, table):
        refused = run("job", "erase", "people", "--dir", data, "--key", "ann", "--yes", code=1)
        assert f"varve output forget people {one['id']}" in refused.stderr
        unasked = run("output", "forget", "people", one["id"], "--dir", data, code=1)
        assert "add --yes" in unasked.stderr
        forgotten = run("output", "forget", "people", one["id"], "--dir", data, "--yes")
        assert f"forgot {one['kind']} {one['name']} at" in forgotten.stdout
    run("job", "erase", "people", "--dir", data, "--key", "ann", "--yes")
    assert "no output of this topic" in run("output", "list", "people", "--dir", data).stderr


def test_an_id_that_is_not_noted_is_refused(data: str) -> None:
    refused = run("output", "forget", "people", "snapshot-0", "--dir", data, "--yes", code=1)
    assert "has no registered output 'snapshot-0' (registered: " in refused.stderr
    assert len(run("output", "list", "people", "--dir", data, "--json").stdout.splitlines()) == 2
