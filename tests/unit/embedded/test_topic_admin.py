"""Topics that grow, and settings that change while the store is open."""

import random
from collections.abc import Callable

import pytest

import varve
from tests.support.tiered_topic import PARTITION, TieredTopic
from varve.commit_log import TopicPartition
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    DiskFull,
    InconsistentTopicId,
    InvalidRecord,
    InvalidRequest,
    InvalidSetting,
    TopicExists,
)
from varve.foundation.settings import GivenValue
from varve.object_store import MemoryObjectStore
from varve.testing.faulty_disk import FaultyFileSystem

# Growth and defaults


OpenStore = Callable[..., varve.Store]


def test_a_topic_grows_and_keeps_its_records_and_id(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=2)
    kept = topic.append(key="alice", value="v")
    assert store.add_partitions("orders", 5) is topic
    assert topic.partition_count == 5
    topic.append(value="new", partition=4)
    store.close()
    reopened = open_store().topic("orders")
    assert (reopened.partition_count, reopened.id) == (5, topic.id)
    assert [one.value for one in reopened.read(partition=kept.partition)] == [b"v"]
    assert [one.value for one in reopened.read(partition=4)] == [b"new"]


@pytest.mark.parametrize("count", [0, 2, 3, 10_001, True, 4.0])
def test_partitions_are_only_added(store: varve.Store, count: int) -> None:
    topic = store.create_topic("orders", partitions=3)
    with pytest.raises(InvalidRequest, match="from 4 to 10000"):
        store.add_partitions("orders", count)
    assert topic.partition_count == 3


def _open(fs: MemoryFileSystem | FaultyFileSystem, clock: ManualClock) -> varve.Store:
    return varve.open(["/a", "/b"], fs=fs, clock=clock, random=random.Random(3), maintain=False)


def test_a_growth_that_a_full_disk_cut_short_is_gone_on_with() -> None:
    clock = ManualClock()
    fs = FaultyFileSystem(clock)
    with _open(fs, clock) as store:
        topic = store.create_topic("orders", partitions=2)
        fs.full_at(fs.used_bytes() + 400)
        with pytest.raises(DiskFull):
            store.add_partitions("orders", 40)
        assert topic.partition_count == 2
        fs.full_at(None)
        with pytest.raises(TopicExists):
            store.create_topic("orders", partitions=40)
        store.add_partitions("orders", 40)
        assert topic.partition(39).offsets().end == 0


def test_defaults_of_all_topics_change_while_the_store_is_open(open_store: OpenStore) -> None:
    store = open_store(settings={"log.segment.bytes": 9000})
    own = store.create_topic("own", settings={"retention.ms": 5, "segment.bytes": 7000})
    other = store.create_topic("other")
    store.alter_defaults({"retention.ms": 1000, "segment.bytes": 8000})
    assert (own.settings.retention_ms, own.settings.segment_bytes) == (5, 7000)
    assert (other.settings.retention_ms, other.settings.segment_bytes) == (1000, 8000)
    assert other.partition().log.settings == other.settings
    assert store.create_topic("later").settings.retention_ms == 1000
    store.alter_defaults({"segment.bytes": None})
    assert other.settings.segment_bytes == 9000
    store.close()
    reopened = open_store(settings={"log.segment.bytes": 9000})
    assert reopened.topic("other").settings == other.settings
    assert dict(reopened.altered_defaults) == {"retention.ms": "1000"}
    assert reopened.topic("own").settings == own.settings


