"""Shapes of topics of Apache Kafka: every client ends with exactly the topic's state.

Records are written by librdkafka; clients are those of npm and light ones, by long poll and by
server-sent events.

Carries S1.
"""

from collections.abc import Callable
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.conformance.tools.broker import Broker
from tests.conformance.tools.program import pause
from tests.support.npm_clients import NpmClients
from tests.support.shape_audience import Audience
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import Row, ShapeTopic
from tests.support.shape_traffic import Traffic

pytestmark = [pytest.mark.java, pytest.mark.timeout(280)]

Serve = Callable[..., ShapeServer]
PARTITIONS = pytest.mark.parametrize("partition_count", [1, 3])
WHERE: Final = "state <> 'arrived' AND grams >= 5000"
PATIENCE_SECONDS: Final = 60.0
SMALL_SEGMENTS: Final = {
    "internal.segment.bytes": "30000",
    "min.cleanable.dirty.ratio": "0.01",
    "cleanup.policy": "compact",
}


def _is_wanted(row: Row) -> bool:
    return bool(row["state"] != "arrived" and row["grams"] >= 5000)


def _join_both(audience: Audience, topic: ShapeTopic) -> None:
    """Clients of the whole topic and of a part of it."""
    audience.join({"table": topic.name}, topic.rows)
    audience.join({"table": topic.name, "where": WHERE}, lambda: topic.rows(_is_wanted))


def _check_undisturbed(audience: Audience) -> None:
    assert audience.errors() == []
    assert audience.refetch_count() == 0, "a shape outlives its server and its broker"
    assert len(audience.handles()) == 2


@PARTITIONS
def test_broker_and_server_may_go_and_come_back(
    kafka: Broker, serve: Serve, npm: NpmClients, name: str, partition_count: int
) -> None:
    topic = ShapeTopic(kafka.address, name, partition_count=partition_count)
    traffic = Traffic(topic)
    traffic.add(200)
    server = serve()
    with Audience(server.host, server.port, npm) as audience:
        _join_both(audience, topic)
        traffic.change(300)
        audience.settle()
        for end in (server.kill, server.stop):
            traffic.change(100)
            end()
            traffic.change(100)
            server.start()
            traffic.change(100)
            audience.settle()
        for leave in (kafka.kill, kafka.stop):
            traffic.change(100)
            leave()
            audience.join({"table": name}, topic.rows)
            kafka.start()
            traffic.change(100)
            audience.settle()
        kafka.kill()
        server.kill()
        kafka.start()
        traffic.change(100)
        server.start()
        audience.settle()
        _check_undisturbed(audience)


class TransactionalTopic(ShapeTopic):
    """What is put waits for a commit; `state` has what was committed."""

    def __init__(self, bootstrap: str, name: str, *, partition_count: int) -> None:
        super().__init__(bootstrap, name, partition_count=partition_count)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": 600_000,
                "linger.ms": 2,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(PATIENCE_SECONDS)

    def begin(self) -> None:
        self._committed = dict(self.state)
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_SECONDS)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_SECONDS)
        self.state = self._committed


@PARTITIONS
def test_what_was_aborted_is_never_seen_and_what_is_open_is_waited_for(
    kafka: Broker, serve: Serve, npm: NpmClients, name: str, partition_count: int
) -> None:
    topic = TransactionalTopic(kafka.address, name, partition_count=partition_count)
    traffic = Traffic(topic)
    for is_committed in (True, False, True):
        topic.begin()
        traffic.add(50)
        (topic.commit if is_committed else topic.abort)()
    server = serve()
    with Audience(server.host, server.port, npm) as audience:
        _join_both(audience, topic)
        audience.settle()
        for round_number in range(12):
            topic.begin()
            traffic.change(40)
            (topic.abort if round_number % 3 == 1 else topic.commit)()
            if round_number in (3, 4):
                server.kill()
                server.start()
        audience.settle()

        committed = dict(topic.state)
        topic.begin()
        traffic.change(40)
        topic.state, pending = committed, topic.state
        audience.settle()
        server.kill()
        server.start()
        audience.settle()
        topic.state = pending
        topic.commit()
        audience.settle()

        topic.begin()
        traffic.change(40)
        topic.abort()
        audience.join({"table": name}, topic.rows)
        audience.settle()
        _check_undisturbed(audience)


def _count_records(bootstrap: str, topic: str, partition_count: int) -> int:
    """Records that the log still has."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "count", "enable.partition.eof": True}
    )
    count = 0
    try:
        left = partition_count
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partition_count)])
        while left:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"{topic} does not end"
            error = message.error()
            is_end = error is not None and error.code() == KafkaError._PARTITION_EOF
            assert error is None or is_end, error
            left -= is_end
            count += not is_end
    finally:
        consumer.close()
    return count


def _wait_for_cleaner(bootstrap: str, topic: ShapeTopic, partition_count: int, at_most: int) -> int:
    for _ in range(300):
        count = _count_records(bootstrap, topic.name, partition_count)
        if count <= at_most:
            return count
        pause(0.2)
    raise AssertionError(f"{count} records of {topic.name} are left, not {at_most}")


@PARTITIONS
@pytest.mark.parametrize("keeps_tombstones", [True, False])
def test_the_cleaner_of_kafka_goes_over_the_log_meanwhile(
    kafka: Broker,
    serve: Serve,
    npm: NpmClients,
    name: str,
    partition_count: int,
    *,
    keeps_tombstones: bool,
) -> None:
    kept = {} if keeps_tombstones else {"delete.retention.ms": "0"}
    topic = ShapeTopic(
        kafka.address, name, partition_count=partition_count, configs={**SMALL_SEGMENTS, **kept}
    )
    traffic = Traffic(topic)
    traffic.add(100)
    traffic.change(1_500)
    left = _wait_for_cleaner(kafka.address, topic, partition_count, 1_000)
    server = serve()
    with Audience(server.host, server.port, npm) as audience:
        _join_both(audience, topic)
        audience.settle()
        for _ in range(2):
            traffic.change(300)
            server.kill()
            for key in list(topic.state)[:20]:
                topic.delete(key)
            traffic.change(1_500)
            left = _wait_for_cleaner(kafka.address, topic, partition_count, left + 900)
            server.start()
            traffic.change(50)
            audience.settle()
        assert audience.errors() == []
        if keeps_tombstones:
            assert audience.refetch_count() == 0


def test_a_topic_that_is_made_anew_sends_clients_to_a_new_shape(
    kafka: Broker, serve: Serve, npm: NpmClients, name: str
) -> None:
    topic = ShapeTopic(kafka.address, name)
    traffic = Traffic(topic)
    traffic.add(50)
    server = serve()
    with Audience(server.host, server.port, npm) as audience:
        audience.join({"table": name}, lambda: topic.rows())
        audience.settle()
        (before,) = audience.handles()
        server.stop()
        topic.remove()
        topic = ShapeTopic(kafka.address, name)
        Traffic(topic, seed=2).add(60)
        server.start()
        audience.settle()
        assert audience.handles().isdisjoint({before})
        assert audience.refetch_count() == audience.client_count
        assert audience.errors() == []
