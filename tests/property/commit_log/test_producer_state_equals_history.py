"""Producer state equals what a naive model reads out of the whole history of accepted batches."""

import random
from dataclasses import dataclass

import pytest

from varve.commit_log.producer_snapshots import encode_snapshot, load_snapshot
from varve.commit_log.producer_state import AppendOrigin, BatchSummary, Marker, ProducerStateManager
from varve.foundation.errors import StoreError

WRAP = 2**31
Outcome = str  # "appended", "duplicate" or the name of an error


@dataclass
class History:
    """Every accepted batch in order, and answers found by reading all of them again."""

    accepted: list[BatchSummary]
    high_watermark: int = 0

    def of(self, producer_id: int) -> list[BatchSummary]:
        return [b for b in self.accepted if b.producer_id == producer_id and not is_emptied(b)]

    def epoch(self, producer_id: int) -> int:
        batches = self.of(producer_id)
        return batches[-1].producer_epoch if batches else -1

    def recent(self, producer_id: int) -> list[BatchSummary]:
        """Data batches since the last change of epoch, at most five."""
        recent: list[BatchSummary] = []
        epoch = -1
        for batch in self.of(producer_id):
            if batch.producer_epoch != epoch:
                recent, epoch = [], batch.producer_epoch
            if not batch.is_control:
                recent.append(batch)
        return recent[-5:]

    def open_since(self, producer_id: int) -> int | None:
        first = None
        for batch in self.of(producer_id):
            if batch.is_control:
                first = None
            elif batch.is_transactional and first is None:
                first = batch.base_offset
        return first

    def coordinator_epoch(self, producer_id: int) -> int:
        markers = [b.marker.coordinator_epoch for b in self.of(producer_id) if b.marker]
        return markers[-1] if markers else -1

    def first_unstable(self) -> int | None:
        candidates = []
        for producer_id in {b.producer_id for b in self.accepted}:
            first = None
            for batch in self.of(producer_id):
                if batch.is_control:
                    if first is not None and batch.base_offset >= self.high_watermark:
                        candidates.append(first)
                    first = None
                elif batch.is_transactional and first is None:
                    first = batch.base_offset
            if first is not None:
                candidates.append(first)
        return min(candidates, default=None)

    def judge(self, batch: BatchSummary, origin: AppendOrigin) -> Outcome:
        if origin is AppendOrigin.REPLICATION or is_emptied(batch):
            return "appended"
        epoch = self.epoch(batch.producer_id)
        recent = self.recent(batch.producer_id)
        if origin is AppendOrigin.CLIENT and batch.producer_epoch == epoch:
            spans = [(b.base_sequence, b.last_sequence) for b in recent]
            if (batch.base_sequence, batch.last_sequence) in spans:
                return "duplicate"
        if batch.producer_epoch < epoch:
            return "InvalidProducerEpoch"
        if batch.marker is not None:
            current = self.coordinator_epoch(batch.producer_id)
            return "CoordinatorFenced" if batch.marker.coordinator_epoch < current else "appended"
        if origin is AppendOrigin.CLIENT and epoch >= 0:
            follows = batch.producer_epoch == epoch and recent
            expected = (recent[-1].last_sequence + 1) % WRAP if follows else 0
            if batch.base_sequence != expected:
                return "OutOfOrderSequence"
        if self.open_since(batch.producer_id) is not None and not batch.is_transactional:
            return "InvalidTransactionState"
        return "appended"


def is_emptied(batch: BatchSummary) -> bool:
    return batch.is_control and batch.marker is None


