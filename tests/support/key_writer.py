"""Random batches of one segment: codecs, transactions, null keys, duplicates, holes, remains."""

import random

from varve.commit_log.transaction_index import AbortedTransaction
from varve.records import (
    Codec,
    Record,
    build_batch,
    decode_header,
    empty_batch,
    end_transaction_marker,
)

BASE_OFFSETS = (0, 7, 1 << 40)
NOW_MS = 1_700_000_000_000


class KeyWriter:
    """Writes by a seed; `batches` and `aborted` are what came of it."""

    def __init__(self, seed: int, *, key_count: int | None = None) -> None:
        self.random = random.Random(seed)
        self.base_offset = self.random.choice(BASE_OFFSETS)
        self.offset = self.base_offset + self.random.choice((0, 0, 3))
        self.key_count = key_count or self.random.choice((1, 5, 100, 100_000))
        self.codecs = self.random.choice(([Codec.NONE], [Codec.NONE, *Codec], [Codec.LZ4]))
        self.batches: list[bytes] = []
        self.aborted: list[AbortedTransaction] = []
        self._open: dict[int, int] = {}

    def write(self, count: int) -> "KeyWriter":
        for _ in range(count):
            chance = self.random.random()
            if chance < 0.15 and self._open:
                self._end_transaction(is_empty=chance < 0.03)
            else:
                self._write_data(self.random.choice((-1, -1, 1, 2)), is_empty=chance > 0.9)
            if self.random.random() < 0.1:
                self.offset += self.random.randrange(1000)
        return self

    def _record(self) -> Record:
        chance = self.random.random()
        key = b"%d" % self.random.randrange(self.key_count) * self.random.choice((1, 1, 5, 60))
        return Record(
            key=None if chance < 0.05 else b"" if chance < 0.1 else key,
            value=None if self.random.random() < 0.2 else bytes(self.random.randrange(200)),
            headers=(("name", b"value"), ("null", None)) if self.random.random() < 0.1 else (),
            timestamp=NOW_MS + self.random.randrange(1 << 30),
        )

    def _write_data(self, producer_id: int, *, is_empty: bool) -> None:
        count = self.random.choice((1, 2, 30, 200))
        if producer_id > 0:
            self._open.setdefault(producer_id, self.offset)
        data = build_batch(
            [self._record() for _ in range(count)],
            base_offset=self.offset,
            offset_deltas=sorted(self.random.sample(range(2 * count), count)),
            last_offset_delta=2 * count,
            codec=self.random.choice(self.codecs),
            producer_id=producer_id,
            producer_epoch=3 if producer_id > 0 else -1,
            base_sequence=0 if producer_id > 0 else -1,
            transactional=producer_id > 0,
            delete_horizon_ms=self.random.choice((None, None, NOW_MS - self.random.randrange(99))),
        )
        self._add(data, 2 * count + 1, is_empty)

    def _end_transaction(self, *, is_empty: bool) -> None:
        producer_id, first = self._open.popitem()
        committed = self.random.random() < 0.5
        if not committed:
            self.aborted.append(AbortedTransaction(producer_id, first, self.offset, self.offset))
        data = end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=3,
            coordinator_epoch=0,
            timestamp=NOW_MS,
            base_offset=self.offset,
        )
        self._add(data, 1, is_empty)

    def _add(self, data: bytes, offsets: int, is_empty: bool) -> None:
        self.batches.append(empty_batch(decode_header(data)) if is_empty else data)
        self.offset += offsets
