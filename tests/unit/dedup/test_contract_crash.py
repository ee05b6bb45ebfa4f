"""docs/how-to/deduplicate.md, after a crash and after a restart: a test for each sentence."""

import random
from typing import Any

import pytest

from tests.support.dedup_cases import (
    OUTPUT,
    SIDE,
    append,
    draw_records,
    rules_of,
)
from tests.support.dedup_contract import STATE, WINDOW, ContractBench, T, make_rules
from tests.support.window_dedup import Arrival, DedupBench
from varve.dedup.backend import ProgressCoordinator
from varve.dedup.rules import Counts, LatePolicy, Verdict
from varve.disk import PowerLoss
from varve.foundation.errors import Fenced, Unavailable
from varve.records import Record
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

CHANGELOG, PROGRESS = f"{OUTPUT}-dedup-changelog", f"{OUTPUT}-dedup-progress"
WRITTEN = (OUTPUT, SIDE, CHANGELOG, PROGRESS)
RULES = rules_of()


@pytest.fixture
def broken_commit(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Commits fail when everything but the progress is written, until it is undone."""

    def fail(*_: object) -> None:
        raise Unavailable("the disk is busy: try again")

    monkeypatch.setattr(ProgressCoordinator, "_append_progress", fail)
    return monkeypatch


def test_d37_all_or_nothing(broken_commit: pytest.MonkeyPatch) -> None:
    """D37 The output, the side topic, the ids and the progress of a chunk are one transaction:
    consumers with `read_committed` see all of it or nothing.
    """
    bench = ContractBench(make_rules(late=LatePolicy.SIDE))
    bench.put((b"x", T), (b"l", 0))
    with pytest.raises(Unavailable):
        bench.run()
    assert not any(bench.records(item) for item in WRITTEN)
    broken_commit.undo()
    bench.run()
    assert {item: len(bench.records(item)) for item in WRITTEN} == dict.fromkeys(WRITTEN, 1)


def _begin(records: list[Record]) -> FaultyFileSystem:
    """An input on disk."""
    bench = ContractBench(RULES)
    append(bench.input, 0, records, step=4)
    bench.store.close()
    return bench.fs


def _run(fs: FaultyFileSystem) -> ContractBench:
    return ContractBench.run_on(fs, RULES, chunk_bytes=1_400, checkpoint_entries=12)


@pytest.mark.parametrize("mode", [CrashMode.KEEP_ALL, CrashMode.LOSE_UNSYNCED])
def test_d38_killed(mode: CrashMode) -> None:
    """D38 A run that is killed at any moment, by `kill -9` or by a power failure, neither loses nor
    duplicates a record for consumers with `read_committed`.
    """
    records = draw_records(random.Random(38), 40)
    begin = _begin(records)
    trial = begin.after_crash(CrashMode.KEEP_ALL)
    bench = _run(trial)
    step_count = trial.steps
    bench.store.close()
    for step in range(20, step_count, step_count // 6):
        fs = begin.after_crash(CrashMode.KEEP_ALL)
        fs.crash_at(step)
        with pytest.raises(PowerLoss):
            _run(fs)
        bench = _run(fs.after_crash(mode, seed=step))
        bench.check(records)
        bench.store.close()


def test_d39_read_uncommitted(broken_commit: pytest.MonkeyPatch) -> None:
    """D39 Consumers with `read_uncommitted` may see records of a chunk that was never committed,
    and then see them a second time.
    """
    bench = ContractBench()
    bench.put((b"x", T), (b"y", T))
    with pytest.raises(Unavailable):
        bench.run()
    broken_commit.undo()
    bench.run()
    assert bench.passed() == [0, 1]
    assert bench.passed(isolation="read_uncommitted") == [0, 1, 0, 1]


def test_d40_no_duplicate_of_itself() -> None:
    """D40 A record that is read again is not a duplicate of itself: it is compared only with
    records with lower offsets.
    """
    chunk = [Arrival(7, b"x", T), Arrival(8, b"x", T + 1)]
    bench = DedupBench(make_rules())
    for _ in range(2):
        assert [item.verdict for item in bench.chunk(chunk)] == [Verdict.KEPT, Verdict.DUPLICATE]


def test_d41_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    """D41 A second run with the same name fences the first: records that the first has not
    committed never become visible, and it can no longer commit.
    """
    bench = ContractBench()
    bench.put((b"x", T), (b"y", T))
    first, later = bench.open(), []
    whole = ProgressCoordinator._append_progress

    def overtaken(*options: Any) -> None:
        monkeypatch.undo()
        later.append(bench.open(state="/second"))
        whole(*options)

    monkeypatch.setattr(ProgressCoordinator, "_append_progress", overtaken)
    with pytest.raises(Fenced), first:
        first.run_once()
    assert bench.passed() == []
    with later[0] as second:
        second.run_once()
        assert second.states()[0].counts == Counts(kept=2)
    assert bench.passed() == [0, 1]


def test_d42_a_run_goes_on() -> None:
    """D42 A run continues after the last committed chunk, with the ids, the stream time and the
    counts of that commit.
    """
    bench = ContractBench.of([(b"x", T), (b"x", T)])
    before = bench.progress()
    assert bench.run() == before.counts == Counts(kept=1, duplicates=1)
    assert bench.progress().position == before.position == 2
    bench.store.close()
    bench.store = bench.open_store()
    bench.put((b"x", T + WINDOW), (b"y", T - make_rules().lateness_ms - 1))
    assert bench.run() == Counts(kept=1, duplicates=2, late=1)


@pytest.mark.parametrize("loss", ["all", "unflushed", "checkpoint", "meta", "segments"])
def test_d43_the_state_directory(loss: str) -> None:
    """D43 The state directory is a copy of the changelog topic: if it is lost, truncated or damaged
    it is restored, and the results equal those of a run that never lost it.
    """
    bench = ContractBench(RULES)
    records = draw_records(random.Random(43), 240)
    append(bench.input, 0, records[:120])
    bench.run(chunk_bytes=500)
    state = f"{STATE}/{OUTPUT}/0"
    match loss:
        case "all":
            bench.lose_state()
        case "unflushed":
            bench.store.close()
            bench.fs = bench.fs.after_crash(CrashMode.LOSE_UNSYNCED)
            bench.store = bench.open_store()
        case "segments":
            for item in bench.segments():
                bench.fs.remove_tree(f"{state}/{item}")
        case _:
            with bench.fs.open_writable(f"{state}/{loss}.json") as file:
                file.write_at(0, b"no")
    append(bench.input, 0, records[120:])
    bench.run()
    bench.check(records)


def test_d44_another_machine() -> None:
    """D44 A run may continue on another machine: it needs only the topics."""
    bench = ContractBench.of([(b"x", T)])
    bench.put((b"x", T + WINDOW), (b"y", T))
    assert bench.run(state="/elsewhere") == Counts(kept=2, duplicates=1)
    assert bench.fs.exists(f"/elsewhere/{OUTPUT}/0")
