"""How many reads from object storage run and wait at a time."""

import threading
from collections.abc import Iterator

import pytest

from varve.foundation.errors import Closed, StoreUnavailable, Unavailable
from varve.tiering.read.read_pool import ReadPool


class Gate:
    """Work that tells when it begins, and ends when it is let through."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.opened = threading.Event()

    def pass_through(self) -> str:
        self.begun.release()
        assert self.opened.wait(10)
        return "done"

    def wait_begun(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=10)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def test_work_is_done_in_the_callers_thread_while_the_bound_allows() -> None:
    pool = ReadPool(threads=1, max_pending=1)
    assert pool.run(threading.get_ident) == threading.get_ident()
    assert pool.submit(threading.get_ident).result(10) != threading.get_ident()
    pool.close()


def test_one_more_than_may_wait_is_refused_with_the_settings_named(gate: Gate) -> None:
    pool = ReadPool(threads=2, max_pending=2)
    futures = [pool.submit(gate.pass_through) for _ in range(2)]
    gate.wait_begun(2)
    futures += [pool.submit(gate.pass_through) for _ in range(2)]
    for refuse in (pool.submit, pool.run):
        with pytest.raises(Unavailable, match=r"remote\.log\.reader\.max\.pending\.tasks"):
            refuse(gate.pass_through)
    gate.opened.set()
    assert [future.result(10) for future in futures] == ["done"] * 4
    pool.close()


def test_a_caller_counts_as_one_of_the_threads(gate: Gate) -> None:
    pool = ReadPool(threads=1, max_pending=1)
    caller = threading.Thread(target=pool.run, args=(gate.pass_through,))
    caller.start()
    gate.wait_begun()
    waiting = pool.submit(lambda: "later")
    with pytest.raises(Unavailable):
        pool.submit(lambda: "refused")
    gate.opened.set()
    assert waiting.result(10) == "later"
    caller.join(10)
    pool.close()


def test_read_ahead_takes_half_of_the_waiting_places_and_goes_last(gate: Gate) -> None:
    pool = ReadPool(threads=1, max_pending=4)
    first = pool.submit(gate.pass_through)
    gate.wait_begun()
    order: list[str] = []
    ahead = [pool.try_submit(lambda: order.append("ahead")) for _ in range(3)]
    assert [task is not None for task in ahead] == [True, True, False]
    wanted = pool.submit(lambda: order.append("wanted"))
    gate.opened.set()
    for task in (first, wanted, *ahead[:2]):
        assert task is not None
        task.result(10)
    assert order == ["wanted", "ahead", "ahead"]
    pool.close()


def test_errors_reach_who_waits_and_the_threads_go_on() -> None:
    def fail() -> None:
        raise StoreUnavailable("down")

    pool = ReadPool(threads=1, max_pending=1)
    with pytest.raises(StoreUnavailable):
        pool.run(fail)
    with pytest.raises(StoreUnavailable):
        pool.submit(fail).result(10)
    assert pool.submit(lambda: "fine").result(10) == "fine"
    pool.close()


def test_a_closed_pool_refuses_and_ends_its_threads(gate: Gate) -> None:
    pool = ReadPool(threads=1, max_pending=1)
    running = pool.submit(gate.pass_through)
    gate.wait_begun()
    waiting = pool.submit(lambda: "never")
    closer = threading.Thread(target=pool.close)
    closer.start()
    with pytest.raises(Closed):
        waiting.result(10)
    gate.opened.set()
    closer.join(10)
    assert running.result(10) == "done"
    assert not [one for one in threading.enumerate() if one.name.startswith("cold-read")]
    assert pool.try_submit(lambda: "never") is None
    for refuse in (pool.submit, pool.run):
        with pytest.raises(Closed):
            refuse(lambda: "never")
