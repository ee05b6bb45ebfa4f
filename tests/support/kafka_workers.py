"""Clients at work while their server is killed: what they were told is kept for the judgement.

Threads    each worker has its own; what it noted is read once it has ended.
"""

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, Self

from tests.support.kafka_clients import (
    WAIT_SECONDS,
    Broken,
    ConsumerOptions,
    Failed,
    KafkaClient,
    ProducerClient,
    ProducerOptions,
    Received,
)

PARTITIONS: Final = (0, 1)
_POLL_SECONDS: Final = 0.5


class Worker(threading.Thread):
    """Does its work over and over until it is told to end."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._ends = threading.Event()
        self.error: BaseException | None = None
        self.done_count = 0
        """How much was acknowledged."""

    def work(self) -> None:
        """One piece of it."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the client."""
        raise NotImplementedError

    def run(self) -> None:
        try:
            while not self._ends.is_set():
                self.work()
        except BaseException as error:
            self.error = error
        finally:
            self.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self.join(WAIT_SECONDS * 2)
        assert not self.is_alive(), f"{self.name} hangs"

    def check(self) -> None:
        """Raises what ended the work early."""
        if self.error is not None:
            raise AssertionError(f"{self.name} could not go on by itself") from self.error


class Writer(Worker):
    """An idempotent producer; values count up in each partition."""

    def __init__(self, client: KafkaClient, bootstrap: str, topic: str, source: random.Random):
        super().__init__("the idempotent producer")
        self._producer = client.producer(bootstrap, ProducerOptions(is_idempotent=True))
        self._topic = topic
        self._source = source
        self.sent: dict[tuple[int, int], Future[int]] = {}
        """By partition and value."""
        self.counts = dict.fromkeys(PARTITIONS, 0)

    def work(self) -> None:
        for _ in range(self._source.randint(1, 20)):
            number = self._source.choice(PARTITIONS)
            value = self.counts[number]
            self.sent[number, value] = self._producer.send((self._topic, number), b"%d" % value)
            self.counts[number] += 1
        self._producer.flush()
        self.done_count = len(self.sent)

    def close(self) -> None:
        self._producer.close()


class Transactor(Worker):
    """A producer of transactions; each writes its number to all partitions."""

    def __init__(self, client: KafkaClient, bootstrap: str, topic: str, source: random.Random):
        super().__init__("the transactional producer")
        options = ProducerOptions(transactional_id=f"{topic}-writer")
        self._make: Callable[[], ProducerClient] = partial(client.producer, bootstrap, options)
        self._producer = self._make()
        self._topic = topic
        self._source = source
        self._number = 0
        self.committed: list[int] = []
        self.aborted: list[int] = []

    def work(self) -> None:
        self._number += 1
        self._producer.begin()
        sent = [
            self._producer.send((self._topic, partition), b"%d" % self._number)
            for _ in range(self._source.randint(1, 3))
            for partition in PARTITIONS
        ]
        if self._source.random() >= 0.7:
            self._abort()
            return
        try:
            self._producer.commit()
        except Failed:
            self._abort()
            return
        # While its server is away kafka-python forgets records, and commits what is left: nothing.
        if all(one.done() and one.exception() is None for one in sent):
            self.committed.append(self._number)
            self.done_count += 1
        else:
            self.aborted.append(self._number)

    def _abort(self) -> None:
        self.aborted.append(self._number)
        try:
            self._producer.abort()
        except Broken:
            # librdkafka aborts also what its server was killed before it heard of.
            self._producer.close()
            self._producer = self._make()

    def close(self) -> None:
        self._producer.close()


class Member(Worker):
    """A member of a group that commits what it has read."""

    def __init__(self, client: KafkaClient, bootstrap: str, topic: str, group: str):
        super().__init__("the member of the group")
        options = ConsumerOptions(group=group, session_timeout_ms=3_000)
        self._consumer = client.consumer(bootstrap, options)
        self._consumer.subscribe(topic)
        self._topic = topic
        self.read: list[Received] = []
        self.acknowledged = dict.fromkeys(PARTITIONS, 0)
        """Commits that were answered."""

    def work(self) -> None:
        found = self._consumer.poll(_POLL_SECONDS)
        if not found:
            return
        self.read += found
        ends = {one.partition: one.offset + 1 for one in found}
        try:
            self._consumer.commit({(self._topic, number): end for number, end in ends.items()})
        except Exception:
            return  # not acknowledged: the group may begin before it again
        self.acknowledged |= ends
        self.done_count += 1

    def close(self) -> None:
        self._consumer.close()