@pytest.mark.parametrize(
    "settings", [{"retention.ms": "x"}, {"remote.storage.enable": "true"}, {"nonsense": "1"}]
)
def test_a_default_that_is_refused_changes_nothing(
    store: varve.Store, settings: dict[str, str]
) -> None:
    topic = store.create_topic("orders")
    before = topic.settings
    with pytest.raises(InvalidSetting):
        store.alter_defaults({"segment.bytes": 5000, **settings})
    assert topic.settings == before
    assert not store.altered_defaults


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("own", "before", "after", "expected"),
    [
        pytest.param(
            {"min.compaction.lag.ms": 1_000},
            {},
            {"log.cleaner.max.compaction.lag.ms": 10},
            {"min_compaction_lag_ms": 1_000, "retention_ms": 9 * DAY_MS},
            id="the topic's own value counts before a default",
        ),
        pytest.param(
            {"remote.storage.enable": True, "local.retention.ms": 8 * DAY_MS},
            {},
            {"log.retention.ms": DAY_MS},
            {"local_retention_ms": -2, "retention_ms": DAY_MS},
            id="a local retention above the whole one",
        ),
        pytest.param(
            {"remote.storage.enable": True, "local.retention.ms": 8 * DAY_MS},
            {},
            {},
            {"local_retention_ms": 8 * DAY_MS, "retention_ms": 9 * DAY_MS},
            id="values that fit the defaults alone",
        ),
    ],
)
def test_a_store_opens_though_settings_of_a_topic_contradict_its_defaults(
    own: dict[str, GivenValue],
    before: dict[str, GivenValue],
    after: dict[str, GivenValue],
    expected: dict[str, int],
) -> None:
    fs, objects, nine_days = MemoryFileSystem(ManualClock()), MemoryObjectStore(), 9 * DAY_MS

    def open_with(settings: dict[str, GivenValue]) -> varve.Store:
        kept = {"log.retention.ms": nine_days, **settings}
        return varve.open("data", fs=fs, objects=objects, settings=kept, maintain=False)

    with open_with(before) as store:
        store.create_topic("orders", settings=own)
        store.topic("orders").append(value="kept")
    with open_with(after) as store:
        topic = store.topic("orders")
        assert {name: getattr(topic.settings, name) for name in expected} == expected
        assert [record.value for record in topic.read()] == [b"kept"]
        assert store.health().is_healthy
        with pytest.raises(InvalidSetting):
            store.alter_topic("orders", {"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4})


def test_altered_defaults_that_contradict_new_ones_count_as_far_as_they_fit(
    open_store: OpenStore,
) -> None:
    store = open_store()
    store.alter_defaults({"min.compaction.lag.ms": 1_000})
    store.close()
    store = open_store(settings={"log.cleaner.max.compaction.lag.ms": 10})
    assert store.topic_defaults.min_compaction_lag_ms == 1_000


@pytest.mark.parametrize("backend", ["object", "topic"])
def test_partitions_added_to_a_tiered_topic_are_copied_too(backend: str) -> None:
    settings: dict[str, GivenValue] = {
        "varve.tier.metadata": backend,
        "remote.log.metadata.topic.num.partitions": 2,
    }
    topic = TieredTopic(store_settings=settings)
    try:
        topic.fill(2, 2)
        store = topic.kit.store
        grown = store.add_partitions(PARTITION.topic, 2)
        grown.append(value="v", partition=1)
        grown.partition(1).log.roll()
        topic.tier.copy_once(topic.kit.now_ms)
        added = store.tier.partitions.get(TopicPartition(PARTITION.topic, 1))
        assert added.manifests.load().highest_offset == 0
    finally:
        topic.close()


# Settings of one topic


def test_altered_settings_hold_at_once_and_after_a_reopen(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=2, settings={"segment.bytes": 5000})
    assert store.alter_topic("orders", {"cleanup.policy": "compact"}) is topic
    for number in range(2):
        with pytest.raises(InvalidRecord, match="no key"):
            topic.append(value="v", partition=number)
    assert topic.settings.segment_bytes == 5000
    store.close()
    reopened = open_store().topic("orders")
    assert reopened.settings == topic.settings
    with pytest.raises(InvalidRecord, match="no key"):
        reopened.append(value="v")


@pytest.mark.parametrize(
    "settings", [{"segment.byte": 1}, {"segment.bytes": 1}, {"nonsense": None}]
)
def test_a_refused_setting_changes_nothing(
    store: varve.Store, settings: dict[str, int | None]
) -> None:
    topic = store.create_topic("orders")
    before = topic.settings
    with pytest.raises(InvalidSetting):
        store.alter_topic("orders", {"flush": "ack", **settings})
    assert topic.settings == before
    assert topic.partition().log.settings == before


def test_a_topic_deleted_at_once_leaves_no_files(store: varve.Store, fs: MemoryFileSystem) -> None:
    store.create_topic("orders").append(value="v")
    store.delete_topic("orders", at_once=True)
    names = fs.names("/data")
    assert not [name for name in names if name.startswith("orders")]


def test_a_topic_is_deleted_on_a_full_disk() -> None:
    """That is when it is most needed: its own files make the room."""
    clock = ManualClock()
    fs = FaultyFileSystem(clock)
    with _open(fs, clock) as store:
        store.create_topic("kept").append(value="v")
        store.create_topic("orders").append(value=bytes(100_000))
        fs.full_at(fs.used_bytes())
        store.delete_topic("orders")
        assert [topic.name for topic in store.topics()] == ["kept"]
        assert store.health().offline == {}
        store.topic("kept").append(value="w")
    with _open(fs, clock) as store:
        assert [topic.name for topic in store.topics()] == ["kept"]
        assert [one.value for one in store.topic("kept").read()] == [b"v", b"w"]


def test_a_topic_object_of_a_recreated_topic_says_where_the_new_one_is(store: varve.Store) -> None:
    topic = store.create_topic("orders")
    store.delete_topic("orders")
    store.create_topic("orders")
    with pytest.raises(InconsistentTopicId, match=r"created again .* store.topic\('orders'\)"):
        topic.append(value="v")
