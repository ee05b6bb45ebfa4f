"""Fetch and ListOffsets where the beginning of a log is in object storage."""

from collections.abc import Iterator

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import append, fetch_request, fetched, list_offsets, produce
from tests.support.log_bench import NOW_MS, make_batch
from varve.commit_log import AppendOrigin, TopicPartition
from varve.commit_log.check import ignore_progress
from varve.embedded.directory_check import CheckOptions, check_path
from varve.foundation.settings import GivenValue
from varve.object_store import MemoryObjectStore
from varve.records import Record, build_batch
from varve.testing import FaultyObjectStore
from varve.wire import ErrorCode
from varve.wire.messages.data import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from varve.wire.messages.state_records import METADATA_TOPIC
from varve.wire.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

IN_TOPIC: dict[str, GivenValue] = {
    "varve.tier.metadata": "topic",
    "remote.log.metadata.topic.num.partitions": 1,
}
EVENTS = TopicPartition("events", 0)
SIZE = len(make_batch(2))
SETTINGS = {"remote.storage.enable": True, "retention.ms": -1, "segment.ms": 1 << 40}


@pytest.fixture
def objects() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


@pytest.fixture
def tiered(objects: FaultyObjectStore) -> Iterator[BrokerKit]:
    """Offsets 0 to 3 are in object storage, 4 to 5 there and here, 6 to 7 here alone."""
    with BrokerKit(objects=objects) as kit:
        kit.make_topic("events", settings=SETTINGS)
        log = kit.log("events")
        for time in range(3):
            append(kit, make_batch(2, time=time))
            log.roll()
        kit.store.tier.copy(EVENTS, kit.clock.now_ms())
        log.drop_local_segments_before(4, now_ms=kit.clock.now_ms())
        append(kit, make_batch(2, time=3))
        yield kit


def read(kit: BrokerKit, offset: int, *, max_wait_ms: int = 500) -> tuple[int, int]:
    """Error and bytes."""
    request = fetch_request(kit, {("events", 0): offset}, max_wait_ms=max_wait_ms)
    (found,) = fetched(kit.ask(request, version=12)).values()
    return found.error_code, len(found.records or b"")


def test_a_log_is_read_through_both_tiers(tiered: BrokerKit) -> None:
    assert [read(tiered, offset) for offset in (0, 2, 4, 6)] == [(0, SIZE)] * 4


def test_a_remote_read_that_takes_longer_is_an_empty_answer_and_goes_on(tiered: BrokerKit) -> None:
    kit = tiered
    kit.hold_work(work=True)
    assert read(kit, 0, max_wait_ms=0) == (0, 0)
    kit.release_work()
    kit.hold_work(work=True)
    assert read(kit, 0, max_wait_ms=0) == (0, SIZE)


def test_a_store_that_is_down_is_an_error(tiered: BrokerKit, objects: FaultyObjectStore) -> None:
    objects.go_down()
    assert read(tiered, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, 0)
    objects.come_up()
    assert read(tiered, 0) == (0, SIZE)


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(-1, 8), (-2, 0), (-4, 4), (-5, 5), (-6, 6), (NOW_MS + 1, 2)]
)
def test_offsets_of_both_tiers(tiered: BrokerKit, timestamp: int, offset: int) -> None:
    found = list_offsets(tiered, timestamp)
    assert (found.error_code, found.offset, found.leader_epoch) == (0, offset, 0)


def test_clients_neither_write_nor_change_the_metadata_of_the_tier(
    objects: FaultyObjectStore,
) -> None:
    name = METADATA_TOPIC
    with BrokerKit(objects=objects, store_settings=IN_TOPIC) as kit:
        new = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        created = kit.ask(CreateTopicsRequest(topics=[new])).topics[0]
        assert created.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        kit.make_topic("events", settings=SETTINGS)
        kit.broker.topics.refresh()
        junk = build_batch([Record(None, b"junk")])
        assert produce(kit, name, junk).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        asked = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
        assert kit.ask(asked).responses[0].error_code == ErrorCode.INVALID_REQUEST
        deletion = DeleteRecordsTopic(name, [DeleteRecordsPartition(0, -1)])
        (deleted,) = kit.ask(DeleteRecordsRequest([deletion], 1_000)).topics[0].partitions
        assert deleted.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        more = CreatePartitionsTopic(name, 2, None)
        grown = kit.ask(CreatePartitionsRequest([more])).results[0]
        assert grown.error_code == ErrorCode.INVALID_REQUEST
        config = IncrementalAlterableConfig("retention.ms", 0, "1")
        resource = IncrementalAlterConfigsResource(2, name, [config])
        altered = kit.ask(IncrementalAlterConfigsRequest([resource])).responses[0]
        assert altered.error_code == ErrorCode.INVALID_REQUEST


def test_an_event_that_cannot_be_read_is_found_by_a_check(objects: FaultyObjectStore) -> None:
    name = METADATA_TOPIC
    with BrokerKit(objects=objects, store_settings=IN_TOPIC) as kit:
        kit.make_topic("events", settings=SETTINGS)
        append(kit, make_batch(2))
        kit.log("events").roll()
        kit.store.tier.copy(EVENTS, kit.clock.now_ms())
        kit.store.flush()

        def check() -> list[str]:
            options = CheckOptions(lock=False)
            result = check_path(kit.fs, "data", options, kit.clock, ignore_progress)
            return [one.message for one in result.before if one.rule == "state-record"]

        assert check() == []
        kit.log(name).append(build_batch([Record(None, b"junk")]), origin=AppendOrigin.COORDINATOR)
        (message,) = check()
        assert "frame version 106" in message
