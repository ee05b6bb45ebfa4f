"""A crash at any step of a commit or an abort leaves every transaction whole or not there (G3)."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.support.broker_kit import BrokerKit
from tests.support.transaction_bench import QUICK, BenchProducer, TransactionBench
from varve.broker.settings import GroupSettings
from varve.commit_log import TopicPartition
from varve.foundation.clock import ManualClock
from varve.foundation.errors import PowerLoss
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem
from varve.wire import ErrorCode
from varve.wire.messages.state_records import TRANSACTIONS_TOPIC

SYNCED = TopicPartition("synced", 0)
LAZY = TopicPartition("lazy", 0)
GROUPS = GroupSettings(offsets_topic_num_partitions=1)
ENDS = (True, False, True)
"""What the script asks for, one transaction after the other."""


TIMEOUT_MS = 200
# At every step the worst, and one of the others: each costs a start of the broker.
_OTHERS = (CrashMode.KEEP_ALL, CrashMode.RANDOM)


@dataclass
class Told:
    """What the script was answered, by the number of the transaction."""

    ended: dict[int, bool] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    """Those of the disk that are worth a crash."""
    old: BenchProducer | None = None
    new: BenchProducer | None = None


Script = Callable[[BrokerKit, FaultyFileSystem, Told], None]
Check = Callable[[BrokerKit, Told], None]


def _kit(fs: FaultyFileSystem, clock: ManualClock) -> BrokerKit:
    return BrokerKit(fs=fs, clock=clock, transactions=QUICK, groups=GROUPS)


def _prepared(clock: ManualClock) -> FaultyFileSystem:
    """A disk with all topics on it, those of the broker too."""
    fs = FaultyFileSystem(clock)
    with _kit(fs, clock) as kit:
        kit.make_topic("synced", settings={"flush": "ack"})
        kit.make_topic("lazy", settings={"flush": "interval"})
        bench = TransactionBench(kit)
        producer = bench.start("t", timeout_ms=TIMEOUT_MS)
        bench.commit_offset(producer, LAZY, 0)
        bench.end(producer, is_commit=False)
        # The coordinator syncs each step itself, whatever an operator has set.
        kit.store.alter_topic(TRANSACTIONS_TOPIC, {"flush": "interval"})
    return fs


def _run_script(kit: BrokerKit, fs: FaultyFileSystem, told: Told) -> None:
    bench = TransactionBench(kit)
    producer = bench.start("t", timeout_ms=TIMEOUT_MS)
    for number, is_commit in enumerate(ENDS):
        value = str(number).encode()
        assert bench.add(producer, SYNCED, LAZY) is ErrorCode.NONE
        assert bench.produce(producer, SYNCED, value) is ErrorCode.NONE
        assert bench.produce(producer, LAZY, value) is ErrorCode.NONE
        assert bench.commit_offset(producer, SYNCED, number) is ErrorCode.NONE
        before = fs.steps
        assert bench.end(producer, is_commit=is_commit) is ErrorCode.NONE
        told.ended[number] = is_commit
        told.steps += range(before + 1, fs.steps + 1)


def _check(kit: BrokerKit, told: Told) -> None:
    bench = TransactionBench(kit)
    kit.advance(TIMEOUT_MS + QUICK.transaction_abort_interval_ms + 100)
    assert bench.open_count() == 0, "a transaction stays open"
    whole = bench.read(SYNCED)
    assert bench.read(LAZY) == whole, "a transaction is there in parts"
    numbers = [int(one) for one in whole]
    asked = [number for number, is_commit in enumerate(ENDS) if is_commit]
    assert numbers == asked[: len(numbers)], "what was not committed is read"
    kept = {number for number, is_commit in told.ended.items() if is_commit}
    assert kept <= set(numbers), "a committed transaction is lost"
    assert bench.committed(SYNCED) == (numbers[-1] if numbers else None), "offsets went astray"
    producer = bench.start("t")
    assert bench.add(producer, SYNCED, LAZY) is ErrorCode.NONE
    for partition in (SYNCED, LAZY):
        assert bench.produce(producer, partition, b"9") is ErrorCode.NONE
    assert bench.end(producer, is_commit=True) is ErrorCode.NONE
    assert bench.read(LAZY) == bench.read(SYNCED) == [*whole, b"9"]


def _crash_everywhere(script: Script, check: Check, *, at_least: int) -> None:
    """Cuts the power at every step of the script that is worth it."""
    clock = ManualClock()
    prepared = _prepared(clock)
    trial, trial_told = prepared.after_crash(CrashMode.KEEP_ALL), Told()
    with _kit(trial, clock) as kit:
        script(kit, trial, trial_told)
    assert len(trial_told.steps) >= at_least
    for step in trial_told.steps:
        fs, told = prepared.after_crash(CrashMode.KEEP_ALL, seed=step), Told()
        with _kit(fs, clock) as kit:
            fs.crash_at(step)
            with suppress(PowerLoss):
                script(kit, fs, told)
            for mode in (CrashMode.LOSE_UNSYNCED, _OTHERS[step % 2]):
                kit.fs = fs.after_crash(mode, seed=step)
                kit.restart(is_crash=True)
                try:
                    check(kit, told)
                except AssertionError as error:
                    trace = fs.describe_trace(3)
                    raise AssertionError(f"{error}, {mode} after\n{trace}") from error


def test_transactions_are_whole_after_a_crash_at_any_step() -> None:
    _crash_everywhere(_run_script, _check, at_least=15)


def _run_fencing(kit: BrokerKit, fs: FaultyFileSystem, told: Told) -> None:
    """A new run of a producer finds an open transaction of the old one."""
    bench = TransactionBench(kit)
    told.old = bench.start("t", timeout_ms=TIMEOUT_MS)
    assert bench.add(told.old, SYNCED, LAZY) is ErrorCode.NONE
    for partition in (SYNCED, LAZY):
        assert bench.produce(told.old, partition, b"0") is ErrorCode.NONE
    before = fs.steps
    told.new = bench.start("t", timeout_ms=TIMEOUT_MS)
    told.steps += range(before + 1, fs.steps + 1)


def _check_fencing(kit: BrokerKit, told: Told) -> None:
    bench = TransactionBench(kit)
    old, new = told.old, told.new
    assert old is not None
    if new is not None:
        assert bench.add(old, SYNCED) is ErrorCode.PRODUCER_FENCED, "a zombie is let in"
        assert bench.add(new, SYNCED) is ErrorCode.NONE, "who was told an epoch is fenced"
    kit.advance(TIMEOUT_MS + QUICK.transaction_abort_interval_ms + 100)
    assert bench.open_count() == 0, "a transaction stays open"
    assert bench.read(SYNCED) == bench.read(LAZY) == [], "what was not committed is read"
    assert bench.add(old, SYNCED) is ErrorCode.PRODUCER_FENCED, "a zombie is let in later"
    latest = bench.start("t")
    assert latest.producer_id == old.producer_id
    assert latest.epoch > (old if new is None else new).epoch, "an epoch is given out twice"


def test_fencing_outlives_a_crash_at_any_step() -> None:
    _crash_everywhere(_run_fencing, _check_fencing, at_least=5)
