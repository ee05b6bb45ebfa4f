"""Power lost at every disk operation and every request of what a store does in its tiers: G1, G3.

Each time the next start finds what was acknowledged, nothing that was deleted, and two rounds of
upkeep bring everything to where it would have been.
"""

from collections.abc import Callable

import pytest

from tests.support.rounds import IS_LONG
from tests.support.tiered_store_bench import Fault, TieredStore
from varve.testing import FaultKind
from varve.testing.faulty_disk import CrashMode

Work = Callable[[TieredStore], None]

BREAKS_MAX = 10_000 if IS_LONG else 9

SEGMENT = [[1, 2], [3, 4], [5, -1], [2, 6], [1, -3]]


def prepare(policy: str = "delete") -> TieredStore:
    """Two copied segments, the first of them cold only, and two that are not copied yet.

    Transactions are open, aborted and committed across their borders.
    """
    bench = TieredStore({"cleanup.policy": policy, "retention.ms": 60_000})
    with bench.step(None, CrashMode.KEEP_ALL):
        bench.append([1, 2], producer_id=1, transactional=True)
        bench.append_all(SEGMENT)
        bench.end_transaction(1, committed=False)
        bench.roll()
        bench.run_once()
    bench.kit.advance(seconds=50)
    with bench.step(None, CrashMode.KEEP_ALL):
        bench.append([3, 7], producer_id=2, transactional=True)
        bench.append_all(SEGMENT)
        bench.roll()
        bench.end_transaction(2, committed=True)
        bench.append_all(SEGMENT)
        bench.run_once()
        bench.append_all(SEGMENT, producer_id=3)
        bench.append([4, 5], producer_id=2, transactional=True)
        bench.flush()
    bench.check([0.5])
    return bench


def run_once(bench: TieredStore) -> None:
    """Copies, local retention and expiry of the first segment at once."""
    bench.kit.advance(seconds=15)
    bench.run_once()


def clean(bench: TieredStore) -> None:
    bench.kit.advance(seconds=2)
    bench.clean()


def leave(bench: TieredStore) -> None:
    bench.alter({"remote.storage.enable": False, "remote.log.delete.on.disable": True})


def delete(bench: TieredStore) -> None:
    """Into the cold part, whose first segment is then taken away."""
    bench.delete_records(0.4)
    bench.model.history.log_start_offset = bench.log.log_start_offset
    bench.expire()


WORKS = [
    pytest.param(run_once, "delete", id="upkeep"),
    pytest.param(run_once, "compact,delete", id="upkeep of a compacted topic"),
    pytest.param(clean, "compact", id="clean"),
    pytest.param(leave, "delete", id="leave"),
    pytest.param(delete, "delete", id="delete"),
]


def count_steps(work: Work, policy: str) -> tuple[int, int]:
    """How many disk operations and requests it takes undisturbed."""
    bench = prepare(policy)
    disk, objects = bench.disk.steps, bench.objects.steps
    with bench.step(None, CrashMode.KEEP_ALL):
        work(bench)
    bench.check([0.5])
    return bench.disk.steps - disk, bench.objects.steps - objects


def spread(count: int) -> range:
    """Of so many steps those to break off at: all of them in a long run."""
    return range(1, count + 1, max(1, count // BREAKS_MAX))


def break_off(work: Work, policy: str, fault: Fault, mode: CrashMode) -> None:
    bench = prepare(policy)
    with bench.step(fault, mode):
        work(bench)
    bench.check([0.5])
    bench.settle()
    bench.kit.close()


@pytest.mark.parametrize(("work", "policy"), WORKS)
def test_a_crash_at_any_disk_operation_is_made_good(work: Work, policy: str) -> None:
    count, _ = count_steps(work, policy)
    assert count > 3
    for step in spread(count):
        break_off(work, policy, Fault("disk", step), list(CrashMode)[step % 3])


@pytest.mark.parametrize(("work", "policy"), WORKS)
def test_a_crash_at_any_request_is_made_good(work: Work, policy: str) -> None:
    _, count = count_steps(work, policy)
    assert count > 3
    for step in spread(count):
        kind = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)[step % 2]
        break_off(work, policy, Fault("objects", step, kind), list(CrashMode)[step % 3])


@pytest.mark.parametrize(("work", "policy"), WORKS)
def test_a_failing_request_is_made_good(work: Work, policy: str) -> None:
    kinds = [
        FaultKind.ERROR_BEFORE,
        FaultKind.ERROR_AFTER,
        FaultKind.REPEATED,
        FaultKind.THROTTLED,
        FaultKind.PARTIAL,
    ]
    _, count = count_steps(work, policy)
    for step in spread(count):
        break_off(work, policy, Fault("objects", step, kinds[step % 5]), CrashMode.KEEP_ALL)


def test_producers_of_the_remote_part_are_known_after_a_crash() -> None:
    bench = TieredStore({"local.retention.ms": 0})
    with bench.step(None, CrashMode.KEEP_ALL):
        bench.append([1, 2], producer_id=7)
        bench.roll()
        bench.kit.advance(seconds=1)
        bench.run_once()
        bench.append([3])
        bench.flush()
    assert bench.log.local_start_offset == 2
    with bench.step(None, CrashMode.KEEP_ALL):
        bench.crash(CrashMode.LOSE_UNSYNCED)
        bench.repeat(7)
    bench.check([0.5])


def test_a_log_start_that_was_told_survives_a_second_crash() -> None:
    for step in range(1, 8):
        bench = TieredStore()
        with bench.step(None, CrashMode.KEEP_ALL):
            bench.append_all(SEGMENT)
            bench.flush()
        with bench.step(Fault("disk", step), CrashMode.KEEP_ALL):
            bench.delete_records(0.5)
        with bench.step(None, CrashMode.LOSE_UNSYNCED):
            bench.crash(CrashMode.LOSE_UNSYNCED)
        bench.check([0.5])


@pytest.mark.parametrize("mode", [CrashMode.LOSE_UNSYNCED, CrashMode.RANDOM])
def test_records_are_found_by_time_when_a_rolled_segment_was_hardly_on_disk(
    mode: CrashMode,
) -> None:
    """The recovery point was told at its end before it rolled: no recovery looks at it again."""
    for seed in range(4):
        bench = TieredStore({"flush": "ack"}, seed=seed)
        with bench.step(None, CrashMode.KEEP_ALL):
            bench.append([1, 2], age_ms=500)
            bench.append([3, 4])
            bench.run_once()
            bench.roll()
            bench.crash(CrashMode.KEEP_ALL)
            bench.crash(mode)
        bench.check([0.5])


def test_what_retention_let_go_stays_gone_where_the_log_start_was_not_known() -> None:
    """Nothing tells the log start, the object store is down, and the local part expires."""
    bench = TieredStore({"remote.log.copy.disable": True, "local.retention.ms": -2})
    with bench.step(None, CrashMode.KEEP_ALL):
        bench.append_all(SEGMENT)
    bench.set_down(True)
    bench.reopen(loses_start=True)
    assert not bench.log.is_start_known
    bench.kit.advance(seconds=4_000)
    with bench.step(None, CrashMode.KEEP_ALL):
        bench.run_once()
    assert bench.log.log_start_offset == bench.log.end_offset
    with bench.step(None, CrashMode.LOSE_UNSYNCED):
        bench.crash(CrashMode.LOSE_UNSYNCED)
    bench.check([0.5])
