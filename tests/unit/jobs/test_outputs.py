"""What jobs made of a topic is found again, and only that."""

import json
from dataclasses import replace

import pytest

from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt
from varve.jobs.outputs.notes import (
    OUTPUTS_FILE,
    DirectoryOutputs,
    Output,
    OutputKind,
    Outputs,
    TierOutputs,
)
from varve.object_store import MemoryObjectStore

TABLE = Output(
    kind=OutputKind.TABLE,
    topic="orders",
    topic_id="AAAAAAAAAAAAAAAAAAAAAA",
    place="file:/warehouse",
    name="shop.orders",
    how=(("catalog", "sql"),),
    noted_ms=7,
)


def make_directory() -> DirectoryOutputs:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory("/data")
    return DirectoryOutputs("/data", fs)


@pytest.fixture(params=["tier", "directory"])
def outputs(request: pytest.FixtureRequest) -> Outputs:
    if request.param == "tier":
        return TierOutputs(MemoryObjectStore(), "cluster")
    return make_directory()


def test_a_noted_output_is_found_by_its_topic_alone(outputs: Outputs) -> None:
    other = replace(TABLE, topic="other", topic_id="BBBBBBBBBBBBBBBBBBBBBB")
    outputs.note(TABLE)
    outputs.note(other)
    assert outputs.find(TABLE.topic, TABLE.topic_id) == [TABLE]
    assert outputs.find("nobody", TABLE.topic_id) == []


def test_noting_twice_leaves_one_note_with_the_latest_words(outputs: Outputs) -> None:
    outputs.note(TABLE)
    later = replace(TABLE, noted_ms=8)
    outputs.note(later)
    assert outputs.find(TABLE.topic, TABLE.topic_id) == [later]


def test_what_is_forgotten_is_not_found_and_the_rest_is(outputs: Outputs) -> None:
    snapshot = replace(TABLE, kind=OutputKind.SNAPSHOT)
    outputs.note(TABLE)
    outputs.note(snapshot)
    outputs.forget(TABLE)
    assert outputs.find(TABLE.topic, TABLE.topic_id) == [snapshot]


@pytest.mark.parametrize(
    "damage",
    [b"{", b"[]", b'{"format": 2, "outputs": []}', b'{"format": 1, "outputs": [{"kind": "x"}]}'],
)
def test_a_note_that_cannot_be_read_is_an_error_and_not_nothing(damage: bytes) -> None:
    outputs = make_directory()
    outputs.note(TABLE)
    with outputs.fs.open_writable(outputs.path) as file:
        file.truncate(0)
        file.write_at(0, damage)
    with pytest.raises(Corrupt, match=OUTPUTS_FILE):
        outputs.find(TABLE.topic, TABLE.topic_id)


def test_a_note_is_json_that_people_can_read() -> None:
    outputs = make_directory()
    outputs.note(TABLE)
    document = json.loads(outputs.fs.read(outputs.path))
    assert document["outputs"][0]["place"] == "file:/warehouse"
    assert document["outputs"][0]["how"] == {"catalog": "sql"}
