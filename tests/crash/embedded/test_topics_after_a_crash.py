"""A crash at any step of creating, growing and deleting topics leaves whole topics only (G3)."""

import random
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field

import pytest

import varve
from tests.support.crash_images import crash_images, named, record
from varve.embedded.topic_admin import NewTopic
from varve.embedded.topic_table import TOPICS_FILE, TopicState, decode_topics
from varve.foundation.clock import ManualClock
from varve.foundation.errors import DirectoryOffline, DiskFull, StoreError, TopicExists
from varve.records import build_batch
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

PATHS = ["/a", "/b"]


@dataclass
class _Acknowledged:
    """What a script's calls returned from: topics that must be there, and that must not."""

    there: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    count: int = 2
    """Partitions of each topic; the first may have one more when its growth was under way."""
    deleting: set[str] = field(default_factory=lambda: {"second"})
    """Topics that may be gone, as their deletion may be under way."""


def _open(fs: FaultyFileSystem, clock: ManualClock) -> varve.Store:
    return varve.open(PATHS, fs=fs, clock=clock, random=random.Random(5), maintain=False)


def _script(fs: FaultyFileSystem, clock: ManualClock, acknowledged: _Acknowledged) -> None:
    store = _open(fs, clock)
    for name in ("first", "second"):
        store.create_topic(name, partitions=2, settings={"flush": "ack"})
        acknowledged.there.add(name)
    store.topic("first").append(value=b"kept", partition=0)
    store.add_partitions("first", 3)
    acknowledged.count = 3
    store.delete_topic("second")
    acknowledged.there.remove("second")
    acknowledged.gone.add("second")
    store.close()


def _check(fs: FaultyFileSystem, clock: ManualClock, acknowledged: _Acknowledged) -> None:
    with _open(fs, clock) as store:
        found = {topic.name for topic in store.topics()}
        assert acknowledged.there - acknowledged.deleting <= found
        assert not acknowledged.gone & found
        for topic in store.topics():
            is_first = topic.name == "first"
            assert topic.partition_count in ({acknowledged.count, 3} if is_first else {2})
            assert topic.settings.syncs_every_append
            for partition in range(topic.partition_count):
                topic.append(value=b"later", partition=partition)
    if found:
        table = decode_topics(fs.read(f"{PATHS[0]}/{TOPICS_FILE}"))
        assert {entry.state for entry in table.topics.values()} == {TopicState.READY}


def test_topics_are_whole_after_a_crash_at_any_step() -> None:
    clock = ManualClock()
    fs, acknowledged = FaultyFileSystem(clock), _Acknowledged()
    points = record(
        lambda: _script(fs, clock, acknowledged),
        lambda: _Acknowledged(set(acknowledged.there), set(acknowledged.gone), acknowledged.count),
        disk=fs,
    )
    assert len(points) > 50
    for image in crash_images(points):
        with named(image):
            _check(image.disk, clock, image.state)


def _group_script(fs: FaultyFileSystem, clock: ManualClock, acknowledged: _Acknowledged) -> None:
    """Topics that are created and deleted together."""
    store = _open(fs, clock)
    names = ["first", "second", "third"]
    created = store.create_topics([NewTopic(name, 2, {"flush": "ack"}) for name in names])
    assert [getattr(topic, "name", None) for topic in created] == names
    acknowledged.there |= set(names)
    acknowledged.deleting = {"second", "third"}
    assert store.delete_topics(["second", "third"]) == [None, None]
    acknowledged.there -= acknowledged.deleting
    acknowledged.gone |= acknowledged.deleting
    store.close()


def test_topics_of_one_call_are_whole_after_a_crash_at_any_step() -> None:
    clock = ManualClock()
    fs, acknowledged = FaultyFileSystem(clock), _Acknowledged()
    points = record(
        lambda: _group_script(fs, clock, acknowledged), lambda: deepcopy(acknowledged), disk=fs
    )
    assert len(points) > 50
    for image in crash_images(points):
        with named(image):
            _check(image.disk, clock, image.state)


