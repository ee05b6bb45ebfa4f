"""Random but repeatable steps in the life of a partition log, for two logs to take side by side."""

import random
from dataclasses import dataclass, field

from varve.records import Codec, Record, build_batch, end_transaction_marker

WEEK_MS = 7 * 86_400_000
LEADER_EPOCH_CHANGE = 0.08


@dataclass(frozen=True, slots=True)
class Append:
    """One batch by a client or a coordinator, or several as a follower gets them."""

    batch: bytes
    origin: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Truncate:
    offset: int


@dataclass(frozen=True, slots=True)
class RaiseLogStart:
    offset: int


@dataclass(frozen=True, slots=True)
class Roll:
    pass


@dataclass(frozen=True, slots=True)
class Flush:
    pass


@dataclass(frozen=True, slots=True)
class Reopen:
    """Closed in good order, or left as a killed process leaves it."""

    clean: bool


Step = Append | Truncate | RaiseLogStart | Roll | Flush | Reopen


@dataclass(slots=True)
class _Producer:
    id: int
    epoch: int = 0
    sequence: int = 0
    coordinator_epoch: int = 0
    in_transaction: bool = False
    last: bytes | None = None


@dataclass(slots=True)
class LogScript:
    """Draws the next step; most appends are right, some repeat, skip or come from the past.

    With `follower_batches_max` the log is a follower and gets up to so many batches at once.
    """

    random: random.Random
    now_ms: int
    follower_batches_max: int = 0
    may_be_killed: bool = True
    leader_epoch: int = 0
    producers: list[_Producer] = field(default_factory=lambda: [_Producer(7), _Producer(8)])

    def next_step(self, *, log_start_offset: int, log_end_offset: int) -> Step:
        self.now_ms += self.random.choice([0, 1, 5, 1000])
        roll = self.random.random()
        if roll < 0.02:
            return Truncate(self.random.randint(log_start_offset, log_end_offset + 2))
        if roll < 0.03:
            return RaiseLogStart(self.random.randint(log_start_offset, log_end_offset))
        if roll < 0.05:
            return Roll()
        if roll < 0.07:
            return Flush()
        if roll < 0.12:
            return Reopen(clean=self.random.random() < 0.5 or not self.may_be_killed)
        if self.follower_batches_max:
            return self._replicated(log_end_offset)
        if roll < 0.45:
            return self._plain()
        producer = self.random.choice(self.producers)
        if producer.in_transaction and self.random.random() < 0.4:
            return self._marker(producer)
        return self._from(producer)

    def _plain(self) -> Append:
        # Only here: Kafka notes the epoch even of a batch that it then refuses for its producer.
        if self.random.random() < LEADER_EPOCH_CHANGE:
            self.leader_epoch += self.random.randint(1, 3)
        if self.random.random() < 0.02:
            self.now_ms += WEEK_MS + 1
        batch = build_batch(self._records(), codec=self._codec())
        return Append(batch, "CLIENT", self.leader_epoch)

    def _replicated(self, offset: int) -> Append:
        """Batches with offsets and epochs given, now and then with a gap before them."""
        if self.random.random() < LEADER_EPOCH_CHANGE:
            self.leader_epoch += 1
        batches = []
        for _ in range(self.random.randint(1, self.follower_batches_max)):
            offset += self.random.choice([0, 0, 0, 0, 2])
            records = self._records()
            batches.append(
                build_batch(
                    records,
                    base_offset=offset,
                    codec=self._codec(),
                    leader_epoch=self.leader_epoch,
                )
            )
            offset += len(records)
        return Append(b"".join(batches), "REPLICATION", self.leader_epoch)

    def _from(self, producer: _Producer) -> Append:
        kind = self.random.random()
        if kind < 0.08 and producer.last is not None:
            return Append(producer.last, "CLIENT", self.leader_epoch)
        if kind < 0.12:
            producer.sequence += self.random.choice([-1, 1, 5])
            producer.sequence = max(producer.sequence, 0)
        if kind > 0.95 and not producer.in_transaction:
            producer.epoch += 1
            producer.sequence = self.random.choice([0, 0, 0, 3])
        epoch = producer.epoch - 1 if 0.12 < kind < 0.14 and producer.epoch else producer.epoch
        transactional = producer.in_transaction or self.random.random() < 0.5
        records = self._records()
        batch = build_batch(
            records,
            codec=self._codec(),
            producer_id=producer.id,
            producer_epoch=epoch,
            base_sequence=producer.sequence,
            transactional=transactional if self.random.random() < 0.97 else not transactional,
        )
        producer.in_transaction = transactional
        producer.sequence += len(records)
        producer.last = batch
        return Append(batch, "CLIENT", self.leader_epoch)

    def _marker(self, producer: _Producer) -> Append:
        coordinator_epoch = producer.coordinator_epoch
        if self.random.random() < 0.1:
            producer.coordinator_epoch += self.random.choice([1, 1, -1])
        producer.in_transaction = False
        marker = end_transaction_marker(
            committed=self.random.random() < 0.5,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self.now_ms,
        )
        return Append(marker, "COORDINATOR", self.leader_epoch)

    def _records(self) -> list[Record]:
        return [
            Record(
                b"key %d" % self.random.randrange(5),
                self.random.choice([None, b"v" * self.random.randrange(80)]),
                timestamp=self.now_ms - self.random.choice([0, 0, 0, 3, 500]),
            )
            for _ in range(self.random.randint(1, 4))
        ]

    def _codec(self) -> Codec:
        return Codec(self.random.choice([Codec.NONE, Codec.NONE, *Codec]))
