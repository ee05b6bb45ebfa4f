"""Faults at the request that was chosen."""

import pytest

from varve.foundation.errors import (
    InvalidRequest,
    ObjectExists,
    ObjectNotFound,
    PowerLoss,
    StoreThrottled,
    StoreUnavailable,
)
from varve.object_store import MemoryObjectStore
from varve.testing import FaultKind, FaultyObjectStore, ObjectFaultPlan


def _bench() -> tuple[FaultyObjectStore, MemoryObjectStore]:
    memory = MemoryObjectStore()
    return FaultyObjectStore(memory), memory


@pytest.mark.parametrize(
    ("fault", "error", "is_there"),
    [
        (FaultKind.ERROR_BEFORE, StoreUnavailable, False),
        (FaultKind.ERROR_AFTER, StoreUnavailable, True),
        (FaultKind.THROTTLED, StoreThrottled, False),
        (FaultKind.REPEATED, ObjectExists, True),
        (FaultKind.PARTIAL, StoreUnavailable, False),
        (FaultKind.CRASH_BEFORE, PowerLoss, False),
        (FaultKind.CRASH_AFTER, PowerLoss, True),
    ],
)
def test_a_fault_strikes_before_or_after_the_effect(
    fault: FaultKind, error: type[BaseException], is_there: bool
) -> None:
    store, memory = _bench()
    store.put("x", b"")
    store.fail_at(2, fault)
    with pytest.raises(error):
        store.create("a", b"1")
    assert [info.key for info in memory.list("a-none")] == []
    assert ("a" in [info.key for info in memory.list("")]) is is_there
    assert str(store.trace[-1]) == f"2: create a ({fault})"


def test_after_a_crash_nothing_answers() -> None:
    store, memory = _bench()
    store.crash_at(2, after=True)
    store.put("a", b"1")
    with pytest.raises(PowerLoss):
        store.put("b", b"2")
    with pytest.raises(PowerLoss, match="2: put b"):
        store.get("a")
    with pytest.raises(PowerLoss):
        list(store.list(""))
    assert store.after_crash() is memory
    assert memory.get("b") == b"2"


def test_a_slow_request_takes_its_time() -> None:
    waits: list[float] = []
    store = FaultyObjectStore(MemoryObjectStore(), wait=waits.append, slow_seconds=7)
    store.fail_at(1, FaultKind.SLOW)
    store.put("a", b"1")
    assert (waits, store.get("a")) == ([7], b"1")


def test_a_partial_upload_leaves_nothing() -> None:
    store, memory = _bench()
    store.fail_at(1, FaultKind.PARTIAL)
    with pytest.raises(StoreUnavailable, match="broke off"):
        store.put_parts("a", [b"12", b"34", b"56"], size=6)
    with pytest.raises(ObjectNotFound):
        memory.get("a")


def test_down_from_a_step_until_it_comes_up() -> None:
    store, _ = _bench()
    store.go_down(from_step=2)
    store.put("a", b"1")
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            store.get("a")
    store.come_up()
    assert store.get("a") == b"1"
    store.go_down()
    with pytest.raises(StoreUnavailable):
        store.head("a")


def test_a_step_that_has_passed_cannot_fail() -> None:
    store, _ = _bench()
    store.put("a", b"")
    with pytest.raises(InvalidRequest, match="step 1 has passed"):
        store.fail_at(1, FaultKind.SLOW)


def test_the_same_seed_gives_the_same_faults() -> None:
    def run(seed: int) -> list[str]:
        plan = ObjectFaultPlan(seed=seed, rates={FaultKind.ERROR_BEFORE: 0.3, FaultKind.SLOW: 0.2})
        store = FaultyObjectStore(MemoryObjectStore(), plan)
        for number in range(100):
            try:
                store.put(f"{number}", b"")
            except StoreUnavailable:
                continue
        return [str(step) for step in store.trace]

    assert run(1) == run(1) != run(2)


def test_faults_by_chance_let_one_in_a_few_through() -> None:
    plan = ObjectFaultPlan(rates={FaultKind.ERROR_BEFORE: 1.0}, in_a_row_max=2)
    assert [plan.find_fault(step) is None for step in range(6)] == [False, False, True] * 2
