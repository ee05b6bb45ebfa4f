"""What clients produce is read back as it was sent."""

import itertools

import pytest

from tests.support.kafka_clients import Headers, KafkaClient, ProducerOptions, Received
from tests.support.kafka_reading import Lab, read_all, read_count
from tests.support.kafka_server import ServerProcess

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT = 40
TIMESTAMP_MS = 1_700_000_000_000


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_read_back(lab: Lab, name: str, codec: str) -> None:
    lab.admin.create(name, 2)
    with lab.producer(codec=codec, linger_ms=20) as producer:
        sent = [
            producer.send((name, at % 2), b"value %d " % at * 20, key=b"key %d" % at)
            for at in range(COUNT)
        ]
        producer.flush()
    assert [one.result(0) for one in sent] == [at // 2 for at in range(COUNT)]
    found = lab.read(name, partitions=(0, 1), count=COUNT)
    for one in found:
        at = one.offset * 2 + one.partition
        assert one.value == b"value %d " % at * 20
        assert one.key == b"key %d" % at


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_is_served(lab: Lab, name: str, acks: str) -> None:
    lab.admin.create(name)
    with lab.producer(acks=acks) as producer:
        sent = [producer.send((name, 0), b"%d" % at) for at in range(COUNT)]
        producer.flush()
        found = lab.read(name, COUNT)
    assert [one.value for one in found] == [b"%d" % at for at in range(COUNT)]
    if acks != "0":
        assert [one.result(0) for one in sent] == list(range(COUNT))


ODD: list[tuple[bytes | None, bytes | None, Headers]] = [
    (None, b"no key", ()),
    (b"tombstone", None, ()),
    (b"", b"", ()),
    (b"headers", b"", (("a", b"1"), ("a", b"2"), ("empty", b""), ("é", bytes(200)))),
]


def test_keys_values_and_headers_may_be_missing_or_empty(lab: Lab, name: str) -> None:
    lab.admin.create(name)
    with lab.producer() as producer:
        for at, (key, value, headers) in enumerate(ODD):
            producer.send(
                (name, 0), value, key=key, headers=headers, timestamp_ms=TIMESTAMP_MS + at
            )
        producer.flush()
    assert lab.read(name, len(ODD)) == [
        Received(0, at, key, value, headers, TIMESTAMP_MS + at)
        for at, (key, value, headers) in enumerate(ODD)
    ]


@pytest.mark.parametrize(
    ("value", "headers"),
    [(None, ()), (b"", (("null", None),))],
    ids=["neither key nor value", "header without a value"],
)
def test_what_only_some_clients_send_is_read_back(
    lab: Lab, name: str, value: bytes | None, headers: Headers
) -> None:
    lab.admin.create(name)
    with lab.producer() as producer:
        producer.send((name, 0), value, headers=headers, timestamp_ms=TIMESTAMP_MS)
        producer.flush()
    found = lab.read(name, 1)
    assert found == [Received(0, 0, None, value, headers, TIMESTAMP_MS)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_records_are_read_back(lab: Lab, name: str, codec: str) -> None:
    lab.admin.create(name, 1, {"max.message.bytes": str(8 << 20)})
    sizes = (1, 5_000_000, 10, 3_000_000)
    values = [b"".join(at.to_bytes(4, "big") for at in range(size // 4 + 1)) for size in sizes]
    with lab.producer(codec=codec, request_bytes_max=8 << 20) as producer:
        for value in values:
            producer.send((name, 0), value)
        producer.flush()
    found = lab.read(name, len(values))
    assert [one.value for one in found] == values


def test_a_record_above_the_limit_is_refused_and_the_next_is_taken(lab: Lab, name: str) -> None:
    lab.admin.create(name, 1, {"max.message.bytes": "1000"})
    with lab.producer() as producer:
        large = producer.send((name, 0), bytes(5000))
        producer.flush()
        small = producer.send((name, 0), b"small")
        producer.flush()
        error = large.exception(0)
    assert error is not None
    assert "large" in str(error).lower()
    assert small.result(0) == 0


def test_every_client_reads_what_every_client_wrote(
    server: ServerProcess, clients: dict[str, KafkaClient], name: str
) -> None:
    with clients["confluent"].admin(server.bootstrap) as admin:
        admin.create(name)
    for writer, codec in itertools.product(clients.values(), CODECS):
        options = ProducerOptions(codec=codec, linger_ms=5)
        with writer.producer(server.bootstrap, options) as producer:
            for at in range(3):
                producer.send((name, 0), b"%d " % at * 50, headers=(("codec", codec.encode()),))
            producer.flush()
    count = len(clients) * len(CODECS) * 3
    read = [read_all(reader, server.bootstrap, [(name, 0)], count) for reader in clients.values()]
    assert [one.offset for one in read[0]] == list(range(count))
    assert read[0] == read[1] == read[2]


def test_a_waiting_consumer_is_woken_by_a_record(lab: Lab, name: str) -> None:
    lab.admin.create(name)
    with (
        lab.consumer() as consumer,
        lab.producer() as producer,
    ):
        consumer.assign({(name, 0): "beginning"})
        assert consumer.poll(0.2) == []
        producer.send((name, 0), b"news")
        producer.flush()
        assert [one.value for one in read_count(consumer, 1)] == [b"news"]
