"""What is written and read by hand is what the compiled functions write and read."""

import random

import pytest

from tests.support.random_messages import MessageMaker
from varve.foundation.errors import MalformedMessage
from varve.wire import decode, encode, encode_parts
from varve.wire.compiler import Compiler, StructError
from varve.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from varve.wire.messages.produce import ProduceRequest

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 18)
ROUNDS = 60

compiler = Compiler()


def read_compiled(version: int, data: bytes) -> ProduceRequest | None:
    read = compiler.decoder(ProduceRequest, version, version >= ProduceRequest.FLEXIBLE)
    try:
        return read(memoryview(data), 0)[0]  # type: ignore[no-any-return]  # of that class
    except (StructError, IndexError, MalformedMessage):
        return None


def read_by_hand(version: int, data: bytes) -> ProduceRequest | None:
    try:
        return decode(ProduceRequest, version, data)
    except MalformedMessage:
        return None


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_requests_are_read_alike(version: int, rounds_factor: int) -> None:
    maker = MessageMaker(version)
    for _ in range(ROUNDS * rounds_factor):
        request = maker.make(ProduceRequest, version)
        data = bytes(encode(request, version))
        found = decode(ProduceRequest, version, b"head" + data, 4)
        assert found == request == read_compiled(version, data)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_broken_produce_requests_are_refused_alike(version: int, rounds_factor: int) -> None:
    maker, chance = MessageMaker(version), random.Random(version)
    for _ in range(ROUNDS * rounds_factor):
        data = bytearray(encode(maker.make(ProduceRequest, version), version))
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        broken = bytes(data[: chance.randint(0, len(data))] if chance.random() < 0.5 else data)
        assert read_by_hand(version, broken) == read_compiled(version, broken)


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
