"""A link of the chain: it reads a topic, and writes what it makes of it in transactions.

Invariant  records and the offsets they were made from are committed together. After any error the
           transaction is left to the next producer of the same id, and reading begins anew at
           what was committed.
"""

import random
import time
from concurrent.futures import Future
from dataclasses import dataclass

from tests.support.kafka_clients import (
    ConsumerClient,
    ConsumerOptions,
    GroupProtocol,
    ProducerClient,
    ProducerOptions,
    Received,
)
from tools.soak.clients import Way
from tools.soak.model import number_of
from tools.soak.resilient import POLL_SECONDS, Resilient
from tools.soak.sending import is_acknowledged


@dataclass(frozen=True, slots=True)
class Stage:
    """From a topic to the next, by one group; a record stays in its partition."""

    source: str
    target: str
    group: str
    protocol: GroupProtocol


class _Hands:
    """A producer, which ends what the one before left open, and then a reader."""

    def __init__(self, way: Way, stage: Stage, name: str) -> None:
        self.producer: ProducerClient = way.producer(ProducerOptions(transactional_id=name))
        options = ConsumerOptions(
            group=stage.group, protocol=stage.protocol, isolation="read_committed"
        )
        try:
            self.consumer: ConsumerClient = way.consumer(options)
            self.consumer.subscribe(stage.source)
        except BaseException:
            self.producer.close()
            raise

    def close(self) -> None:
        try:
            self.producer.close()
        finally:
            self.consumer.close()


class Link(Resilient):
    """One of those who work at a stage; some of its transactions are aborted and made again."""

    def __init__(self, way: Way, stage: Stage, number: int, source: random.Random) -> None:
        name = f"{stage.group}-{number}"
        super().__init__(f"link {name} {way.name}", lambda: _Hands(way, stage, name), source)
        self._stage = stage
        self.committed_count = 0
        self.aborted_count = 0
        self.busy_at = time.monotonic()

    def do(self, client: _Hands) -> None:
        found = self._read(client.consumer)
        if not found:
            return
        self.busy_at = time.monotonic()
        if self._source.random() < 0.2:
            self._pass_on(client, found)
            client.producer.abort()
            self.aborted_count += 1
        sent = self._pass_on(client, found)
        client.producer.commit()
        if not all(map(is_acknowledged, sent)):
            raise RuntimeError("the client commits without all of its records")
        self.committed_count += 1
        self.done_count += len(found)

    def _read(self, consumer: ConsumerClient) -> list[Received]:
        """Without those of partitions that went to others while it was reading."""
        found = consumer.poll(POLL_SECONDS)
        mine = consumer.assignment()
        return [one for one in found if (self._stage.source, one.partition) in mine]

    def _pass_on(self, client: _Hands, found: list[Received]) -> list[Future[int]]:
        stage = self._stage
        client.producer.begin()
        sent = [
            client.producer.send((stage.target, one.partition), b"%d:" % number_of(one.value))
            for one in found
        ]
        ends = {(stage.source, one.partition): one.offset + 1 for one in found}
        client.producer.send_offsets(ends, client.consumer, stage.group)
        return sent
