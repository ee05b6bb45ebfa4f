"""After a crash at any step of a commit or an abort every transaction is whole or not there."""

from contextlib import suppress
from dataclasses import dataclass, field

from tests.support.broker_kit import BrokerKit
from tests.support.transaction_bench import QUICK, TransactionBench
from varve.broker.groups.settings import GroupSettings
from varve.commit_log import TopicPartition
from varve.disk import CrashMode, FaultyFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import PowerLoss
from varve.wire import ErrorCode

SYNCED = TopicPartition("synced", 0)
LAZY = TopicPartition("lazy", 0)
GROUPS = GroupSettings(offsets_topic_num_partitions=1)
ENDS = (True, False)
"""What the script asks for, one transaction after the other; the last is left open."""


TIMEOUT_MS = 200
# At every step the worst, and one of the others: each costs a start of the broker.
_OTHERS = (CrashMode.KEEP_ALL, CrashMode.RANDOM)


@dataclass
class Told:
    """What the script was answered, by the number of the transaction."""

    ended: dict[int, bool] = field(default_factory=dict)
    first_step: int = 0
    """The first one of the first end."""


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
    return fs


def _run_script(kit: BrokerKit, fs: FaultyFileSystem, told: Told) -> None:
    bench = TransactionBench(kit)
    producer = bench.start("t", timeout_ms=TIMEOUT_MS)
    for number in range(len(ENDS) + 1):
        value = str(number).encode()
        assert bench.add(producer, SYNCED, LAZY) is ErrorCode.NONE
        assert bench.produce(producer, SYNCED, value) is ErrorCode.NONE
        assert bench.produce(producer, LAZY, value) is ErrorCode.NONE
        assert bench.commit_offset(producer, SYNCED, number) is ErrorCode.NONE
        if number < len(ENDS):
            told.first_step = told.first_step or fs.steps + 1
            assert bench.end(producer, is_commit=ENDS[number]) is ErrorCode.NONE
            told.ended[number] = ENDS[number]


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


def test_transactions_are_whole_after_a_crash_at_any_step() -> None:
    clock = ManualClock()
    prepared = _prepared(clock)
    trial, trial_told = prepared.after_crash(CrashMode.KEEP_ALL), Told()
    with _kit(trial, clock) as kit:
        _run_script(kit, trial, trial_told)
        last_step = trial.steps
    assert last_step - trial_told.first_step > 20
    for step in range(trial_told.first_step, last_step + 1):
        fs, told = prepared.after_crash(CrashMode.KEEP_ALL, seed=step), Told()
        with _kit(fs, clock) as kit:
            fs.crash_at(step)
            with suppress(PowerLoss):
                _run_script(kit, fs, told)
            for mode in (CrashMode.LOSE_UNSYNCED, _OTHERS[step % 2]):
                kit.fs = fs.after_crash(mode, seed=step)
                kit.restart(is_crash=True)
                try:
                    _check(kit, told)
                except AssertionError as error:
                    trace = fs.describe_trace(3)
                    raise AssertionError(f"{error}, {mode} after\n{trace}") from error
