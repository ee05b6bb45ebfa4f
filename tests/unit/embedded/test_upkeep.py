"""What a store does by itself and on demand: clean, expire, look up, audit, tell its health."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import varve
from varve.cleaning.metrics import CleanProgress
from varve.cleaning.removals.removal import Reason
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Closed, InvalidRequest, NotFound
from varve.foundation.metrics import exposition

OpenStore = Callable[..., varve.Store]
COMPACTED: dict[str, str | int | float] = {"cleanup.policy": "compact", "file.delete.delay.ms": 0}


def _keyed(store: varve.Store, **settings: float) -> varve.Topic:
    topic = store.create_topic("scores", settings=COMPACTED | settings)
    topic.append_many([("a", "1"), ("b", "2"), ("a", "3"), ("b", None)])
    return topic


def _offsets(topic: varve.Topic) -> list[int]:
    return [record.offset for record in topic.read()]


def test_cleaning_compacts_what_was_rolled(store: varve.Store) -> None:
    topic = _keyed(store)
    assert _offsets(topic) == [0, 1, 2, 3]
    store.clean("scores")
    assert _offsets(topic) == [0, 1, 2, 3]
    (cleaned,) = store.clean("scores", roll=True)
    assert _offsets(topic) == [2, 3]
    assert cleaned.compaction is not None
    assert cleaned.compaction.records == {Reason.KEPT: 2, Reason.SUPERSEDED: 2}


def test_a_dry_run_tells_and_changes_nothing(
    store: varve.Store, clock: ManualClock, fs: MemoryFileSystem
) -> None:
    topic = _keyed(store)
    topic.partition().log.roll()
    visits = store.create_topic("visits", settings={"retention.ms": 1000})
    visits.append(value="x")
    clock.advance(2000)
    before = {name: fs.read(f"/data/scores-0/{name}") for name in fs.names("/data/scores-0")}
    compacted, expired = store.clean(dry_run=True, roll=True)
    assert compacted.compaction is not None
    assert compacted.compaction.is_dry_run
    assert compacted.compaction.records[Reason.SUPERSEDED] == 2
    assert expired.compaction is None
    assert expired.expiry is not None
    assert len(expired.expiry.segments) == 1
    after = {name: fs.read(f"/data/scores-0/{name}") for name in before}
    assert after == before
    assert _offsets(topic) == [0, 1, 2, 3]
    assert _offsets(visits) == [0]


def test_replaced_files_wait_for_readers_unless_told_otherwise(
    store: varve.Store, fs: MemoryFileSystem
) -> None:
    topic = _keyed(store, **{"file.delete.delay.ms": 60_000})
    store.clean(roll=True)
    assert [name for name in fs.names("/data/scores-0") if name.endswith(".deleted")]
    topic.append(key="a", value="4")
    store.clean(roll=True, at_once=True)
    assert not [name for name in fs.names("/data/scores-0") if name.endswith(".deleted")]


def test_one_partition_or_all_are_cleaned(store: varve.Store) -> None:
    topic = store.create_topic("scores", partitions=2, settings=COMPACTED)
    for number in range(2):
        topic.append_many([("a", "1"), ("a", "2")], partition=number)
    store.clean("scores", 1, roll=True)
    assert [len(list(topic.read(partition=number))) for number in range(2)] == [2, 1]
    store.clean(roll=True)
    assert [len(list(topic.read(partition=number))) for number in range(2)] == [1, 1]
    with pytest.raises(NotFound, match="no partition 2"):
        store.clean("scores", 2)
    with pytest.raises(NotFound, match="no topic"):
        store.clean("nothing")


def test_what_progress_raises_ends_a_run_and_nothing_is_lost(
    store: varve.Store, fs: MemoryFileSystem
) -> None:
    topic = _keyed(store)
    seen: list[str] = []

    def stop(progress: CleanProgress) -> None:
        seen.append(progress.phase)
        if progress.phase == "copy":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.clean(roll=True, progress=stop)
    assert seen[-1] == "copy"
    assert _offsets(topic) == [0, 1, 2, 3]
    assert not [name for name in fs.names("/data/scores-0") if name.endswith(".cleaned")]
    store.clean()
    assert _offsets(topic) == [2, 3]


def test_one_round_does_all_background_work(store: varve.Store, clock: ManualClock) -> None:
    topic = _keyed(store, **{"min.cleanable.dirty.ratio": 0.1})
    visits = store.create_topic("visits", settings={"retention.ms": 1000})
    visits.append(value="x")
    topic.partition().log.roll()
    clock.advance(500)
    store.run_once()
    assert (_offsets(topic), _offsets(visits)) == ([2, 3], [0])
    store.run_once(clock.now_ms() + 1000)
    assert _offsets(visits) == []


def test_without_the_cleaner_only_a_clean_on_demand_compacts(open_store: OpenStore) -> None:
    store = open_store(settings={"log.cleaner.enable": "false"})
    topic = _keyed(store, **{"min.cleanable.dirty.ratio": 0})
    topic.partition().log.roll()
    store.run_once()
    assert _offsets(topic) == [0, 1, 2, 3]
    store.clean()
    assert _offsets(topic) == [2, 3]


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_the_latest_record_of_a_key_is_found(store: varve.Store, is_cleaned: bool) -> None:
    topic = store.create_topic("scores", partitions=3, settings=COMPACTED)
    topic.append_many((f"key-{n % 50}", str(n), {"n": str(n)}) for n in range(300))
    topic.append(key="key-7", value=None)
    if is_cleaned:
        store.clean(roll=True)
    found = topic.get("key-49")
    assert found in list(topic.read())
    assert found is not None
    assert (found.key, found.value, found.headers) == (b"key-49", b"299", (("n", b"299"),))
    deleted = topic.get(b"key-7")
    assert deleted is not None
    assert deleted.value is None
    assert topic.get("key-50") is None
    assert topic.get("key-49", partition=(found.partition + 1) % 3) is None
    topic.append(key="key-49", value="newer")
    newer = topic.get("key-49")
    assert newer is not None
    assert newer.value == b"newer"
    with pytest.raises(InvalidRequest, match="without a key"):
        topic.get(None)  # type: ignore[arg-type]


def test_every_removal_is_on_record(store: varve.Store) -> None:
    _keyed(store)
    store.create_topic("empty")
    store.clean(roll=True)
    empty, scores = store.audit(deep=True)
    assert (empty.is_clean, len(empty.entries)) == (True, 0)
    assert (scores.is_clean, len(scores.entries)) == (True, 1)
    (only,) = store.audit("scores", 0)
    assert only.entries[0].removal.records == {Reason.KEPT: 2, Reason.SUPERSEDED: 2}


def test_a_damaged_segment_shows_in_health_and_metrics(
    store: varve.Store, fs: MemoryFileSystem
) -> None:
    topic = _keyed(store)
    topic.partition().log.roll()
    with fs.open_writable("/data/scores-0/00000000000000000000.log") as file:
        file.write_at(70, b"damage")
    store.measure()
    assert "varve_cleaner_uncleanable_partitions{" not in exposition(store.metrics), "not looked at"
    store.run_once()
    health = store.health()
    assert not health.is_healthy
    (sick,) = health.cleaning
    assert sick.holds[0].base_offset == 0
    text = exposition(store.metrics)
    assert 'varve_cleaner_uncleanable_partitions{log_directory="/data"} 1.0\n' in text


def test_a_closed_store_does_nothing(store: varve.Store) -> None:
    store.close()
    for use in (store.run_once, store.clean, store.audit, store.health):
        with pytest.raises(Closed):
            use()


def test_threads_compact_and_expire_while_the_store_is_open(tmp_path: Path) -> None:
    settings: dict[str, int | str] = {
        "log.cleaner.threads": 2,
        "log.cleaner.backoff.ms": 10,
        "log.initial.task.delay.ms": 0,
        "log.retention.check.interval.ms": 10,
    }
    with varve.open(tmp_path, settings=settings) as store:
        topic = _keyed(store, **{"min.cleanable.dirty.ratio": 0.1})
        visits = store.create_topic("visits", settings={"retention.ms": 0})
        visits.append(value="x")
        topic.partition().log.roll()
        _wait_until(lambda: _offsets(topic) == [2, 3] and _offsets(visits) == [])
        assert store.health().is_healthy
    assert not [one.name for one in threading.enumerate() if one.name.startswith("varve")]


def _wait_until(is_true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(2000):
        if is_true():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen in 20 s")


def test_a_dry_run_promises_no_expiry_of_what_compaction_rewrites_first(
    store: varve.Store, clock: ManualClock
) -> None:
    both = COMPACTED | {"cleanup.policy": "compact,delete", "retention.ms": 60_000}
    topic = store.create_topic("scores", settings=both)
    for key in ("only", "a", "a"):
        topic.append(key=key, value="1")
        topic.partition().log.roll()
        clock.advance(10_000)
    clock.advance(70_000)
    (told,) = store.clean(dry_run=True)
    assert told.compaction is not None
    taken = {one.base_offset for one in told.undecided}
    certain = {one.base_offset for one in told.expiry.segments} if told.expiry else set()
    assert taken & set(told.compaction.rewritten)
    assert not certain & set(told.compaction.rewritten)
    assert taken | certain == {0, 1, 2}


def test_a_dry_run_is_certain_of_an_expiry_without_compaction(
    store: varve.Store, clock: ManualClock
) -> None:
    both = COMPACTED | {"cleanup.policy": "compact,delete", "retention.ms": 60_000}
    topic = store.create_topic("scores", settings=both)
    topic.append(key="a", value="1")
    topic.partition().log.roll()
    clock.advance(70_000)
    (told,) = store.clean(dry_run=True)
    assert told.expiry is not None
    assert [one.base_offset for one in told.expiry.segments] == [0]
    assert told.undecided == ()
