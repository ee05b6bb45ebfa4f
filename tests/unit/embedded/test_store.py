"""Opening, topics and their settings, several directories, what a crash leaves."""

import json
import os
import random
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import varve
from tests.support.directory_check import check_log_directory
from varve.disk import MemoryFileSystem, RealFileSystem
from varve.embedded.topic_table import TOPICS_FILE
from varve.foundation import errors
from varve.foundation.clock import ManualClock

OpenStore = Callable[..., varve.Store]

ROOT = Path(__file__).parents[3]


def _table(fs: MemoryFileSystem, path: str = "/data") -> dict[str, dict[str, object]]:
    content = json.loads(fs.read(f"{path}/{TOPICS_FILE}"))
    return dict(content["topics"])


def _write_table(fs: MemoryFileSystem, path: str, content: object) -> None:
    with fs.open_writable(f"{path}/{TOPICS_FILE}") as file:
        data = json.dumps(content).encode()
        file.write_at(0, data)
        file.truncate(len(data))


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert varve.__version__ == project["project"]["version"]


def test_topics_keep_their_id_partitions_and_settings(open_store: OpenStore) -> None:
    store = open_store()
    made = store.create_topic("orders", partitions=3, settings={"segment.bytes": 1_000_000})
    store.create_topic("a")
    store.close()
    reopened = open_store()
    found = reopened.topic("orders")
    assert [topic.name for topic in reopened.topics()] == ["a", "orders"]
    assert (found.id, found.partition_count) == (made.id, 3)
    assert found.settings.segment_bytes == 1_000_000
    assert found.partition(2).log.settings.segment_bytes == 1_000_000


def test_store_settings_are_the_defaults_of_topics(open_store: OpenStore) -> None:
    store = open_store(settings={"log.segment.bytes": 5_000, "flush": "ack"})
    topic = store.create_topic("orders", settings={"segment.bytes": 6_000})
    assert topic.settings.segment_bytes == 6_000
    assert topic.settings.syncs_every_append
    assert store.create_topic("other").settings.segment_bytes == 5_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"segment.bytes": 5}, "log.segment.bytes for all topics"),
        ({"log.segment.byte": 5}, "did you mean 'log.segment.bytes'"),
        ({"zzz": 5}, "docs/reference/configuration.md"),
        ({"log.segment.bytes": 13}, "must be 14 to"),
        ({"log.segment.bytes": "many"}, "must be of type int"),
    ],
)
def test_bad_store_settings_are_refused(
    open_store: OpenStore, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(errors.InvalidSetting, match=message):
        open_store(settings=settings)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "a\0b"])
