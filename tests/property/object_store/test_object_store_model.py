"""Any sequence of operations on a faulty store that is retried equals a dict."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from varve.foundation.clock import ManualClock
from varve.foundation.errors import ObjectExists, ObjectNotFound
from varve.object_store import (
    MemoryObjectStore,
    MirroredObjectStore,
    ObjectStore,
    RetryingObjectStore,
    RetryPolicy,
)
from varve.testing import FaultKind, FaultyObjectStore, ObjectFaultPlan

KEYS = ["a", "b-c", "b/c", "b/d", "e/f/g"]
FAULTS = [
    FaultKind.ERROR_BEFORE,
    FaultKind.ERROR_AFTER,
    FaultKind.REPEATED,
    FaultKind.THROTTLED,
    FaultKind.SLOW,
    FaultKind.PARTIAL,
]

keys = st.sampled_from(KEYS)
contents = st.binary(max_size=40)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, contents),
        st.tuples(st.just("put parts"), keys, st.lists(contents, max_size=4)),
        st.tuples(st.just("create"), keys, contents),
        st.tuples(st.just("delete"), st.lists(keys, max_size=4), st.none()),
        st.tuples(st.just("get"), keys, st.none()),
        st.tuples(st.just("head"), keys, st.none()),
        st.tuples(
            st.just("ranges"),
            keys,
            st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=4),
        ),
        st.tuples(st.just("list"), st.sampled_from(["", "b", "e/f"]), st.sampled_from(["", *KEYS])),
        st.tuples(st.just("directories"), st.sampled_from(["", "b", "e"]), st.none()),
    ),
    max_size=30,
)


def _retried_faulty(seed: int, name: str = "memory:") -> ObjectStore:
    clock = ManualClock()
    plan = ObjectFaultPlan(seed=seed, rates=dict.fromkeys(FAULTS, 0.1), in_a_row_max=3)

    def wait(seconds: float) -> None:
        clock.advance(round(seconds * 1000))

    # A create takes up to three requests, and each of them may meet three faults in a row.
    return RetryingObjectStore(
        FaultyObjectStore(MemoryObjectStore(name), plan, wait=wait),
        policy=RetryPolicy(attempt_count_max=40, deadline_ms=10**9),
        clock=clock,
        wait=wait,
        source=random.Random(seed),
    )


class Model:
    """What a dict does where an object store is asked.

    A create of bytes that are there already counts as done, as retrying stores take it.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def apply(self, operation: str, key: Any, value: Any) -> object:
        match operation:
            case "put":
                self.objects[key] = value
            case "put parts":
                self.objects[key] = b"".join(value)
            case "create":
                return self.objects.setdefault(key, value) == value
            case "delete":
                for gone in key:
                    self.objects.pop(gone, None)
            case "get":
                return self.objects.get(key)
            case "head":
                return len(self.objects[key]) if key in self.objects else None
            case "ranges":
                data = self.objects.get(key)
                wanted = [(start, start + size) for start, size in value]
                if data is None and any(start < end for start, end in wanted):
                    return None
                return [(data or b"")[start:end] for start, end in wanted]
            case "list":
                return [name for name in self._below(key) if name > value]
            case "directories":
                depth = len(key) + 1 if key else 0
                below = (name[depth:].split("/") for name in self._below(key))
                names = {parts[0] for parts in below if len(parts) > 1}
                return sorted(f"{key}/{name}" if key else name for name in names)
        return None

    def _below(self, prefix: str) -> list[str]:
        return sorted(name for name in self.objects if not prefix or name.startswith(f"{prefix}/"))


def _ask(store: ObjectStore, operation: str, key: Any, value: Any) -> object:
    try:
        match operation:
            case "put":
                assert store.put(key, value).size == len(value)
            case "put parts":
                store.put_parts(key, value, size=sum(map(len, value)))
            case "create":
                store.create(key, value)
                return True
            case "delete":
                store.delete(key)
            case "get":
                return store.get(key)
            case "head":
                return store.head(key).size
            case "ranges":
                ranges = [(start, start + size) for start, size in value]
                return [bytes(store.get_range(key, start, end)) for start, end in ranges]
            case "list":
                return [info.key for info in store.list(key, start_after=value)]
            case "directories":
                return store.list_directories(key)
    except ObjectExists:
        return False
    except ObjectNotFound:
        return None
    return None


def _compare(store: ObjectStore, steps: list[tuple[str, Any, Any]]) -> None:
    model = Model()
    for step in steps:
        assert _ask(store, *step) == model.apply(*step), step
        for key in KEYS[:2]:
            assert _ask(store, "ranges", key, [(0, 50)]) == model.apply("ranges", key, [(0, 50)])
    assert [info.key for info in store.list("")] == sorted(model.objects)
    for key, data in model.objects.items():
        assert store.get(key) == data


@given(operations, st.integers(0, 2**32))
def test_a_retried_faulty_store_equals_a_dict(steps: list[tuple[str, Any, Any]], seed: int) -> None:
    _compare(_retried_faulty(seed), steps)


@given(operations, st.integers(0, 2**32))
def test_a_mirror_equals_a_dict_and_repair_makes_its_second_the_same(
    steps: list[tuple[str, Any, Any]], seed: int
) -> None:
    memory = MemoryObjectStore("memory:second")
    rates = dict.fromkeys((FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.PARTIAL), 0.1)
    second = FaultyObjectStore(memory, ObjectFaultPlan(seed=seed, rates=rates))
    first = _retried_faulty(seed, "memory:first")
    _compare(MirroredObjectStore(first, second), steps)
    mirror = MirroredObjectStore(first, memory)
    mirror.repair_differences(mirror.compare(deep=True).differences, delete_extra=True)
    expected = {info.key: first.get(info.key) for info in first.list("")}
    assert {info.key: memory.get(info.key) for info in memory.list("")} == expected
