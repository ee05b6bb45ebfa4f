"""Requests that name one thing many times, or very many: answered once, bounded, in turns."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import append
from tests.support.group_bench import Member
from tests.support.log_bench import make_batch
from varve.broker.answers import in_turns
from varve.broker.metrics import OVERSIZED_ANSWERS
from varve.broker.settings import BrokerSettings
from varve.wire import ErrorCode, Message, encode
from varve.wire.messages.cluster import FindCoordinatorRequest
from varve.wire.messages.data import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DescribeProducersRequest,
    DescribeProducersTopic,
)
from varve.wire.messages.groups import (
    DescribeGroupsRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from varve.wire.messages.topics import DescribeConfigsRequest, DescribeConfigsResource
from varve.wire.messages.transactions import DescribeTransactionsRequest

REPEATED = 1_000
TOPIC = 2


@pytest.fixture
def small() -> Iterator[BrokerKit]:
    with BrokerKit(settings=BrokerSettings(response_max_bytes=4_096)) as kit:
        yield kit


def producers_of(*topics: str) -> DescribeProducersRequest:
    return DescribeProducersRequest([DescribeProducersTopic(topic, [0]) for topic in topics])


@pytest.mark.parametrize(
    ("once", "often"),
    [
        (producers_of("events"), producers_of(*["events"] * REPEATED)),
        (
            producers_of("events"),
            DescribeProducersRequest([DescribeProducersTopic("events", [0] * REPEATED)]),
        ),
        (DescribeGroupsRequest(["g"]), DescribeGroupsRequest(["g"] * REPEATED)),
        (DescribeTransactionsRequest(["t"]), DescribeTransactionsRequest(["t"] * REPEATED)),
        (
            FindCoordinatorRequest(coordinator_keys=["g"]),
            FindCoordinatorRequest(coordinator_keys=["g"] * REPEATED),
        ),
    ],
)
def test_what_is_named_many_times_is_described_once(
    kit: BrokerKit, once: Message, often: Message
) -> None:
    Member(kit, "g").settle()
    append(kit, make_batch(producer_id=1, producer_epoch=0, base_sequence=0))
    assert kit.ask(often) == kit.ask(once)


def test_a_group_named_twice_is_answered_once_with_an_error(kit: BrokerKit) -> None:
    group = OffsetFetchRequestGroup(group_id="g", topics=None)
    [found] = kit.ask(OffsetFetchRequest(groups=[group] * REPEATED)).groups
    assert (found.error_code, found.topics) == (ErrorCode.INVALID_REQUEST, [])


def test_a_partition_named_twice_keeps_its_records(kit: BrokerKit) -> None:
    append(kit, make_batch(5))
    twice = DeleteRecordsTopic("events", [DeleteRecordsPartition(0, 3)] * 2)
    request = DeleteRecordsRequest([twice, DeleteRecordsTopic("events", [])], 1_000)
    found = kit.ask(request).topics[0].partitions
    assert [one.error_code for one in found] == [ErrorCode.INVALID_REQUEST] * 2
    assert kit.log("events").log_start_offset == 0


def test_an_answer_that_is_too_large_is_refused_with_the_remedy(small: BrokerKit) -> None:
    for number in range(5):
        small.make_topic(f"events-{number}")
    resources = [DescribeConfigsResource(TOPIC, f"events-{number}", None) for number in range(5)]
    answer = small.ask(DescribeConfigsRequest(resources))
    assert {one.error_code for one in answer.results} == {ErrorCode.INVALID_REQUEST}
    assert "varve.response.max.bytes" in answer.results[0].error_message
    assert len(encode(answer, 4)) < 4_096
    assert small.broker.metrics.value(OVERSIZED_ANSWERS, "describe_configs") == 1
    [one] = small.ask(DescribeConfigsRequest(resources[:1])).results
    assert one.error_code == ErrorCode.NONE


def pass_time(seconds: float) -> None:
    """As a handler that computes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_other_work_runs_in_between(kit: BrokerKit) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def work() -> int:
        counting = asyncio.ensure_future(count())
        async for _ in in_turns(range(5)):
            pass_time(0.006)
        counting.cancel()
        return turns

    assert kit.run(work()) >= 4
