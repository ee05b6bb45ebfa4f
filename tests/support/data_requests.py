"""Requests that put records in and get them out, as tests of a broker need them."""

from collections.abc import Mapping
from typing import Any

from tests.support.broker_kit import BrokerKit
from tests.support.log_bench import make_batch
from varve.broker.append_scheduler import AppendEntry
from varve.commit_log import TopicPartition
from varve.wire import ErrorCode
from varve.wire.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)

Offsets = Mapping[tuple[str, int], int]
"""Where to read from, by topic and partition."""


def produce_request(
    kit: BrokerKit,
    batches: Mapping[tuple[str, int], bytes | None],
    *,
    acks: int = -1,
    timeout_ms: int = 1_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """One batch for each partition that is named."""
    topics: dict[str, TopicProduceData] = {}
    for (name, number), batch in batches.items():
        found = kit.broker.topics.find(name)
        topic = topics.setdefault(name, TopicProduceData(name))
        if found is not None:
            topic.topic_id = found.id
        records = None if batch is None else memoryview(batch)
        topic.partition_data.append(PartitionProduceData(number, records))
    return ProduceRequest(transactional_id, acks, timeout_ms, list(topics.values()))


def produce(
    kit: BrokerKit,
    topic: str = "events",
    batch: bytes | None = None,
    *,
    partition: int = 0,
    version: int = 9,
    **named: Any,
) -> PartitionProduceResponse:
    """What became of one batch."""
    batches = {(topic, partition): make_batch() if batch is None else batch}
    answer = kit.ask(produce_request(kit, batches, **named), version=version)
    found = answer.responses[0].partition_responses[0]
    assert isinstance(found, PartitionProduceResponse)
    return found


def fetch_request(
    kit: BrokerKit,
    offsets: Offsets,
    *,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    is_committed: bool = False,
    session: tuple[int, int] = (0, -1),
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> FetchRequest:
    """`session` is its id and epoch."""
    topics: dict[str, FetchTopic] = {}
    for (name, number), offset in offsets.items():
        topic = topics.setdefault(name, FetchTopic(name))
        found = kit.broker.topics.find(name)
        if found is not None:
            topic.topic_id = found.id
        topic.partitions.append(
            FetchPartition(
                number,
                current_leader_epoch,
                offset,
                last_fetched_epoch,
                partition_max_bytes=partition_max_bytes,
            )
        )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(is_committed),
        session_id=session[0],
        session_epoch=session[1],
        topics=list(topics.values()),
    )


def fetched(answer: Any) -> dict[tuple[str, int], PartitionData]:
    """By topic and partition."""
    return {
        (topic.topic, one.partition_index): one
        for topic in answer.responses
        for one in topic.partitions
    }


def fetch(
    kit: BrokerKit,
    offset: int = 0,
    *,
    topic: str = "events",
    partition: int = 0,
    version: int = 12,
    max_wait_ms: int = 0,
    **named: Any,
) -> PartitionData:
    """What one partition gives at once."""
    request = fetch_request(kit, {(topic, partition): offset}, max_wait_ms=max_wait_ms, **named)
    answer = kit.ask(request, version=version)
    assert answer.error_code == ErrorCode.NONE
    (found,) = fetched(answer).values()
    return found


def list_offsets(
    kit: BrokerKit,
    timestamp: int,
    *,
    topic: str = "events",
    partition: int = 0,
    version: int = 11,
    is_committed: bool = False,
    current_leader_epoch: int = -1,
) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(partition, current_leader_epoch, timestamp)
    request = ListOffsetsRequest(-1, int(is_committed), [ListOffsetsTopic(topic, [asked])], 1_000)
    found = kit.ask(request, version=version).topics[0].partitions[0]
    assert isinstance(found, ListOffsetsPartitionResponse)
    return found


def append(kit: BrokerKit, *batches: bytes, topic: str = "events", partition: int = 0) -> None:
    """Without a request."""
    log = kit.broker.topics.find_log(TopicPartition(topic, partition))
    assert log is not None
    for batch in batches:
        entry = AppendEntry(log, batch)
        kit.run(kit.broker.appends.submit([entry]))
        if entry.error is not None:
            raise entry.error
