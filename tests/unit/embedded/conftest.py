import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import varve
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fs(clock: ManualClock) -> MemoryFileSystem:
    return MemoryFileSystem(clock)


OpenStore = Callable[..., varve.Store]


@pytest.fixture
def open_store(fs: MemoryFileSystem, clock: ManualClock) -> Iterator[OpenStore]:
    """Opens stores in one memory, without a thread; closes what the test left open."""
    opened: list[varve.Store] = []

    def open_store(paths: Any = "/data", **settings: Any) -> varve.Store:
        store = varve.open(
            paths,
            fs=fs,
            clock=clock,
            random=random.Random(len(opened)),
            maintain=False,
            settings=settings.pop("settings", None),
        )
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> varve.Store:
    return open_store()
