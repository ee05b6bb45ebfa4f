"""A message in parts has the bytes of the whole, and large records are not copied."""

import pytest

from tests.support.random_messages import MessageMaker
from varve.wire import encode, encode_parts
from varve.wire.messages.data import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
    ProduceRequest,
)

FETCH_VERSIONS = range(4, 18)
ROUNDS = 60


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_answers_to_fetch_are_written_alike(version: int, rounds_factor: int) -> None:
    maker = MessageMaker(version)
    for _ in range(ROUNDS * rounds_factor):
        response = maker.make(FetchResponse, version)
        parts = encode_parts(response, version, bytearray(b"head"))
        assert b"".join(parts) == b"head" + encode(response, version)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_many_records_are_not_copied(version: int) -> None:
    records = memoryview(bytes(range(256)) * 64)
    topic = FetchableTopicResponse("a", partitions=[PartitionData(one) for one in range(3)])
    topic.partitions[1].records = records
    response = FetchResponse(responses=[topic])
    parts = encode_parts(response, version)
    assert any(part is records for part in parts)
    assert b"".join(parts) == encode(response, version)


def test_other_messages_are_one_part() -> None:
    request = ProduceRequest(acks=1)
    assert encode_parts(request, 9) == [encode(request, 9)]