def random_batch(source: random.Random, history: History, offset: int) -> BatchSummary:
    producer_id = source.randrange(3)
    epoch = max(0, history.epoch(producer_id) + source.choice([-1, 0, 0, 0, 0, 0, 1]))
    count = source.randint(1, 3)
    is_control = source.random() < 0.2
    recent = history.recent(producer_id)
    sequence = (recent[-1].last_sequence + 1) % WRAP if recent else source.choice([0, WRAP - 2])
    if source.random() < 0.2 and recent:
        again = source.choice(recent)
        sequence, count = again.base_sequence, again.last_offset - again.base_offset + 1
    elif source.random() < 0.1:
        sequence = source.randrange(4)
    is_open = history.open_since(producer_id) is not None
    marker = Marker(source.random() < 0.5, source.choice([0, 1, 1, 1, 2]))
    return BatchSummary(
        base_offset=offset,
        last_offset=offset if is_control else offset + count - 1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=-1 if is_control else sequence,
        last_sequence=-1 if is_control else (sequence + count - 1) % WRAP,
        max_timestamp=offset,
        is_transactional=is_control or is_open or source.random() < 0.4,
        is_control=is_control,
        marker=marker if is_control and source.random() < 0.9 else None,
    )


def attempt(states: ProducerStateManager, batch: BatchSummary, origin: AppendOrigin) -> Outcome:
    try:
        plan = states.check_and_plan([batch], origin)
    except StoreError as error:
        return type(error).__name__
    if plan.duplicate is not None:
        return "duplicate"
    assert all(completed.last_offset == batch.base_offset for completed in plan.completed)
    states.apply(plan, None)
    return "appended"


def check_same(states: ProducerStateManager, history: History) -> None:
    assert states.first_unstable_offset == history.first_unstable()
    assert set(states.entries) == {b.producer_id for b in history.accepted if not is_emptied(b)}
    for producer_id, entry in states.entries.items():
        assert entry.epoch == history.epoch(producer_id)
        assert entry.transaction_first_offset == history.open_since(producer_id)
        assert entry.coordinator_epoch == history.coordinator_epoch(producer_id)
        assert [cached.last_offset for cached in entry.batches] == [
            batch.last_offset for batch in history.recent(producer_id)
        ]


def check_reloaded(states: ProducerStateManager) -> None:
    loaded = ProducerStateManager()
    load_snapshot(loaded, encode_snapshot(states), now_ms=0, expiration_ms=1)
    assert loaded.entries == {
        producer_id: entry._replace(
            batches=tuple(b._replace(timestamp=entry.last_timestamp) for b in entry.batches[-1:])
        )
        for producer_id, entry in states.entries.items()
    }
    assert loaded.ongoing == states.ongoing


@pytest.mark.parametrize("seed", range(30))
def test_state_equals_history(seed: int, rounds_factor: int) -> None:
    source = random.Random(seed)
    outcomes = set()
    for _ in range(2 * rounds_factor):
        states, history, offset = ProducerStateManager(), History([]), 0
        for _ in range(60):
            batch = random_batch(source, history, offset)
            origin = source.choice([AppendOrigin.CLIENT] * 6 + [AppendOrigin.REPLICATION])
            if batch.is_control and origin is AppendOrigin.CLIENT:
                origin = AppendOrigin.COORDINATOR
            expected = history.judge(batch, origin)
            assert attempt(states, batch, origin) == expected
            outcomes.add(expected)
            if expected == "appended":
                history.accepted.append(batch)
                offset = batch.last_offset + source.randint(1, 3)
            if source.random() < 0.2:
                history.high_watermark = source.randint(history.high_watermark, offset)
                states.advance_high_watermark(history.high_watermark)
            check_same(states, history)
        check_reloaded(states)
    assert {"appended", "duplicate", "OutOfOrderSequence"} <= outcomes


@pytest.mark.parametrize("seed", range(20))
def test_many_batches_in_one_append_equal_one_after_another(seed: int) -> None:
    source = random.Random(seed)
    history, offset, batches = History([]), 0, []
    for _ in range(40):
        batch = random_batch(source, history, offset)
        history.accepted.append(batch)
        batches.append(batch)
        offset = batch.last_offset + 1
    single, together = ProducerStateManager(), ProducerStateManager()
    for batch in batches:
        attempt(single, batch, AppendOrigin.REPLICATION)
    plan = together.check_and_plan(batches, AppendOrigin.REPLICATION)
    assert not together.entries
    together.apply(plan, None)
    assert together.entries == single.entries
    assert together.ongoing == single.ongoing
    assert together.first_unstable_offset == single.first_unstable_offset