def test_bad_topic_names_are_refused(store: varve.Store, name: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        store.create_topic(name)
    with pytest.raises(errors.NotFound if name else errors.InvalidRequest):
        store.topic(name)
    assert store.topics() == []


def test_a_deleted_topic_is_gone_and_may_be_made_anew(
    open_store: OpenStore, fs: MemoryFileSystem
) -> None:
    store = open_store()
    old = store.create_topic("orders", partitions=2)
    old.append(value=b"old")
    store.delete_topic("orders")
    assert store.topics() == []
    assert _table(fs) == {}
    with pytest.raises(errors.NotFound):
        old.append(value=b"late")
    with pytest.raises(errors.NotFound):
        store.delete_topic("orders")
    new = store.create_topic("orders")
    assert list(new.read()) == []
    assert new.id != old.id


def test_the_newest_table_of_several_directories_counts(
    open_store: OpenStore, fs: MemoryFileSystem
) -> None:
    store = open_store(["/a", "/b"])
    store.create_topic("orders", settings={"segment.bytes": 500})
    store.close()
    assert _table(fs, "/a") == _table(fs, "/b")
    _write_table(fs, "/a", {"format": 1, "version": 1, "topics": {}})
    assert open_store(["/a", "/b"]).topic("orders").settings.segment_bytes == 500


def test_a_broken_table_is_named_and_nothing_is_opened(
    open_store: OpenStore, fs: MemoryFileSystem
) -> None:
    open_store().close()
    _write_table(fs, "/data", "no table")
    with pytest.raises(errors.Corrupt, match=f"/data/{TOPICS_FILE}"):
        open_store()


def test_topics_of_a_directory_without_a_table_are_found_by_their_names(
    open_store: OpenStore, fs: MemoryFileSystem
) -> None:
    store = open_store()
    made = store.create_topic("orders", partitions=3, settings={"segment.bytes": 500})
    made.append(value=b"x", partition=2)
    store.close()
    fs.remove(f"/data/{TOPICS_FILE}")
    reopened = open_store()
    found = reopened.topic("orders")
    assert (found.id, found.partition_count) == (made.id, 3)
    assert found.settings.segment_bytes == 1 << 30
    assert [record.value for record in found.read()] == [b"x"]
    reopened.delete_topic("orders")
    assert reopened.topics() == []


def test_partitions_spread_over_the_directories(open_store: OpenStore) -> None:
    store = open_store(["/a", "/b"])
    topic = store.create_topic("orders", partitions=4)
    roots = [partition.log.directory.split("/")[1] for partition in topic.partitions]
    assert sorted(roots) == ["a", "a", "b", "b"]


def test_a_directory_in_use_is_refused_with_a_remedy(open_store: OpenStore) -> None:
    open_store()
    with pytest.raises(errors.Locked, match="close that first"):
        open_store()


def test_the_maintenance_threads_run_and_end(fs: MemoryFileSystem, clock: ManualClock) -> None:
    store = varve.open("/data", fs=fs, clock=clock)
    running = store.health()
    assert running.is_healthy
    names = {worker.name for worker in running.workers}
    assert names == {"varve-maintenance", "varve-retention", "varve-cleaner-0"}
    store.close()
    assert not names & {thread.name for thread in threading.enumerate()}


def test_what_a_crash_tore_is_told(open_store: OpenStore, fs: MemoryFileSystem) -> None:
    store = open_store()
    store.create_topic("orders").append(value=b"whole")
    store.abandon()
    path = "/data/orders-0/00000000000000000000.log"
    with fs.open_writable(path) as file:
        file.write_at(file.size(), b"torn")
    store = open_store()
    assert "cut 4 bytes" in store.recovered["orders-0"][0]
    assert [record.value for record in store.topic("orders").read()] == [b"whole"]


def test_a_partition_of_another_topic_of_the_same_name_is_refused(
    open_store: OpenStore, fs: MemoryFileSystem
) -> None:
    store = open_store()
    store.create_topic("orders")
    store.close()
    content = json.loads(fs.read(f"/data/{TOPICS_FILE}"))
    content["topics"]["orders"]["id"] = "A" * 21 + "Q"
    _write_table(fs, "/data", content)
    with pytest.raises(errors.InconsistentTopicId, match="orders-0"):
        open_store().topic("orders").append(value=b"x")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused_and_leaves_the_store_to_its_parent(tmp_path: Path) -> None:
    with varve.open(tmp_path / "data", maintain=False) as store:
        topic = store.create_topic("orders")
        topic.append(value=b"before")
        partition = topic.partition(0)
        child = os.fork()
        if child == 0:
            refused = 0
            for act in (lambda: topic.append(value=b"child"), lambda: partition.flush()):
                try:
                    act()
                except errors.Closed:
                    refused += 1
            store.close()
            os._exit(0 if refused == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(errors.Locked):
            varve.open(tmp_path / "data")
        topic.append(value=b"after")
        assert [record.value for record in topic.read()] == [b"before", b"after"]


@pytest.mark.parametrize("count", [1.5, True, 0, -1, "3", 2**31])
def test_partitions_that_are_no_count_are_refused_and_nothing_is_written(
    open_store: OpenStore, count: Any
) -> None:
    store = open_store()
    with pytest.raises(errors.InvalidRequest, match="whole number"):
        store.create_topic("orders", partitions=count)
    assert store.topics() == []


@pytest.mark.parametrize("name", [None, 5, b"orders"])
def test_a_topic_name_that_is_no_text_is_refused(open_store: OpenStore, name: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="give a str"):
        open_store().create_topic(name)


@pytest.mark.parametrize(
    "path", [None, 5, b"data", "", "a\0b", [""], [b"data"], [None], [3], [], ["/a", "/a"]]
)
def test_what_is_no_path_or_named_twice_is_refused(open_store: OpenStore, path: Any) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        open_store(path)
    assert path in ([], ["/a", "/a"]) or "is not a path" in str(refused.value)


def test_a_failure_in_the_block_is_not_hidden_by_one_in_closing(tmp_path: Path) -> None:
    failure = ZeroDivisionError()
    store = varve.open(tmp_path / "data", maintain=False)
    store.create_topic("orders").append(value="1")
    store.topic("orders").partition(0).log.abandon()
    store.__exit__(ZeroDivisionError, failure, None)
    assert "closing the store failed" in failure.__notes__[0]


def test_a_directory_of_other_things_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(varve.StoreError, match="photos"):
        varve.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_keyless_records_begin_at_a_partition_of_chance(tmp_path: Path) -> None:
    begun = set()
    for seed in range(20):
        with varve.open(tmp_path / "data", random=random.Random(seed), maintain=False) as store:
            topic = store.create_topic("orders", partitions=3, exist_ok=True)
            begun.add(topic.append(value="1").partition)
    assert begun == {0, 1, 2}


def test_a_truncation_inside_a_batch_does_not_read_like_lost_data(tmp_path: Path) -> None:
    store = varve.open(tmp_path / "data", maintain=False)
    topic = store.create_topic("orders")
    for _ in range(3):
        topic.append_many([("key", "value")] * 5)
    log = topic.partition(0).log
    log.flush()
    log.truncate_to(8)
    assert log.end_offset == 8
    store.close()
    found = check_log_directory(RealFileSystem(), str(tmp_path / "data"), now_ms=0)
    assert [finding for finding in found if finding.severity == "error"] == []
