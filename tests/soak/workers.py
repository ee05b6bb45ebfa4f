"""Clients at work all the time: they write down what they were told, and go on after any error.

Invariant  nothing is sent twice by a worker. What a client gave up on is uncertain.
Threads    each worker has its own.
"""

import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from tests.soak.model import GroupModel, Keys, Partition, Sequence, Transactions
from tests.support.kafka_clients import (
    ConsumerOptions,
    Failed,
    KafkaClient,
    ProducerClient,
    ProducerOptions,
)
from tests.support.kafka_workers import Worker

PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.05
_AFTER_ERROR_SECONDS: Final = 0.5
_FINISH_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.5
_KEYS: Final = 200


class Resilient(Worker):
    """Its client is made when it is needed, and made anew after an error."""

    def __init__(self, name: str, make: Callable[[], Any], source: random.Random) -> None:
        super().__init__(name)
        self._make = make
        self._source = source
        self._client: Any = None
        self._pause = threading.Event()
        self.errors: list[str] = []

    def work(self) -> None:
        try:
            if self._client is None:
                self._client = self._make()
            self.do(self._client)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}"[:300])
            self.close()
            self._pause.wait(_AFTER_ERROR_SECONDS)
        self._pause.wait(self._source.uniform(0, 2 * _PAUSE_SECONDS))

    def do(self, client: Any) -> None:
        """One piece of the work."""
        raise NotImplementedError

    def finish(self) -> str | None:
        """Ends the work; where it hangs, if it does."""
        self._ends.set()
        self.join(_FINISH_SECONDS)
        if not self.is_alive():
            return None
        frame = sys._current_frames()[self.ident or 0]
        return "".join(traceback.format_stack(frame)[-4:])

    def close(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.close()
        except Exception as error:
            self.errors.append(f"close: {type(error).__name__}: {error}"[:300])


def _flush(client: ProducerClient, sent: "list[Future[int]]") -> Exception | None:
    """Until all is acknowledged or given up on; the error where something was."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not all(one.done() for one in sent):
        try:
            client.flush()
        except Exception as error:
            if time.monotonic() > deadline:
                return error
    return next(filter(None, map(_error_of, sent)), None)


def _error_of(sent: "Future[int]") -> Exception | None:
    error = sent.exception(0)
    return error if isinstance(error, Exception) else None


def _is_acknowledged(sent: "Future[int]") -> bool:
    return sent.done() and sent.exception(0) is None


def _value(number: int, source: random.Random) -> bytes:
    """A number, and bytes that compress in part."""
    return b"%d:" % number + source.randbytes(8).hex().encode() * source.randint(1, 60)


class Writer(Resilient):
    """An idempotent producer that is alone in its partitions."""

    def __init__(
        self,
        client: KafkaClient,
        bootstrap: str,
        codec: str,
        sequences: dict[Partition, Sequence],
        source: random.Random,
    ) -> None:
        options = ProducerOptions(is_idempotent=True, codec=codec, linger_ms=5)
        name = f"writer {type(client).__name__} {codec}"
        super().__init__(name, lambda: client.producer(bootstrap, options), source)
        self._sequences = sequences

    def do(self, client: ProducerClient) -> None:
        partition = self._source.choice(list(self._sequences))
        sequence = self._sequences[partition]
        sent: dict[int, Future[int]] = {}
        try:
            for _ in range(self._source.randint(1, 60)):
                number, sequence.sent = sequence.sent, sequence.sent + 1
                sequence.uncertain.add(number)
                sent[number] = client.send(partition, _value(number, self._source))
        finally:
            error = _flush(client, list(sent.values()))
            known = {number for number, one in sent.items() if _is_acknowledged(one)}
            sequence.uncertain -= known
            sequence.acknowledged = sequence.sent
            self.done_count += len(known)
        if error is not None:
            raise error


class KeyWriter(Resilient):
    """Writes keys over and over, and takes some away."""

    def __init__(
        self,
        client: KafkaClient,
        bootstrap: str,
        codec: str,
        partitions: dict[Partition, Keys],
        source: random.Random,
    ) -> None:
        options = ProducerOptions(is_idempotent=True, codec=codec, linger_ms=5)
        name = f"keys {type(client).__name__} {codec}"
        super().__init__(name, lambda: client.producer(bootstrap, options), source)
        self._partitions = partitions

    def do(self, client: ProducerClient) -> None:
        partition = self._source.choice(list(self._partitions))
        keys = self._partitions[partition]
        sent: list[tuple[bytes, int | None, Future[int]]] = []
        try:
            for _ in range(self._source.randint(1, 60)):
                key = b"key-%d" % min(_KEYS - 1, int(self._source.expovariate(0.03)))
                number = None if self._source.random() < 0.1 else keys.sent
                keys.sent += 1
                value = None if number is None else _value(number, self._source)
                keys.uncertain.setdefault(key, set()).add(number)
                sent.append((key, number, client.send(partition, value, key=key)))
        finally:
            error = _flush(client, [one for _, _, one in sent])
            for key, number, one in sent:
                if _is_acknowledged(one):
                    keys.latest[key] = number
            self._settle(keys, sent)
        if error is not None:
            raise error

    def _settle(self, keys: Keys, sent: "list[tuple[bytes, int | None, Future[int]]]") -> None:
        """What was sent before something that was acknowledged is not the latest any more."""
        for key in {key for key, _, _ in sent}:
            last = [(number, one) for found, number, one in sent if found == key]
            later: set[int | None] = set()
            while last and not _is_acknowledged(last[-1][1]):
                later.add(last.pop()[0])
            self.done_count += len(last)
            if last:
                keys.uncertain[key] = later


class Transactor(Resilient):
    """Transactions that each write their number to all partitions of a topic."""

    def __init__(
        self,
        client: KafkaClient,
        bootstrap: str,
        codec: str,
        partitions: list[Partition],
        model: Transactions,
        source: random.Random,
    ) -> None:
        self.id = f"{type(client).__name__}-{codec}"
        options = ProducerOptions(transactional_id=self.id, codec=codec)
        super().__init__(
            f"transactions {self.id}", lambda: client.producer(bootstrap, options), source
        )
        self._partitions = partitions
        self._model = model
        self._number = 0

    def do(self, client: ProducerClient) -> None:
        number, self._number = self._number, self._number + 1
        model = self._model
        model.uncertain.add(number)
        copies = model.copies[number] = self._source.randint(1, 10)
        value = f"{self.id}:{number}".encode()
        client.begin()
        sent = [client.send(one, value) for _ in range(copies) for one in self._partitions]
        is_wanted = self._source.random() < 0.7
        try:
            if is_wanted:
                client.commit()
            else:
                client.abort()
        except Failed:
            is_wanted = False
            client.abort()
        if is_wanted and not all(map(_is_acknowledged, sent)):
            raise RuntimeError("the client commits without all of its records")
        model.uncertain.remove(number)
        (model.committed if is_wanted else model.aborted).add(number)
        self.done_count += 1


class Member(Resilient):
    """A member of a group that commits what it has read."""

    def __init__(
        self,
        client: KafkaClient,
        bootstrap: str,
        topic: str,
        group: str,
        model: GroupModel,
        source: random.Random,
    ) -> None:
        options = ConsumerOptions(group=group, session_timeout_ms=6_000)

        def make() -> Any:
            consumer = client.consumer(bootstrap, options)
            consumer.subscribe(topic)
            return consumer

        super().__init__(f"member {type(client).__name__}", make, source)
        self._topic = topic
        self._model = model

    def do(self, client: Any) -> None:
        found = client.poll(_POLL_SECONDS)
        if not found:
            return
        for one in found:
            self._model.note_read(one.partition, one.offset)
        ends = {one.partition: one.offset + 1 for one in found}
        client.commit({(self._topic, number): end for number, end in ends.items()})
        self._model.note_commit(ends)
        self.done_count += len(found)
