"""Answers to requests whose handler failed."""

from typing import Any

import pytest

from tests.support.random_messages import MessageMaker
from varve.broker.error_responses import error_response
from varve.wire import APIS, Api, ApiKey, ErrorCode, decode, encode
from varve.wire.messages.cluster import MetadataRequest
from varve.wire.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

ROUNDS = 5
UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)
def test_a_failure_can_be_told_in_every_version(api: Api) -> None:
    maker = MessageMaker(3)
    for version in range(api.versions.first, api.versions.last + 1):
        for _ in range(ROUNDS):
            request = maker.make(api.request, version)
            response = error_response(api, request, version, UNKNOWN)
            if response is not None:
                assert type(response) is api.response
                decode(api.response, version, bytes(encode(response, version)))


def test_few_responses_have_no_room_for_an_error() -> None:
    """Their requests end the connection when they fail."""
    roomless = {
        (api.key.name, version)
        for api in APIS.values()
        for version in range(api.versions.first, api.versions.last + 1)
        if error_response(api, api.request(), version, UNKNOWN) is None
    }
    assert roomless == {("DESCRIBE_LOG_DIRS", 1), ("DESCRIBE_LOG_DIRS", 2)}


def test_a_failed_produce_tells_each_partition() -> None:
    request = ProduceRequest(
        topic_data=[
            TopicProduceData("a", partition_data=[PartitionProduceData(0), PartitionProduceData(3)])
        ]
    )
    response: Any = error_response(APIS[ApiKey.PRODUCE], request, 9, UNKNOWN)
    (topic,) = response.responses
    assert topic.name == "a"
    told = [(one.index, one.error_code) for one in topic.partition_responses]
    assert told == [(0, -1), (3, -1)]


@pytest.mark.parametrize(("version", "count"), [(6, 1), (7, 0)])
def test_a_response_with_an_error_of_its_own_has_it_there(version: int, count: int) -> None:
    request = FetchRequest(topics=[FetchTopic("a", partitions=[FetchPartition(2)])])
    response: Any = error_response(
        APIS[ApiKey.FETCH], request, version, ErrorCode.REQUEST_TIMED_OUT
    )
    assert len(response.responses) == count
    if count:
        (partition,) = response.responses[0].partitions
        assert (partition.partition_index, partition.error_code) == (2, 7)
    else:
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT


def test_all_topics_cannot_be_told_to_have_failed() -> None:
    """An empty list of topics would look like success."""
    request = MetadataRequest(topics=None)
    assert error_response(APIS[ApiKey.METADATA], request, 12, UNKNOWN) is None
    assert error_response(APIS[ApiKey.METADATA], request, 13, UNKNOWN) is not None
