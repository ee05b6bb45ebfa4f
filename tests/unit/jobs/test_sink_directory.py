"""A sink finds its topic without the lock, makes what it is told to, and takes its turn."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import varve
from tests.support.directory_check import check_log_directory
from tests.support.sink_bench import batch_of
from tests.support.source_topic import NAME, SourceTopic
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Locked, NotFound, TopicExists
from varve.jobs.sink.sink_state import SINKS_FILE
from varve.jobs.sink.target import (
    SinkOptions,
    find_target,
    finish_open_transactions,
    open_directory,
    parse_sink_options,
)
from varve.jobs.source.options import SourceFilters
from varve.spark.columns import make_schema
from varve.spark.data_source import VarveWriter


def options(directory: Path | str, topic: str = "out", **more: str) -> SinkOptions:
    return parse_sink_options({"directory": str(directory), "topic": topic, **more})


def no_wait(seconds: float) -> None:
    raise AssertionError("nobody holds the lock")


def write(given: SinkOptions, values: list[bytes]) -> None:
    """A batch write of one task, as Spark does it."""
    writer = VarveWriter(given, make_schema(), overwrite=False)
    message = writer.write(iter([batch_of([{"key": b"k", "value": value} for value in values])]))
    writer.commit([message])


def test_a_topic_is_made_only_when_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="createTopic=true"):
        find_target(options(tmp_path / "data"), no_wait)
    assert not (tmp_path / "data").exists()
    told = options(tmp_path / "data", createTopic="true", partitions="3")
    made = find_target(told, no_wait)
    assert (made.topic, made.partition_count) == ("out", 3)
    assert find_target(told, no_wait) == made
    with pytest.raises(NotFound, match=r"no topic 'other'.*topics: out"):
        find_target(options(tmp_path / "data", "other"), no_wait)
    with pytest.raises(TopicExists, match="has 3 partitions, not 2"):
        find_target(options(tmp_path / "data", createTopic="true", partitions="2"), no_wait)


def test_a_directory_in_use_is_waited_for_and_then_named(tmp_path: Path) -> None:
    given = options(tmp_path / "data", lockWaitMs="300", createTopic="true")
    find_target(given, no_wait)
    waits: list[float] = []
    store = varve.open(tmp_path / "data", maintain=False)
    with pytest.raises(Locked, match=r"it waited 300 ms.*lockWaitMs"):
        open_directory(given, waits.append).__enter__()
    assert len(waits) == 3

    def close(seconds: float) -> None:
        store.close()

    with open_directory(given, close) as mine:
        assert mine.topic("out").partition_count == 1


def test_a_directory_of_a_server_is_written_through_the_server(tmp_path: Path) -> None:
    given = options(tmp_path / "data", lockWaitMs="0", createTopic="true")
    find_target(given, no_wait)
    with RealFileSystem().lock(str(tmp_path / "data" / ".lock")) as lock:
        lock.describe_owner("varve serve", "localhost:9092")
        with pytest.raises(Locked, match=r"bootstrap\.servers=localhost:9092 and stagingUrl"):
            open_directory(given, no_wait).__enter__()


def test_the_files_of_a_sink_do_not_disturb_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    write(options(directory, createTopic="true"), [b"a", b"b"])
    given = options(directory, sinkId="daily", epoch="7")
    write(given, [b"c"])
    write(given, [b"c"])
    assert json.loads((directory / SINKS_FILE).read_text())["sinks"]["daily"]["epoch"] == 7
    with varve.open(directory, maintain=False) as store:
        assert store.recovered == {}
        found = store.topic("out").read(isolation="read_committed")
        assert [record.value for record in found] == [b"a", b"b", b"c"]
    assert check_log_directory(RealFileSystem(), str(directory), deep=True) == []
    assert finish_open_transactions(given, clock=SystemClock(), wait=no_wait) == []


def test_batches_are_staged_where_the_user_says_and_removed(tmp_path: Path) -> None:
    given = options(
        tmp_path / "data", createTopic="true", stagingUrl=f"file://{tmp_path}/shared/staging"
    )
    writer = VarveWriter(given, make_schema(), overwrite=False)
    message = writer.write(iter([batch_of([{"value": b"a"}])]))
    assert [part.key for part in message.task.parts] == [
        path.relative_to(tmp_path / "shared/staging").as_posix()
        for path in (tmp_path / "shared/staging").rglob("write-*/*")
    ]
    writer.abort([message, None])
    assert list((tmp_path / "shared/staging").rglob("write-*/*")) == []
    assert not (tmp_path / "data.staging").exists()


def test_batches_are_staged_beside_a_directory_of_any_name(tmp_path: Path) -> None:
    for name in ("a#b", "what?", "x%20y", "ö [1]"):
        given = options(tmp_path / name, createTopic="true")
        write(given, [b"a"])
        assert (tmp_path / f"{name}.staging").is_dir()
        with varve.open(tmp_path / name, maintain=False) as store:
            assert [record.value for record in store.topic("out").read()] == [b"a"]
    assert len(list(tmp_path.iterdir())) == 8


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[SourceTopic]:
    made = SourceTopic(tmp_path)
    yield made
    made.close()


def test_a_topic_in_the_tier_is_written_between_its_copies(tiered: SourceTopic) -> None:
    given = options(tiered.kit.path, NAME, sinkId="daily", epoch="1")
    tiered.put(("k", "before"))
    tiered.kit.store.close()
    write(given, [b"first"])
    write(given, [b"first"])
    rows = tiered.rows(SourceFilters(), is_hot=True)
    assert [row["value"] for row in rows] == [b"before", b"first"]
