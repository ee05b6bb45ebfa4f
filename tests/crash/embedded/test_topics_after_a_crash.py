"""A crash at any step of creating and deleting topics leaves whole topics only (G3)."""

import random
from contextlib import suppress

import pytest

import varve
from varve.disk import CrashMode, FaultyFileSystem, PowerLoss
from varve.foundation.clock import ManualClock
from varve.foundation.errors import DirectoryOffline, DiskFull, StoreError, TopicExists
from varve.records import build_batch

PATHS = ["/a", "/b"]


class _Acknowledged:
    """What a script's calls returned from: topics that must be there, and that must not."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.gone: set[str] = set()


def _open(fs: FaultyFileSystem, clock: ManualClock) -> varve.Store:
    return varve.open(PATHS, fs=fs, clock=clock, random=random.Random(5), maintain=False)


def _script(fs: FaultyFileSystem, clock: ManualClock, acknowledged: _Acknowledged) -> None:
    store = _open(fs, clock)
    for name in ("first", "second"):
        store.create_topic(name, partitions=2, settings={"flush": "ack"})
        acknowledged.there.add(name)
    store.topic("first").append(value=b"kept")
    store.delete_topic("second")
    acknowledged.there.remove("second")
    acknowledged.gone.add("second")
    store.close()


def _check(fs: FaultyFileSystem, clock: ManualClock, acknowledged: _Acknowledged) -> None:
    with _open(fs, clock) as store:
        found = {topic.name for topic in store.topics()}
        assert acknowledged.there - {"second"} <= found
        assert not acknowledged.gone & found
        for topic in store.topics():
            assert topic.partition_count == 2
            assert topic.settings.syncs_every_append
            for partition in range(2):
                topic.append(value=b"later", partition=partition)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_topics_are_whole_after_a_crash_at_any_step(mode: CrashMode) -> None:
    clock = ManualClock()
    trial = FaultyFileSystem(clock)
    _script(trial, clock, _Acknowledged())
    assert trial.steps > 50
    for step in range(1, trial.steps + 1):
        fs, acknowledged = FaultyFileSystem(clock, seed=step), _Acknowledged()
        fs.crash_at(step)
        with suppress(PowerLoss):
            _script(fs, clock, acknowledged)
        try:
            _check(fs.after_crash(mode, seed=step), clock, acknowledged)
        except (AssertionError, StoreError) as error:
            raise AssertionError(f"after a crash at\n{fs.describe_trace(3)}") from error


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
    acknowledged = _Acknowledged()
    acknowledged.there = {"first", "second"}
    _check(fs, clock, acknowledged)


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
            partition.append_batch(build_batch([varve.Record(None, b"x")]))
            served += 1
    assert served == 2
    with pytest.raises(TopicExists):
        store.create_topic("first", partitions=4)
    with pytest.raises(DirectoryOffline, match="/b"):
        store.close()