def test_topics_of_one_call_share_their_syncs() -> None:
    clock = ManualClock()
    fs = FaultyFileSystem(clock)
    with _open(fs, clock) as store:
        synced = fs.steps
        store.create_topics([NewTopic(f"one-{number}", 1, {}) for number in range(20)])
        together = fs.steps - synced
        synced = fs.steps
        for number in range(20):
            store.create_topic(f"other-{number}", partitions=1)
        assert together < (fs.steps - synced) / 2
        synced = fs.steps
        store.delete_topics([f"one-{number}" for number in range(20)])
        together = fs.steps - synced
        synced = fs.steps
        for number in range(20):
            store.delete_topic(f"other-{number}")
        assert together < (fs.steps - synced) / 4


def test_a_full_disk_refuses_those_topics_of_one_call_that_do_not_fit() -> None:
    clock = ManualClock()
    fs = FaultyFileSystem(clock)
    with _open(fs, clock) as store:
        store.create_topic("first", partitions=2, settings={"flush": "ack"})
        fs.full_at(fs.used_bytes() + 10)
        topics = [NewTopic(name, 2, {"flush": "ack"}) for name in ("second", "third")]
        refused = store.create_topics([*topics, NewTopic("first", 2, {})])
        assert [type(error) for error in refused] == [DiskFull, DiskFull, TopicExists]
        assert [topic.name for topic in store.topics()] == ["first"]
        fs.full_at(None)
        assert not any(isinstance(topic, StoreError) for topic in store.create_topics(topics))
    _check(fs, clock, _Acknowledged({"first", "second", "third"}))


def test_a_full_disk_refuses_a_topic_which_can_be_made_later() -> None:
    clock = ManualClock()
    fs = FaultyFileSystem(clock)
    with _open(fs, clock) as store:
        store.create_topic("first", partitions=2, settings={"flush": "ack"})
        fs.full_at(fs.used_bytes() + 10)
        with pytest.raises(DiskFull):
            store.create_topic("second", partitions=2, settings={"flush": "ack"})
        assert [topic.name for topic in store.topics()] == ["first"]
        fs.full_at(None)
        store.create_topic("second", partitions=2, settings={"flush": "ack"})
    _check(fs, clock, _Acknowledged({"first", "second"}))


def test_a_directory_that_fails_leaves_the_others_at_work() -> None:
    clock = ManualClock()
    fs = FaultyFileSystem(clock)
    store = _open(fs, clock)
    store.create_topic("first", partitions=4)
    fs.fail_under("/b", OSError(5, "Input/output error"))
    store.create_topic("second", partitions=2)
    store.topic("second").append(value=b"x", partition=0)
    served = 0
    for partition in store.topic("first").partitions:
        with suppress(DirectoryOffline):
            partition.append_batch(build_batch([varve.NewRecord(None, b"x")]))
            served += 1
    assert served == 2
    with pytest.raises(TopicExists):
        store.create_topic("first", partitions=4)
    with pytest.raises(DirectoryOffline, match="/b"):
        store.close()


def test_what_is_acknowledged_after_a_crash_in_creating_survives_the_next() -> None:
    """A partition that a crash left half made is whole before it takes a record (G1)."""
    clock = ManualClock()
    fs = FaultyFileSystem(clock)
    points = record(lambda: _create_one(fs, clock), lambda: None, disk=fs)
    for image in crash_images(points, crashes_again=True):
        names = []
        with named(image):
            store = _open(image.disk, clock)
            for topic in store.topics():
                names.append(topic.name)
                for number in range(topic.partition_count):
                    topic.append(value=b"kept", partition=number)
            store.abandon()
            after = image.disk.after_crash(CrashMode.LOSE_UNSYNCED)
            with _open(after, clock) as store:
                for name in names:
                    topic = store.topic(name)
                    ends = [topic.partition(one).log.end_offset for one in range(2)]
                    assert ends == [1, 1]


def _create_one(fs: FaultyFileSystem, clock: ManualClock) -> None:
    store = _open(fs, clock)
    store.create_topic("first", partitions=2, settings={"flush": "ack"})
    store.abandon()


def test_a_directory_that_fails_among_many_partitions_keeps_none_of_them() -> None:
    clock = ManualClock()
    fs = FaultyFileSystem(clock)
    store = _open(fs, clock)
    fs.fail_under("/b/many-7", OSError(5, "Input/output error"))
    store.create_topic("many", partitions=20)
    for number in range(20):
        store.topic("many").append(value=b"x", partition=number)
    store.close()
    fs.mend()
    assert [name for name in fs.names("/b") if name.startswith("many")] == []
    assert len([name for name in fs.names("/a") if name.startswith("many")]) == 20
