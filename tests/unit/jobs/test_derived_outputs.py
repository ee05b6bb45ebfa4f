"""Outputs are registered before they are written; the rows of an erasure are found in them."""

import errno
import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pytest

from tests.support.source_topic import NAME, SourceTopic
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock, SystemClock
from varve.foundation.errors import Corrupt, DiskFull, Locked, Unavailable
from varve.foundation.worker import StopSignal
from varve.jobs.derived_outputs import ErasedRows, register_files
from varve.jobs.tier.bucket import Bucket, find_cluster, find_topic
from varve.object_store import MemoryObjectStore
from varve.topics.outputs import (
    OUTPUTS_FILE,
    OUTPUTS_LOCK,
    DerivedOutput,
    LocalOutputRegistry,
    OutputKind,
    OutputRegistry,
    RemoteOutputRegistry,
)

TABLE = DerivedOutput(
    kind=OutputKind.TABLE,
    topic="orders",
    topic_id="AAAAAAAAAAAAAAAAAAAAAA",
    place="file:/warehouse",
    name="shop.orders",
    how=(("catalog", "sql"),),
    noted_ms=7,
)


def make_directory() -> LocalOutputRegistry:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory("/data")
    return LocalOutputRegistry("/data", fs)


@pytest.fixture(params=["tier", "directory"])
def outputs(request: pytest.FixtureRequest) -> OutputRegistry:
    if request.param == "tier":
        return RemoteOutputRegistry(MemoryObjectStore(), "cluster")
    return make_directory()


def test_a_noted_output_is_found_by_its_topic_alone(outputs: OutputRegistry) -> None:
    other = replace(TABLE, topic="other", topic_id="BBBBBBBBBBBBBBBBBBBBBB")
    recreated = replace(TABLE, topic_id=other.topic_id)
    for output in (TABLE, other, recreated):
        outputs.note(output)
    assert outputs.find(TABLE.topic, TABLE.topic_id) == [TABLE]
    assert outputs.find(TABLE.topic, recreated.topic_id) == [recreated]
    assert outputs.find("nobody", TABLE.topic_id) == []


def test_noting_twice_leaves_one_note_with_the_latest_words(outputs: OutputRegistry) -> None:
    outputs.note(TABLE)
    later = replace(TABLE, noted_ms=8)
    outputs.note(later)
    assert outputs.find(TABLE.topic, TABLE.topic_id) == [later]


def test_what_is_forgotten_is_not_found_and_the_rest_is(outputs: OutputRegistry) -> None:
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


def _note_some(directory: str, who: int) -> None:
    for number in range(10):
        LocalOutputRegistry(directory).note(replace(TABLE, name=f"shop.t{who}-{number}"))


def test_processes_that_note_at_the_same_time_lose_no_note(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    runs = [fork.Process(target=_note_some, args=(str(tmp_path), who)) for who in range(4)]
    for one in runs:
        one.start()
    for one in runs:
        one.join()
    assert [one.exitcode for one in runs] == [0] * 4
    found = LocalOutputRegistry(str(tmp_path)).find(TABLE.topic, TABLE.topic_id)
    assert len(found) == 40


def test_a_turn_that_never_comes_is_an_error_and_no_note() -> None:
    waited: list[float] = []

    class Waiting(StopSignal):
        def wait_ms(self, wait_ms: float) -> bool:
            waited.append(wait_ms)
            return False

    outputs = replace(make_directory(), stop=Waiting())
    with outputs.fs.lock(f"/data/{OUTPUTS_LOCK}"), pytest.raises(Locked, match="run again"):
        outputs.note(TABLE)
    assert sum(waited) == 30_000
    assert outputs.find(TABLE.topic, TABLE.topic_id) == []
    outputs.note(TABLE)
    assert outputs.find(TABLE.topic, TABLE.topic_id) == [TABLE]


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.EROFS, Unavailable, "mount the disk for writing"),
        (errno.EACCES, Unavailable, "grant the permission"),
        (errno.ENOSPC, DiskFull, "free some space"),
    ],
)
def test_a_disk_that_refuses_is_told(
    monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Unavailable], remedy: str
) -> None:
    outputs = make_directory()

    def refuse(path: str) -> None:
        raise OSError(number, "refused", path)

    monkeypatch.setattr(outputs.fs, "lock", refuse)
    with pytest.raises(kind, match=remedy) as caught:
        outputs.note(TABLE)
    assert f"/data/{OUTPUTS_LOCK}: refused" in str(caught.value)


def test_files_of_a_query_are_noted_once_by_their_full_path(tmp_path: Path) -> None:
    topic = SourceTopic(tmp_path)
    topic.put(("k", "1"))
    topic.roll()
    topic.copy()
    for _ in range(2):
        register_files(topic.options(), "rows", format="csv", clock=SystemClock())
    address = Bucket(topic.url)
    home = find_topic(address, NAME)
    (found,) = RemoteOutputRegistry(address.objects(), find_cluster(address)).find(
        NAME, home.topic_id
    )
    assert (found.kind, found.place) == (OutputKind.FILES, str(Path("rows").absolute()))
    topic.close()


def _wanted(keys: frozenset[bytes] = frozenset()) -> ErasedRows:
    offsets = {0: np.array([3, 9], np.int64), 2: np.array([], np.int64)}
    return ErasedRows(keys, offsets)


def _find(wanted: ErasedRows, keys: pa.Array | None = None) -> list[bool]:
    partitions = pa.array([0, 0, 1, 0, 2], pa.int32())
    offsets = pa.array([3, 4, 9, 9, 3], pa.int64())
    return [bool(one) for one in wanted.find(partitions, offsets, keys)]


def test_a_row_matches_by_its_partition_and_offset() -> None:
    assert _find(_wanted()) == [True, False, False, True, False]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string()])
@pytest.mark.parametrize("more", [0, 100])
def test_a_row_matches_by_its_key_however_many_are_wanted(kind: pa.DataType, more: int) -> None:
    wanted = _wanted(frozenset([b"ann", *(b"%d" % one for one in range(more))]))
    keys = pa.array(["bob", "ann", None, "cy", ""], kind)
    assert _find(wanted, keys) == [True, True, False, True, False]


def test_a_chunked_column_is_looked_at_as_a_whole() -> None:
    column = pa.chunked_array([[0, 0], [0]], pa.int32())
    found = _wanted().find(column, pa.chunked_array([[1], [3, 9]]), None)
    assert found.tolist() == [False, True, True]


def test_no_rows_and_nothing_wanted_match_nothing() -> None:
    none = pa.array([], pa.int64())
    assert _wanted(frozenset([b"a"])).find(none, none, pa.array([], pa.binary())).tolist() == []
    nothing = ErasedRows(frozenset(), {})
    assert nothing.is_empty
    assert _find(nothing, pa.array([b"a"] * 5)) == [False] * 5
