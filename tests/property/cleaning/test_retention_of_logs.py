"""Retention of a log on disk deletes what the model deletes, whatever happened before (G5)."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.log_bench import DIRECTORY, NOW_MS, Bench, make_batch, read_all
from tests.support.log_facts import Piece, make_facts
from tests.support.retention_model import ModelLog
from varve.cleaning.removals.removal_log import RemovalLog
from varve.cleaning.retention.retention import LogRetention
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.settings import LONG_MAX


@dataclass
class Made:
    """What a segment was made of."""

    base: int
    offsets: int = 0
    size: int = 0
    newest: int = -1
    appended: list[int] = field(default_factory=list)

    def piece(self, now_ms: int) -> Piece:
        times = self.appended or [now_ms]
        return Piece(
            offsets=self.offsets,
            size=self.size,
            newest=self.newest,
            appended=(times[0], times[-1]),
        )


class Run:
    """A log and the list of segments it should have."""

    def __init__(self, policy: dict[str, Any]) -> None:
        self.clock = ManualClock(NOW_MS)
        self.policy = policy
        self.bench = Bench(MemoryFileSystem(self.clock), self.clock, is_alone=False)
        self.bench.set(segment_ms=LONG_MAX, **policy).open()
        self.made = [Made(0)]
        self.high_watermark = 0

    def append(self, lag: int | None) -> None:
        """Two records that are `lag` old, or carry no timestamp."""
        now_ms = self.clock.now_ms()
        time = -1 if lag is None else now_ms - lag - NOW_MS
        if lag is not None and time == -1:
            time = 0  # -1 asks for none
        batch = make_batch(2, time=time)
        self.bench.log.append(batch)
        active = self.made[-1]
        active.offsets += 2
        active.size += len(batch)
        active.newest = max(active.newest, -1 if lag is None else NOW_MS + time)
        active.appended.append(now_ms)

    def roll(self) -> None:
        self.bench.log.roll()
        if self.made[-1].size:
            self.made.append(Made(self.end))

    @property
    def end(self) -> int:
        return self.made[-1].base + self.made[-1].offsets

    def replicate(self, share: int) -> None:
        self.high_watermark = max(self.high_watermark, self.end * share // 4)
        self.bench.log.advance_high_watermark(self.high_watermark)

    def delete_records(self, share: int) -> None:
        if "delete" in self.policy["cleanup_policy"]:
            self.bench.log.delete_records(self.high_watermark * share // 4)

    def reopen(self) -> None:
        self.bench.reopen(high_watermark=self.high_watermark)

    def expire(self) -> None:
        now_ms, log = self.clock.now_ms(), self.bench.log
        facts = make_facts(
            *[one.piece(now_ms) for one in self.made],
            first_base=self.made[0].base,
            log_start=log.log_start_offset,
            high_watermark=self.high_watermark,
            **self.policy,
        )
        model = ModelLog(facts)
        gone = model.run(now_ms)
        removals = RemovalLog(self.bench.fs, DIRECTORY)
        found = LogRetention(log, removals).expire(now_ms).segments
        assert [one.base_offset for one in found] == gone
        if gone:
            counted = [summary.records for summary in removals.read()[-1].removal.inputs]
            assert counted == [one.offsets for one in self.made[: len(gone)]]
        end = self.end
        self.made = self.made[len(gone) :] or [Made(end)]
        assert [one.base_offset for one in log.view] == [one.base for one in self.made]
        assert log.log_start_offset == model.start
        self._check_readable(end)

    def _check_readable(self, end: int) -> None:
        """Batches of two are read whole: from the one that holds the log start, if it is there."""
        log = self.bench.log
        first = max(self.made[0].base, log.log_start_offset // 2 * 2)
        assert read_all(log) == list(range(first, min(end, self.high_watermark // 2 * 2)))


LAGS = st.one_of(st.none(), st.integers(-500, 500), st.sampled_from([-(10**10), 10**10]))
STEPS = st.one_of(
    st.tuples(st.just("append"), LAGS),
    st.tuples(st.just("append"), LAGS),
    st.tuples(st.just("roll")),
    st.tuples(st.just("advance"), st.integers(1, 300)),
    st.tuples(st.just("replicate"), st.integers(1, 4)),
    st.tuples(st.just("delete_records"), st.integers(0, 4)),
    st.tuples(st.just("expire")),
    st.tuples(st.just("reopen")),
)
POLICIES = st.fixed_dictionaries(
    {
        "cleanup_policy": st.sampled_from([("delete",), ("compact",), ("compact", "delete")]),
        "retention_ms": st.integers(-1, 500),
        "retention_bytes": st.sampled_from([-1, -1, 0, 100, 300, 800]),
        "retention_time": st.sampled_from(["bounded", "event", "append"]),
    }
)


@settings(max_examples=120)
@given(POLICIES, st.lists(STEPS, min_size=5, max_size=25))
def test_a_log_loses_what_the_model_loses(
    policy: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    run = Run(policy)
    for name, *arguments in [*steps, ("replicate", 4), ("expire",)]:
        if name == "advance":
            run.clock.advance(*arguments)
        else:
            getattr(run, name)(*arguments)
    entries = RemovalLog(run.bench.fs, DIRECTORY).read()
    assert all(entry.is_done for entry in entries)
    gone = sum(entry.removal.records_removed for entry in entries)
    assert gone == run.made[0].base
