"""A log in memory with a clock that stands still, and the same on a disk that can be broken."""

import pytest

from tests.support.log_bench import NOW_MS, Bench, FaultyBench
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.testing.faulty_disk import FaultyFileSystem


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def bench(clock: ManualClock) -> Bench:
    return Bench(MemoryFileSystem(clock), clock)


@pytest.fixture
def faulty(clock: ManualClock) -> FaultyBench:
    return FaultyBench(FaultyFileSystem(clock), clock)
