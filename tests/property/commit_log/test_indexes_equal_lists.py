"""Under any sequence of calls the indexes equal plain lists."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.rounds import machine_settings
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.foundation.errors import Corrupt, InvalidOffset

BASE = 50
MAX_ENTRIES = 90
OFFSETS = st.integers(BASE - 3, BASE + 400) | st.just(BASE + 2**31 - 1)
STEPS = st.integers(0, 6)
TIMES = st.integers(-3, 300)


class OffsetIndexEqualsList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = OffsetIndex(BASE, MAX_ENTRIES * 8 + 5)
        self.model: list[tuple[int, int]] = []

    def _append(self, offset: int, position: int) -> None:
        if len(self.model) == MAX_ENTRIES:
            return
        last = self.model[-1][0] if self.model else BASE - 1
        if last < offset < BASE + 2**31:
            self.index.append(offset, position)
            self.model.append((offset, position))
            return
        with contextlib.suppress(InvalidOffset):
            self.index.append(offset, position)
            raise AssertionError(f"took offset {offset} after {last}")

    @rule(offset=OFFSETS, step=STEPS)
    def append(self, offset: int, step: int) -> None:
        self._append(offset, (self.model[-1][1] if self.model else 0) + step)

    @rule(count=st.integers(1, 80), step=st.integers(1, 5))
    def append_many(self, count: int, step: int) -> None:
        for _ in range(count):
            offset, position = self.model[-1] if self.model else (BASE, 0)
            self._append(offset + step, position + step)

    @rule(offset=OFFSETS)
    def truncate(self, offset: int) -> None:
        self.index.truncate_to(offset)
        self.model = [entry for entry in self.model if entry[0] < offset]

    @rule()
    def reopen(self) -> None:
        self.index = OffsetIndex.decode(self.index.encode(), BASE, MAX_ENTRIES * 8 + 5)

    @rule(offset=OFFSETS)
    def lookup(self, offset: int) -> None:
        below = [entry for entry in self.model if entry[0] <= offset]
        assert self.index.lookup(offset) == (below[-1] if below else (BASE, 0))

    @invariant()
    def same(self) -> None:
        assert [tuple(row) for row in self.index.entries().tolist()] == self.model
        assert self.index.last_offset == (self.model[-1][0] if self.model else BASE)
        assert self.index.is_full is (len(self.model) == MAX_ENTRIES)
        assert self.index.size_bytes == len(self.index.encode()) == 8 * len(self.model)
        self.index.check("x")


class TimeIndexEqualsList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = TimeIndex(BASE, MAX_ENTRIES * 12 + 11)
        self.model: list[tuple[int, int]] = []

    @rule(timestamp=TIMES, offset=OFFSETS)
    def append(self, timestamp: int, offset: int) -> None:
        if len(self.model) >= MAX_ENTRIES - 1:
            return
        last_time, last_offset = self.model[-1] if self.model else (-1, BASE)
        is_bad = offset < last_offset or (bool(self.model) and timestamp < last_time)
        try:
            self.index.append(timestamp, offset)
            assert not is_bad
        except Corrupt:
            assert is_bad
            return
        if timestamp > last_time:
            self.model.append((timestamp, offset))

    @rule(count=st.integers(1, 80))
    def append_many(self, count: int) -> None:
        for _ in range(min(count, MAX_ENTRIES - 1 - len(self.model))):
            timestamp, offset = self.model[-1] if self.model else (0, BASE)
            if offset < BASE + 2**30:
                self.append(timestamp + 1, offset + count % 2)

    @rule(offset=OFFSETS)
    def truncate(self, offset: int) -> None:
        self.index.truncate_to(offset)
        self.model = [entry for entry in self.model if entry[1] < offset]

    @rule()
    def reopen(self) -> None:
        self.index = TimeIndex.decode(self.index.encode(), BASE, MAX_ENTRIES * 12 + 11)

    @rule(timestamp=TIMES)
    def lookup(self, timestamp: int) -> None:
        below = [entry for entry in self.model if entry[0] <= timestamp]
        assert self.index.lookup(timestamp) == (below[-1] if below else (-1, BASE))

    @invariant()
    def same(self) -> None:
        assert [tuple(row) for row in self.index.entries().tolist()] == self.model
        assert self.index.last == (self.model[-1] if self.model else (-1, BASE))
        assert self.index.is_full is (len(self.model) >= MAX_ENTRIES - 1)
        self.index.check("x")


TestOffsetIndexEqualsList = OffsetIndexEqualsList.TestCase
TestOffsetIndexEqualsList.settings = machine_settings(40)
TestTimeIndexEqualsList = TimeIndexEqualsList.TestCase
TestTimeIndexEqualsList.settings = machine_settings(40)


@given(
    st.lists(st.tuples(st.integers(0, 9), STEPS, st.integers(1, 6), STEPS), max_size=30),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_transaction_index_finds_what_a_list_finds(
    steps: list[tuple[int, int, int, int]], fetch_offset: int, size: int
) -> None:
    index, model, last = TransactionIndex(0), [], 0
    for producer_id, before, step, stable in steps:
        last += step
        entry = AbortedTransaction(producer_id, max(0, last - before), last, last + stable - 3)
        index.append(entry)
        model.append(entry)
    assert TransactionIndex.decode(index.encode(), 0, "x").entries() == tuple(model)
    upper = fetch_offset + size
    ends = [n for n, entry in enumerate(model) if entry.last_stable_offset >= upper]
    seen = model[: ends[0] + 1] if ends else model
    touching = [e for e in seen if e.last_offset >= fetch_offset and e.first_offset < upper]
    assert index.collect(fetch_offset, upper) == (touching, bool(ends))
    index.truncate_to(fetch_offset)
    assert list(index.entries()) == [e for e in model if e.last_offset < fetch_offset]
