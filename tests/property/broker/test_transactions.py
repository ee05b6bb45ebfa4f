"""Producers in any order, their zombies, timeouts and restarts: as a simple model says."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.broker_kit import BrokerKit
from tests.support.transaction_bench import (
    QUICK,
    TIMEOUT_MS,
    BenchProducer,
    TransactionBench,
)
from varve.broker.settings import GroupSettings
from varve.commit_log import TopicPartition
from varve.wire import ErrorCode

PARTITIONS = (TopicPartition("a", 0), TopicPartition("a", 1))
IDS = ("one", "two", "three")
GROUPS = GroupSettings(offsets_topic_num_partitions=1)

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass
class _Transaction:
    outcome: str = OPEN
    partitions: set[TopicPartition] = field(default_factory=set)
    offset: int | None = None


@dataclass
class _Known:
    """One transactional id: its runs, of which the last is the true one unless it was fenced."""

    runs: list[BenchProducer] = field(default_factory=list)
    epoch: int = -1
    transaction: _Transaction | None = None

    @property
    def is_open(self) -> bool:
        return self.transaction is not None and self.transaction.outcome == OPEN


class _Model:
    """What must come out."""

    def __init__(self) -> None:
        self.ids = {one: _Known() for one in IDS}
        self.written: dict[TopicPartition, list[tuple[bytes, _Transaction]]] = {
            one: [] for one in PARTITIONS
        }
        self.offset_order: list[tuple[int, _Transaction]] = []

    def fence(self, known: _Known) -> None:
        if known.is_open and known.transaction is not None:
            known.transaction.outcome = ABORTED
            known.epoch += 1

    def expected(self, partition: TopicPartition) -> list[bytes]:
        """Committed values up to the first that is not decided."""
        found = []
        for value, transaction in self.written[partition]:
            if transaction.outcome == OPEN:
                break
            if transaction.outcome == COMMITTED:
                found.append(value)
        return found

    def expected_offset(self) -> int | None:
        done = [offset for offset, one in self.offset_order if one.outcome == COMMITTED]
        return done[-1] if done else None


@dataclass(frozen=True)
class _Action:
    verb: str
    run: int = 0
    """0 is the latest run, others are zombies where there are any."""
    partition: int = 0
    is_commit: bool = True


_ACTIONS = st.builds(
    _Action,
    verb=st.sampled_from(["start", "add", "produce", "produce", "offset", "end", "end"]),
    run=st.sampled_from([0, 0, 0, 0, 1]),
    partition=st.integers(0, len(PARTITIONS) - 1),
    is_commit=st.booleans(),
)
_ROUNDS = st.dictionaries(st.sampled_from(IDS), _ACTIONS, min_size=1)
_PAUSES = st.sampled_from(["timeout", "restart", "crash"])


class _Run:
    """Does to the broker and to the model the same things."""

    def __init__(self, kit: BrokerKit) -> None:
        self.kit = kit
        self.bench = TransactionBench(kit)
        self.model = _Model()
        self.count = 0

    def pause(self, what: str) -> None:
        if what == "timeout":
            self.kit.advance(TIMEOUT_MS + 2 * QUICK.transaction_abort_interval_ms)
            for known in self.model.ids.values():
                self.model.fence(known)
        else:
            self.kit.restart(is_crash=what == "crash")

    def round(self, actions: dict[str, _Action]) -> None:
        """One action of each of some ids, all at once."""
        self.kit.run(self._all([self._act(one, action) for one, action in actions.items()]))

    async def _all(self, work: list[object]) -> None:
        await asyncio.gather(*work)  # type: ignore[call-overload]  # coroutines

    async def _act(self, transactional_id: str, action: _Action) -> None:
        known = self.model.ids[transactional_id]
        if action.verb == "start" or not known.runs:
            await self._start(transactional_id, known)
            return
        run = known.runs[max(0, len(known.runs) - 1 - action.run)]
        is_fenced = run.epoch != known.epoch
        partition = PARTITIONS[action.partition]
        match action.verb:
            case "add":
                await self._add(known, run, partition, is_fenced=is_fenced)
            case "produce":
                await self._produce(known, run, partition, is_fenced=is_fenced)
            case "offset":
                await self._commit_offset(known, run, is_fenced=is_fenced)
            case _:
                await self._end(known, run, is_commit=action.is_commit, is_fenced=is_fenced)

    async def _start(self, transactional_id: str, known: _Known) -> None:
        run = await self.bench.starting(transactional_id, TIMEOUT_MS)
        self.model.fence(known)
        known.epoch += 1
        known.transaction = None
        assert run.epoch == known.epoch
        known.runs.append(run)

    def _open(self, known: _Known) -> _Transaction:
        if not known.is_open or known.transaction is None:
            known.transaction = _Transaction()
        return known.transaction

    async def _add(
        self, known: _Known, run: BenchProducer, partition: TopicPartition, *, is_fenced: bool
    ) -> None:
        code = await self.bench.adding(run, partition)
        if is_fenced:
            assert code is ErrorCode.PRODUCER_FENCED
            return
        assert code is ErrorCode.NONE
        self._open(known).partitions.add(partition)

    async def _produce(
        self, known: _Known, run: BenchProducer, partition: TopicPartition, *, is_fenced: bool
    ) -> None:
        self.count += 1
        value = str(self.count).encode()
        current = known.transaction if known.is_open else None
        is_added = current is not None and partition in current.partitions
        if is_added and not is_fenced and current is not None:
            # The order of submission is that of the log.
            self.model.written[partition].append((value, current))
        code = await self.bench.producing(run, partition, value)
        if is_fenced:
            assert code is ErrorCode.INVALID_PRODUCER_EPOCH
        else:
            assert code is (ErrorCode.NONE if is_added else ErrorCode.INVALID_TXN_STATE)

    async def _commit_offset(self, known: _Known, run: BenchProducer, *, is_fenced: bool) -> None:
        self.count += 1
        offset = self.count
        code = await self.bench.committing_offset(run, PARTITIONS[0], offset)
        if is_fenced:
            assert code is ErrorCode.PRODUCER_FENCED
            return
        assert code is ErrorCode.NONE
        self.model.offset_order.append((offset, self._open(known)))

    async def _end(
        self, known: _Known, run: BenchProducer, *, is_commit: bool, is_fenced: bool
    ) -> None:
        code = await self.bench.ending(run, is_commit=is_commit)
        outcome = COMMITTED if is_commit else ABORTED
        last = known.transaction
        if is_fenced:
            assert code is ErrorCode.PRODUCER_FENCED
        elif last is not None and last.outcome == OPEN:
            assert code is ErrorCode.NONE
            last.outcome = outcome
        elif last is not None and last.outcome == outcome:
            assert code is ErrorCode.NONE
        else:
            assert code is ErrorCode.INVALID_TXN_STATE

    def check(self) -> None:
        for partition in PARTITIONS:
            assert self.bench.read(partition) == self.model.expected(partition)
        assert self.bench.committed(PARTITIONS[0]) == self.model.expected_offset()


@contextmanager
def _opened() -> Iterator[_Run]:
    with BrokerKit(transactions=QUICK, groups=GROUPS) as kit:
        kit.make_topic("a", partitions=len(PARTITIONS))
        yield _Run(kit)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.one_of(_ROUNDS, _ROUNDS, _ROUNDS, _ROUNDS, _PAUSES), max_size=25))
def test_transactions_are_as_the_model_says(steps: list[dict[str, _Action] | str]) -> None:
    with _opened() as run:
        for step in steps:
            if isinstance(step, str):
                run.pause(step)
            else:
                run.round(step)
            run.check()
        run.pause("timeout")
        run.check()
        assert run.bench.open_count() == 0
