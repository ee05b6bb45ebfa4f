"""A table that begins with a snapshot holds its rows and goes on behind it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.support.feed_bench import build_feed
from tests.support.shape_engine import wait_until
from tests.support.snapshot_topic import URL, SnapshotTopic
from tests.support.source_topic import SourceTopic
from varve.disk import RealFileSystem
from varve.foundation.clock import ManualClock, SystemClock
from varve.foundation.errors import InvalidRequest, Unavailable
from varve.http.shapes.initial_rows import BrokerFileRows, SnapshotRows, open_snapshot_rows
from varve.http.shapes.launch import make_feed_factory
from varve.object_store import open_object_store
from varve.shapes.definition import define
from varve.shapes.engine import ShapeEngine
from varve.shapes.feed.initial_load import KeyIndexScan
from varve.shapes.feed.resuming import find_tombstone_retention
from varve.shapes.offset import BEFORE_ALL, LAST
from varve.shapes.opening import TopicOptions
from varve.topics import StoreCluster, TopicReader


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SnapshotTopic]:
    topic = SourceTopic(tmp_path, partitions=2, cleanup_policy="compact,delete")
    yield SnapshotTopic(topic)
    topic.close()


def _source(kit: SnapshotTopic) -> TopicReader:
    return StoreCluster(kit.topic.kit.store).reader("orders")


def test_a_table_begins_with_the_rows_of_a_snapshot(kit: SnapshotTopic, tmp_path: Path) -> None:
    kit.topic.put(("a", '{"n":1}'), ("b", '{"n":2}'), ("a", '{"n":3}'))
    kit.topic.put(("c", '{"n":4}'), ("d", '{"n":5}'), ("d", None), partition=1)
    kit.take()
    kit.topic.put(("b", '{"n":6}'))
    source = _source(kit)
    state = SnapshotRows(kit.open(), source)
    assert state.resume_offsets == {0: 3, 1: 3}
    feed = build_feed(source, tmp_path / "tables", rows=lambda reader: state)
    feed.open()
    with feed.view() as view:
        assert {row["key"]: row["n"] for _, row in view.rows()} == {
            b'"a"': b"3",
            b'"b"': b"2",
            b'"c"': b"4",
        }
    ((only,),) = [one.changes for one in feed.poll(max_records=10, wait_ms=0)]
    assert only.previous == {"key": b'"b"', "n": b"2"}
    feed.close()


def test_a_snapshot_that_the_log_no_longer_reaches_is_refused(kit: SnapshotTopic) -> None:
    kit.topic.put(("a", '{"n":1}'), ("b", '{"n":2}'))
    kit.take()
    kit.topic.put(("c", '{"n":3}'), ("d", '{"n":4}'))
    kit.topic.topic.partition(0).delete_records(3)
    with pytest.raises(InvalidRequest, match="make a newer snapshot"):
        SnapshotRows(kit.open(), _source(kit))


def test_a_snapshot_of_records_that_the_log_lost_is_refused(kit: SnapshotTopic) -> None:
    kit.topic.put(("a", '{"n":1}'), ("b", '{"n":2}'))
    kit.take()
    log = kit.topic.topic.partition(0).log
    end = log.end_offset
    assert end > 0
    log.truncate_to(end - 1)
    while log.end_offset <= end:
        kit.topic.topic.append(key=b"c", value=b"{}", partition=0)
    with pytest.raises(InvalidRequest, match=r"lost: .* make another snapshot"):
        SnapshotRows(kit.open(), _source(kit))


def test_a_snapshot_that_is_older_than_deletions_are_kept_is_refused(
    kit: SnapshotTopic, tmp_path: Path
) -> None:
    kit.topic.put(("a", '{"n":1}'))
    kit.take(store=open_object_store(f"file:{tmp_path}/place"))
    source, url = _source(kit), f"{tmp_path}/place"
    kept_ms = find_tombstone_retention(source)
    taken_ms = open_snapshot_rows(url, source, clock=SystemClock()).taken_ms
    assert kept_ms is not None
    assert taken_ms is not None
    clock = ManualClock(taken_ms + kept_ms)
    assert [len(part) for part in open_snapshot_rows(url, source, clock=clock).read()] == [1]
    clock.advance(1)
    with pytest.raises(InvalidRequest, match=r"delete\.retention\.ms=.* make a newer snapshot"):
        open_snapshot_rows(url, source, clock=clock)


def test_a_snapshot_of_another_topic_is_refused(kit: SnapshotTopic) -> None:
    kit.topic.put(("a", '{"n":1}'))
    kit.take()
    snapshot = kit.open()
    other = replace(snapshot, document=replace(snapshot.document, topic="payments"))
    with pytest.raises(InvalidRequest, match="is of topic payments"):
        SnapshotRows(other, _source(kit))
    anew = replace(snapshot, document=replace(snapshot.document, topic_id="x" * 22))
    with pytest.raises(InvalidRequest, match="was deleted and created again"):
        SnapshotRows(anew, _source(kit))


def test_a_snapshot_that_is_not_there_is_waited_for_and_told_of(
    kit: SnapshotTopic, tmp_path: Path
) -> None:
    kit.topic.put(("a", '{"n":1}'))
    place, clock = tmp_path / "place", SystemClock()
    (place / "snapshot").mkdir(parents=True)
    maker = make_feed_factory(
        kit.topic.kit.store,
        {"orders": TopicOptions(snapshot=str(place))},
        str(tmp_path / "tables"),
        fs=RealFileSystem(),
        clock=clock,
    )
    root = str(tmp_path / "shapes")
    files, random = RealFileSystem(), Random(7)
    with ShapeEngine(root, maker.make, fs=files, clock=clock, random=random).open() as engine:
        shape = engine.find_or_create(define("orders"))
        wait_until(lambda: engine.health() == "waiting")
        told = engine.topic_health("orders")
        assert told is not None
        assert f"{place} does not hold a snapshot" in told.error
        kit.take(store=open_object_store(f"file:{place}"))
        wait_until(lambda: shape.is_snapshot_complete or shape.is_dropped)
        assert not shape.is_dropped
        assert b'"n":1' in b"".join(shape.read(BEFORE_ALL, LAST))


def test_files_that_go_while_rows_are_taken_from_them_are_waited_for(
    kit: SnapshotTopic, tmp_path: Path
) -> None:
    kit.topic.put(("a", '{"n":1}'))
    kit.take()
    state = SnapshotRows(kit.open(), _source(kit))
    kit.store.delete([entry.key for entry in kit.store.list("data/")])
    lost = BrokerFileRows(_source(kit), [str(tmp_path / "lost")])
    (tmp_path / "other").mkdir()
    other = BrokerFileRows(_source(kit), [str(tmp_path / "other")])
    for one, place in ((state, URL), (lost, "lost"), (other, "other")):
        with pytest.raises(Unavailable, match=f"the first rows come from .*{place}"):
            list(one.read())


def test_a_topic_in_the_tier_has_a_state_by_key_indexes(kit: SnapshotTopic) -> None:
    for number in range(3):
        kit.topic.put(("a", f'{{"n":{number}}}'), (f"b{number}", '{"n":0}'))
        kit.topic.roll(0)
    kit.topic.kit.clean_now(roll=False)
    kit.topic.copy(0)
    kit.topic.put(("b0", None))
    state = KeyIndexScan(kit.topic.kit.store, _source(kit))
    last: dict[bytes | None, bytes | None] = {}
    for records in state.read():
        last.update(records)
    assert {key: value for key, value in last.items() if value is not None} == {
        b"a": b'{"n":2}',
        b"b1": b'{"n":0}',
        b"b2": b'{"n":0}',
    }


@pytest.mark.parametrize("is_copied", [False, True])
def test_the_files_of_a_server_tell_the_latest_records(kit: SnapshotTopic, is_copied: bool) -> None:
    for number in range(3):
        kit.topic.put(("a", f'{{"n":{number}}}'), (f"b{number}", '{"n":0}'))
        kit.topic.roll(0)
    if is_copied:
        kit.topic.copy(0)
    kit.topic.put(("b0", None))
    kit.topic.put(("c", '{"n":5}'), partition=1)
    kit.topic.flush()
    address = kit.topic.options().address
    state = BrokerFileRows(_source(kit), [kit.topic.kit.path], address=address)
    assert state.resume_offsets == {0: 7, 1: 1}
    kit.topic.put(("a", '{"n":100}'))
    kit.topic.flush()
    found = [record for records in state.read() for record in records]
    assert dict(found) == {b"a": b'{"n":2}', b"b1": b'{"n":0}', b"b2": b'{"n":0}', b"c": b'{"n":5}'}
    assert len(found) == 4


_IMPORTS = """
import json, os, sys
import varve
from varve.http.shapes.launch import make_feed_factory
from varve.shapes.opening import TopicOptions
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock

varve.open  # imports what a store needs

def find_imported(how, data):
    topics = {"orders": TopicOptions(snapshot=data)} if how == "snapshot" else {}
    beside = [data] if how == "beside" else []
    with varve.open(data, maintain=False) as store:
        files, clock = RealFileSystem(), SystemClock()
        make_feed_factory(store, topics, data + "-tables", fs=files, clock=clock, beside=beside)
        is_imported = "varve.http.shapes.initial_rows" in sys.modules
        known = set(sys.modules)
        from varve.http.shapes.initial_rows import BrokerFileRows
        from varve.topics import StoreCluster
        store.create_topic("orders").append(key=b"a", value=b"{}")
        store.flush()
        source = StoreCluster(store).reader("orders")
        if how == "none":
            assert "pyspark" not in sys.modules
            return [is_imported]
        assert [*BrokerFileRows(source, [data]).read()] == [[(b"a", b"{}")]]
        new = sorted(set(sys.modules) - known)
        assert "pyspark" not in sys.modules
        return [is_imported, *(n for n in new if n.startswith(("pyarrow", "pyspark", "varve")))]

for how in ("beside", "snapshot", "none"):
    child = os.fork()
    if child == 0:
        print(json.dumps([how, find_imported(how, os.path.join(sys.argv[1], how))]), flush=True)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0, how
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """Whether the factory imports what reads files, and what reading imports after that."""
    command = [sys.executable, "-c", _IMPORTS, str(tmp_path_factory.mktemp("imports"))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return dict(map(json.loads, result.stdout.splitlines()))


@pytest.mark.parametrize(
    ("how", "said"), [("beside", [True]), ("snapshot", [True]), ("none", [False])]
)
def test_what_reads_files_is_imported_before_feeds_run(
    imported: dict[str, list[object]], how: str, said: list[object]
) -> None:
    assert imported[how] == said
