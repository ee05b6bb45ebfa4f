"""A client and its server, and reads until enough has come, or too much time has passed."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests.support.kafka_clients import (
    WAIT_SECONDS,
    AdminClient,
    ConsumerClient,
    ConsumerOptions,
    Isolation,
    KafkaClient,
    Partition,
    ProducerClient,
    ProducerOptions,
    Received,
)
from tests.support.kafka_server import ServerProcess

POLL_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 0.3


def read_count(consumer: ConsumerClient, count: int) -> list[Received]:
    """So many records, or more where the last answer had more."""
    found: list[Received] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records in {WAIT_SECONDS} s"
        found += consumer.poll(POLL_SECONDS)
    return found


def read_all(
    client: KafkaClient,
    bootstrap: str,
    partitions: Iterable[Partition],
    count: int,
    isolation: Isolation = "read_uncommitted",
) -> list[Received]:
    """All records from the beginning on; there must be just so many."""
    with client.consumer(bootstrap, ConsumerOptions(isolation=isolation)) as consumer:
        consumer.assign(dict.fromkeys(partitions, "beginning"))
        found = read_count(consumer, count)
        found += consumer.poll(QUIET_SECONDS)
    assert len(found) == count
    return found


@dataclass(frozen=True, slots=True)
class Lab:
    """A client and its server; options are those of a producer or a consumer."""

    client: KafkaClient
    server: ServerProcess
    admin: AdminClient

    def producer(self, bootstrap: str | None = None, **options: Any) -> ProducerClient:
        return self.client.producer(bootstrap or self.server.bootstrap, ProducerOptions(**options))

    def consumer(self, bootstrap: str | None = None, **options: Any) -> ConsumerClient:
        return self.client.consumer(bootstrap or self.server.bootstrap, ConsumerOptions(**options))

    def write(self, topic: str, *values: bytes) -> None:
        """To partition 0."""
        with self.producer() as producer:
            for value in values:
                producer.send((topic, 0), value)
            producer.flush()

    def read(
        self,
        topic: str,
        count: int,
        *,
        partitions: Iterable[int] = (0,),
        isolation: Isolation = "read_uncommitted",
    ) -> list[Received]:
        """All records of a topic."""
        wanted = [(topic, number) for number in partitions]
        return read_all(self.client, self.server.bootstrap, wanted, count, isolation)
