"""Idempotent producers of numbered records, and of keys.

Invariant  nothing is sent twice by a worker. What a client gave up on is uncertain.
"""

import random
from concurrent.futures import Future
from typing import Final

from tests.support.kafka_clients import ProducerClient, ProducerOptions
from tools.soak.clients import Way
from tools.soak.model import Keys, Partition, Sequence
from tools.soak.resilient import Resilient
from tools.soak.sending import flush_all, is_acknowledged

_KEYS: Final = 200


def _value(number: int, source: random.Random) -> bytes:
    """A number, and bytes that compress in part."""
    return b"%d:" % number + source.randbytes(8).hex().encode() * source.randint(1, 60)


class Writer(Resilient):
    """An idempotent producer that is alone in its partitions."""

    def __init__(
        self,
        way: Way,
        codec: str,
        sequences: dict[Partition, Sequence],
        source: random.Random,
    ) -> None:
        options = ProducerOptions(is_idempotent=True, codec=codec, linger_ms=5)
        name = f"writer {way.name} {codec}"
        super().__init__(name, lambda: way.producer(options), source)
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
            error = flush_all(client, list(sent.values()))
            known = {number for number, one in sent.items() if is_acknowledged(one)}
            sequence.uncertain -= known
            sequence.acknowledged = sequence.sent
            self.done_count += len(known)
        if error is not None:
            raise error


class KeyWriter(Resilient):
    """Writes keys over and over, and takes some away."""

    def __init__(
        self,
        way: Way,
        codec: str,
        partitions: dict[Partition, Keys],
        source: random.Random,
    ) -> None:
        options = ProducerOptions(is_idempotent=True, codec=codec, linger_ms=5)
        name = f"keys {way.name} {codec}"
        super().__init__(name, lambda: way.producer(options), source)
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
            error = flush_all(client, [one for _, _, one in sent])
            for key, number, one in sent:
                if is_acknowledged(one):
                    keys.latest[key] = number
            self._settle(keys, sent)
        if error is not None:
            raise error

    def _settle(self, keys: Keys, sent: "list[tuple[bytes, int | None, Future[int]]]") -> None:
        """What was sent before something that was acknowledged is not the latest any more."""
        for key in {key for key, _, _ in sent}:
            last = [(number, one) for found, number, one in sent if found == key]
            later: set[int | None] = set()
            while last and not is_acknowledged(last[-1][1]):
                later.add(last.pop()[0])
            self.done_count += len(last)
            if last:
                keys.uncertain[key] = later
