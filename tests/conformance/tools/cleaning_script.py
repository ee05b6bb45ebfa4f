"""Random but repeatable contents of a compacted partition, round by round.

Invariant  every append is right, so that two logs which take the same rounds stay the same.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.conformance.tools.log_script import Append, Roll
from varve.records import Codec, Record, build_batch, end_transaction_marker

MARKER_SHARE: Final = 0.4
# KIP-890: since transaction version 2 the marker itself carries the producer's next epoch.
EPOCH_BUMP_SHARE: Final = 0.3
FUTURE_MS: Final = 10 * 86_400_000
NO_TIMESTAMP: Final = -1
Round = list[Append | Roll]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the records of a partition are like; shares lie between 0 and 1."""

    codecs: tuple[Codec, ...] = (Codec.NONE,)
    key_count: int = 25
    value_bytes_max: int = 120
    batch_records_max: int = 6
    tombstones: float = 0.2
    plain: float = 0.4  # batches without a producer; the others are idempotent or transactional
    transactions: float = 0.5  # of the batches with a producer
    keyless: float = 0.0
    future: float = 0.0  # records dated days ahead
    undated: float = 0.0  # records without a timestamp
    rolls: float = 0.04
    producer_count: int = 3


@dataclass(slots=True)
class _Producer:
    id: int
    epoch: int = 0
    sequence: int = 0
    in_transaction: bool = False


@dataclass(slots=True)
class CleaningScript:
    """Draws the batches of each round; most transactions end in it, one may stay open."""

    random: random.Random
    shape: Shape
    leader_epoch: int = 0
    producers: list[_Producer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.producers = [_Producer(7_000 + n) for n in range(self.shape.producer_count)]

    def next_round(self, batch_count: int, now_ms: int, *, stays_open: bool) -> Round:
        """About so many batches and markers, the last segment closed behind them."""
        return list(self._draw(batch_count, now_ms, stays_open=stays_open))

    def _draw(self, batch_count: int, now_ms: int, *, stays_open: bool) -> Iterator[Append | Roll]:
        if self.random.random() < 0.3:
            self.leader_epoch += 1
        for _ in range(batch_count):
            now_ms += self.random.choice([0, 1, 40])
            if self.random.random() < self.shape.rolls:
                yield Roll()
            yield self._batch(now_ms)
        for producer in self.producers:
            if producer.in_transaction:
                yield self._marker(producer, now_ms)
        yield Roll()
        if stays_open and self.producers:
            yield self._from(self.random.choice(self.producers), now_ms, begin=True)
        yield self._plain(now_ms)
        yield Roll()

    def _batch(self, now_ms: int) -> Append:
        if not self.producers or self.random.random() < self.shape.plain:
            return self._plain(now_ms)
        producer = self.random.choice(self.producers)
        if producer.in_transaction and self.random.random() < MARKER_SHARE:
            return self._marker(producer, now_ms)
        begin = self.random.random() < self.shape.transactions
        return self._from(producer, now_ms, begin=begin)

    def _plain(self, now_ms: int) -> Append:
        batch = build_batch(self._records(now_ms), codec=self._codec())
        return Append(batch, "CLIENT", self.leader_epoch)

    def _from(self, producer: _Producer, now_ms: int, *, begin: bool) -> Append:
        if not producer.in_transaction and self.random.random() < 0.05:
            producer.epoch += 1
            producer.sequence = 0
        producer.in_transaction = producer.in_transaction or begin
        records = self._records(now_ms)
        batch = build_batch(
            records,
            codec=self._codec(),
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            transactional=producer.in_transaction,
        )
        producer.sequence += len(records)
        return Append(batch, "CLIENT", self.leader_epoch)

    def _marker(self, producer: _Producer, now_ms: int) -> Append:
        producer.in_transaction = False
        if self.random.random() < EPOCH_BUMP_SHARE:
            producer.epoch += 1
            producer.sequence = 0
        marker = end_transaction_marker(
            committed=self.random.random() < 0.5,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            coordinator_epoch=0,
            timestamp=now_ms,
        )
        return Append(marker, "COORDINATOR", self.leader_epoch)

    def _records(self, now_ms: int) -> list[Record]:
        count = self.random.randint(1, self.shape.batch_records_max)
        return [self._record(now_ms) for _ in range(count)]

    def _record(self, now_ms: int) -> Record:
        chance = self.random
        value = None
        if chance.random() >= self.shape.tombstones:
            size = chance.randrange(self.shape.value_bytes_max)
            value = chance.choice([b"v" * size, chance.randbytes(size)])
        headers = (("h", chance.choice([None, b"", b"header"])),) if chance.random() < 0.2 else ()
        timestamp = now_ms - chance.choice([0, 0, 0, 3, 900, 50_000])
        if self.shape.future and chance.random() < self.shape.future:
            timestamp += FUTURE_MS
        if self.shape.undated and chance.random() < self.shape.undated:
            timestamp = NO_TIMESTAMP
        return Record(self._key(), value, headers, timestamp)

    def _key(self) -> bytes | None:
        if self.random.random() < self.shape.keyless:
            return None
        # Low numbers come more often: some keys are written all the time, others once.
        number = int(self.shape.key_count * self.random.random() ** 2)
        return b"" if number == 0 else b"key %d" % number

    def _codec(self) -> Codec:
        return self.random.choice(self.shape.codecs)
