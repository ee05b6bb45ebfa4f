"""The cold tier of an open store: entering, leaving, deletion, failures, the end."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import varve
from tests.support.tiered_topic import MINUTE, PARTITION, TieredTopic
from varve.cleaning.retention.retention import RetentionPlan
from varve.commit_log import Log, TopicPartition
from varve.commit_log.names import LOG_START_OFFSET_FILE
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    Closed,
    InvalidRequest,
    InvalidSetting,
    NotFound,
    OffsetOutOfRange,
    StoreDenied,
    StoreUnavailable,
    Unavailable,
)
from varve.foundation.settings import GivenValue
from varve.tiering.partition import TieredPartition

OFF = {"remote.storage.enable": False, "remote.log.delete.on.disable": True}


def make(backend: str = "object") -> TieredTopic:
    """Cold segments at 0, 2, 4; the first is in the cold tier alone."""
    settings: dict[str, GivenValue] = {
        "varve.tier.metadata": backend,
        "remote.log.metadata.topic.num.partitions": 2,
    }
    topic = TieredTopic(store_settings=settings)
    topic.fill(2, 2, 2)
    topic.copy()
    topic.move(2)
    return topic


@pytest.fixture
def orders() -> Iterator[TieredTopic]:
    topic = make()
    yield topic
    topic.close()


@pytest.fixture(params=["object", "topic"])
def either(request: pytest.FixtureRequest) -> Iterator[TieredTopic]:
    topic = make(request.param)
    yield topic
    topic.close()


# The log start


def lose_checkpoint(topic: TieredTopic) -> None:
    topic.kit.close()
    topic.kit.fs.remove(f"{topic.kit.path}/{LOG_START_OFFSET_FILE}")
    topic.kit.fs.sync_directory(topic.kit.path)
    topic.kit.reopen()


@pytest.mark.parametrize("is_read_first", [True, False])
def test_a_lost_checkpoint_is_made_up_for_by_the_manifest(
    either: TieredTopic, is_read_first: bool
) -> None:
    either.topic.delete_records(1)
    either.fill(1)
    either.copy()
    lose_checkpoint(either)
    assert not either.log.is_start_known
    if is_read_first:
        with pytest.raises(OffsetOutOfRange, match="begins at 1 and whose records end before 7"):
            either.log.read(start_offset=0)
    else:
        either.tier.expire_once(either.kit.now_ms)
    assert either.log.is_start_known
    assert either.offsets() == list(range(1, 7))


def test_a_lost_checkpoint_and_a_store_that_is_down_lose_nothing(orders: TieredTopic) -> None:
    lose_checkpoint(orders)
    with orders.down():
        with pytest.raises(StoreUnavailable):
            orders.log.read(start_offset=0)
        orders.kit.run_background()
        assert not orders.log.is_start_known
        assert [one.offset for one in orders.topic.partition(0).read(start=2)] == [2, 3, 4, 5]
    orders.kit.advance(minutes=20)
    orders.kit.run_background()
    assert orders.offsets() == list(range(6))


def test_a_lost_checkpoint_and_a_tier_that_is_not_there_are_not_taken_for_a_new_log(
    tmp_path: Path,
) -> None:
    """As when a disk is not mounted: later all that is in it would be taken for expired."""
    settings = {"remote.storage.enable": True, "log.retention.ms": -1}
    data, remote, aside = (str(tmp_path / name) for name in ("data", "data.cold", "aside"))
    with varve.open(data, settings=settings, maintain=False) as store:
        log = _fill_local(store)
        store.tier.copy(PARTITION, 1)
        log.drop_local_segments_before(1, now_ms=1)
    os.remove(f"{data}/{LOG_START_OFFSET_FILE}")
    os.rename(remote, aside)
    with varve.open(data, settings=settings, maintain=False) as store:
        store.run_once()
        assert "is missing; mount or restore it" in store.health().tier[PARTITION]
        assert [one.offset for one in store.topic("orders").partition(0).read(start=1)] == [1]
    os.rename(aside, remote)
    with varve.open(data, settings=settings, maintain=False) as store:
        store.run_once()
        assert [one.offset for one in store.topic("orders").read()] == [0, 1]


def test_topics_that_enter_a_new_tier_start_where_they_are(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with varve.open(data, settings={"log.retention.ms": -1}, maintain=False) as store:
        _fill_local(store).drop_segments_before(1, now_ms=1)
    settings = {"remote.storage.enable": True, "log.retention.ms": -1}
    with varve.open(data, settings=settings, maintain=False) as store:
        store.run_once()
        assert store.health().tier == {}
        assert [one.offset for one in store.topic("orders").read()] == [1]


def _fill_local(store: varve.Store) -> Log:
    topic = store.create_topic("orders")
    log = topic.partition(0).log
    for _ in range(2):
        topic.append(value=b"1")
        log.roll()
    return log


def test_an_empty_bucket_is_told_of_and_nothing_is_copied_into_it(orders: TieredTopic) -> None:
    orders.kit.close()
    orders.bucket.delete(orders.object_keys())
    orders.kit.reopen()
    orders.fill(2)
    orders.kit.run_background()
    assert orders.object_keys() == []
    told = orders.kit.store.health().tier[PARTITION]
    assert "starts at offset 0" in told
    assert "the remote tier has no segment" in told
    assert "delete-records --before 2" in told
    orders.topic.delete_records(2)
    orders.kit.advance(minutes=20)
    orders.kit.run_background()
    assert orders.kit.store.health().tier == {}
    assert orders.offsets() == list(range(2, 8))


def test_a_tier_that_ends_before_the_local_part_is_told_of(orders: TieredTopic) -> None:
    orders.move(6)
    orders.lose(4)
    orders.tier.expire_once(orders.kit.now_ms + 20 * MINUTE)
    told = orders.kit.store.health().tier[PARTITION]
    assert "its local part at 6, but the remote tier ends with offset 3" in told


# Leaving and entering


def test_leaving_keeps_what_is_local_and_leaves_no_object(either: TieredTopic) -> None:
    either.kit.store.alter_topic("orders", OFF)
    assert either.offsets() == [2, 3, 4, 5]
    assert [key for key in either.object_keys() if "/orders." in key] == []
    either.kit.run_background()
    assert [key for key in either.object_keys() if "/orders." in key] == []
    assert either.kit.store.health().tier == {}
    either.kit.crash_now()
    either.kit.reopen()
    assert either.offsets() == [2, 3, 4, 5]


def test_a_topic_that_left_may_come_back_and_is_copied_anew(either: TieredTopic) -> None:
    either.kit.store.alter_topic("orders", OFF)
    either.fill(1)
    either.alter(remote_storage_enable=True)
    either.copy()
    assert either.remote_bases() == [2, 4, 6]
    either.move(6)
    assert either.offsets() == list(range(2, 7))
    either.kit.crash_now()
    either.kit.reopen()
    assert either.offsets() == list(range(2, 7))


def test_leaving_needs_an_explicit_yes(orders: TieredTopic) -> None:
    with pytest.raises(InvalidSetting, match=r"remote\.log\.delete\.on\.disable=true"):
        orders.alter(remote_storage_enable=False)
    assert orders.offsets() == list(range(6))


def forget_the_settings(orders: TieredTopic) -> None:
    orders.log.configure(varve.commit_log.LogSettings(remote_storage_enable=False, retention_ms=-1))
    orders.kit.store._admin._catalog.write(orders.kit.store._admin._table.without("orders"))


def test_what_is_left_of_an_older_stay_is_not_taken_for_expired(orders: TieredTopic) -> None:
    before = orders.object_keys()
    forget_the_settings(orders)
    orders.log.raise_log_start(orders.log.local_start_offset)
    with pytest.raises(InvalidRequest, match=r"has 3 segments .* `varve tier restore`"):
        orders.alter(remote_storage_enable=True)
    assert orders.object_keys() == before


def test_a_log_whose_own_history_is_in_the_tier_is_let_in_again(orders: TieredTopic) -> None:
    before = orders.object_keys()
    forget_the_settings(orders)
    orders.alter(remote_storage_enable=True)
    orders.expire()
    assert orders.offsets() == list(range(6))
    assert orders.object_keys() == before
    orders.fill(1)
    orders.copy()
    assert orders.remote_bases() == [0, 2, 4, 6]


class AnnouncedLock:
    """A lock that says so when it is asked for."""

    def __init__(self, lock: threading.RLock, asked: threading.Event) -> None:
        self._lock = lock
        self._asked = asked

    def __enter__(self) -> None:
        self._asked.set()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_what_an_eviction_in_progress_drops_is_before_the_log_start_of_a_topic_that_leaves(
    orders: TieredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.alter(local_retention_ms=MINUTE)
    evict, began, has_begun_leaving = orders.tier._evict, threading.Event(), threading.Event()

    def evict_later(tiered: TieredPartition, now_ms: int) -> RetentionPlan:
        began.set()
        assert has_begun_leaving.wait(10)
        return evict(tiered, now_ms)

    monkeypatch.setattr(orders.tier, "_evict", evict_later)
    expiry = threading.Thread(target=orders.expire)
    expiry.start()
    assert began.wait(10)
    tiered = orders.tiered
    monkeypatch.setattr(tiered, "work", AnnouncedLock(tiered.work, has_begun_leaving))
    orders.kit.store.alter_topic("orders", OFF)
    expiry.join(10)
    assert orders.log.local_start_offset > 2
    assert orders.log.log_start_offset == orders.log.local_start_offset
    assert orders.offsets() == list(range(orders.log.log_start_offset, 6))


# Deletion


def test_a_deleted_topic_leaves_no_object_and_its_name_is_free(either: TieredTopic) -> None:
    either.kit.store.delete_topic("orders")
    assert [key for key in either.object_keys() if "/orders." in key] == []
    again = either.kit.store.create_topic("orders", settings={"remote.storage.enable": True})
    again.append(value=b"new")
    again.partition(0).log.roll()
    either.copy()
    assert either.remote_bases() == [0]


def begin_deletion(topic: TieredTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes a topic whose store goes down once it was asked whether it lets it go."""
    check = topic.tier.check_removable

    def check_and_go_down(partition: TopicPartition) -> None:
        check(partition)
        topic.objects.go_down()

    with monkeypatch.context() as patch:
        patch.setattr(topic.tier, "check_removable", check_and_go_down)
        with pytest.raises(Unavailable, match="out of service and half deleted"):
            topic.kit.store.delete_topic("orders")
    assert topic.kit.store.deleting() == ["orders"]


def test_a_deletion_changes_nothing_when_the_store_cannot_be_asked(either: TieredTopic) -> None:
    before = either.offsets()
    with either.down(), pytest.raises(Unavailable):
        either.kit.store.delete_topic("orders")
    assert either.kit.store.deleting() == []
    assert either.offsets() == before
    either.kit.crash_now()
    either.kit.reopen()
    assert either.offsets() == before


def test_a_deletion_changes_nothing_when_the_store_may_be_read_only(
    orders: TieredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise StoreDenied("read only")

    before = orders.offsets()
    for name in ("put", "delete"):
        with monkeypatch.context() as patch:
            patch.setattr(orders.objects, name, refuse)
            with pytest.raises(StoreDenied):
                orders.kit.store.delete_topic("orders")
        assert orders.offsets() == before
    orders.kit.store.delete_topic("orders")
    assert orders.object_keys() == []


def test_a_deletion_that_the_store_keeps_from_its_end_can_be_repeated(
    orders: TieredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = orders.kit.store
    begin_deletion(orders, monkeypatch)
    with orders.down():
        with pytest.raises(Unavailable, match=r"is being deleted.*object store.*delete it again"):
            store.topic("orders")
        with pytest.raises(Unavailable, match="is being deleted"):
            store.create_topic("orders")
        assert store.topics() == []
        store.run_once()
    store.delete_topic("orders")
    with pytest.raises(NotFound):
        store.topic("orders")
    assert orders.object_keys() == []
    assert store.health().tier == {}


def test_a_deletion_is_finished_at_the_next_open(
    either: TieredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_deletion(either, monkeypatch)
    either.objects.come_up()
    either.kit.crash_now()
    either.kit.reopen()
    with pytest.raises(NotFound):
        either.topic.read()
    assert [key for key in either.object_keys() if "/orders." in key] == []


def test_an_open_while_the_store_is_down_leaves_the_deletion_for_later(
    orders: TieredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_deletion(orders, monkeypatch)
    with orders.down():
        orders.kit.crash_now()
        orders.kit.reopen()
        with pytest.raises(Unavailable, match="is being deleted"):
            orders.kit.store.topic("orders")
    orders.kit.store.delete_topic("orders")
    assert orders.object_keys() == []


def test_other_topics_are_at_hand_while_a_deletion_waits_for_the_store(
    orders: TieredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = orders.kit.store
    store.create_topic("local")
    waiting, go_on = threading.Event(), threading.Event()
    remove = orders.tier.remove

    def slow(*given: object) -> int:
        waiting.set()
        assert go_on.wait(10)
        return remove(*given)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(orders.tier, "remove", slow)
    thread = threading.Thread(target=store.delete_topic, args=("orders",))
    thread.start()
    assert waiting.wait(10)
    assert [one.name for one in store.topics()] == ["local"]
    store.topic("local").append(value=b"1")
    go_on.set()
    thread.join(10)
    with pytest.raises(NotFound):
        store.topic("orders")


# The end


def test_a_closed_store_opens_no_tier_again(orders: TieredTopic) -> None:
    tier = orders.kit.store._tier
    partition = orders.topic.partition(0)
    log = partition.log
    orders.kit.close()
    with pytest.raises(Closed):
        tier.get()
    with pytest.raises(Closed):
        log.read(start_offset=0)
    orders.kit.reopen()


def test_a_round_that_begins_after_the_end_does_nothing(
    orders: TieredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    tier = orders.kit.store._tier
    tier.stop()
    tier.run_once(MINUTE)
    assert caplog.records == []


def test_threads_end_with_the_store_though_the_object_store_does_not_answer() -> None:
    clock = ManualClock()
    topic = TieredTopic()
    store = varve.open(
        "/maintained",
        fs=MemoryFileSystem(clock),
        clock=clock,
        random=random.Random(3),
        objects=topic.objects,
        settings={"remote.storage.enable": True},
    )
    with topic.down():
        store.create_topic("orders").append(value=b"1")
        names = {one.name for one in store.health().workers}
        assert {"varve-tier-copy", "varve-tier-expiry"} <= names
        store.close()
    alive = {thread.name for thread in threading.enumerate()}
    assert not alive & {"varve-tier-copy", "varve-tier-expiry"}
    topic.close()


def test_a_store_without_tiered_topics_asks_for_nothing() -> None:
    topic = TieredTopic({"remote.storage.enable": False})
    topic.fill(2)
    topic.kit.run_background()
    assert topic.requests() == 0
    assert topic.kit.store._tier.metrics() is None
    topic.close()
