"""Two stores as one: who decides, what is noted, and how the second catches up."""

from collections.abc import Callable

import pytest

from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    BucketNotFound,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from varve.object_store import (
    Difference,
    Fault,
    MemoryObjectStore,
    MirroredObjectStore,
    MirrorRepair,
    mirror,
    mirror_repair,
)
from varve.object_store.mirror import BREAKER_MS
from varve.object_store.mirror_repair import Progress, no_progress
from varve.testing import FaultKind, FaultyObjectStore


class Bench:
    def __init__(self) -> None:
        self.first = FaultyObjectStore(MemoryObjectStore("memory:first"))
        self.second = FaultyObjectStore(MemoryObjectStore("memory:second"))
        self.clock = ManualClock()
        self.store = MirroredObjectStore(self.first, self.second, clock=self.clock)

    def contents(self, store: FaultyObjectStore) -> dict[str, bytes]:
        below = store.after_crash()
        return {info.key: below.get(info.key) for info in below.list("")}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def repair(
    store: MirroredObjectStore,
    *,
    deep: bool = False,
    delete_extra: bool = False,
    progress: Progress = no_progress,
) -> MirrorRepair:
    """As `varve tier mirror --repair` does it."""
    found = store.compare(deep=deep, progress=progress)
    return store.repair_differences(found.differences, delete_extra=delete_extra, progress=progress)


WRITES: list[Callable[[MirroredObjectStore], object]] = [
    lambda store: store.put("a", b"12"),
    lambda store: store.create("a", b"12"),
    lambda store: store.put_parts("a", [b"1", b"2"], size=2),
    lambda store: store.put_parts("a", iter([b"1", b"2"]), size=2),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_write_stands_without_the_second_and_is_caught_up(
    write: Callable[[MirroredObjectStore], object], bench: Bench
) -> None:
    bench.second.go_down()
    write(bench.store)
    status = bench.store.status()
    assert (status.missing, status.is_complete) == (("a",), False)
    assert "memory:second" in status.last_error
    with pytest.raises(StoreUnavailable):
        repair(bench.store)
    bench.second.come_up()
    assert repair(bench.store).copied == ("a",)
    assert bench.contents(bench.second) == {"a": b"12"}
    assert bench.store.status().is_complete


@pytest.mark.parametrize("write", WRITES)
def test_a_write_fails_without_the_first(
    write: Callable[[MirroredObjectStore], object], bench: Bench
) -> None:
    bench.first.go_down()
    with pytest.raises(StoreUnavailable, match="memory:first"):
        write(bench.store)
    assert bench.contents(bench.second) == {}


def test_the_first_decides_who_creates(bench: Bench) -> None:
    bench.second.put("a", b"left over")
    bench.store.create("a", b"1")
    with pytest.raises(ObjectExists):
        bench.store.create("a", b"2")
    assert bench.contents(bench.second) == {"a": b"1"}


def test_reads_fail_over(bench: Bench) -> None:
    for key in "abc":
        bench.store.put(f"d/{key}", key.encode())
    bench.first.go_down()
    assert bench.store.get("d/a") == b"a"
    assert bytes(bench.store.get_range("d/b", 0, 1)) == b"b"
    assert bench.store.head("d/c").size == 1
    assert bench.store.list_directories("") == ["d"]
    assert [info.key for info in bench.store.list("d")] == ["d/a", "d/b", "d/c"]
    assert bench.store.status().failover_count == 5


def test_a_list_goes_on_in_the_second_where_it_broke_off(bench: Bench) -> None:
    for key in "abc":
        bench.store.put(key, b"")
    bench.first.fail_at(bench.first.steps + 1, FaultKind.ERROR_AFTER)
    assert [info.key for info in bench.store.list("")] == ["a", "b", "c"]
    bench.first.go_down()
    assert [info.key for info in bench.store.list("", start_after="a")] == ["b", "c"]


def test_what_the_second_lacks_is_unavailable_not_missing(bench: Bench) -> None:
    bench.second.go_down()
    bench.store.put("noted", b"1")
    bench.second.come_up()
    bench.first.after_crash().put("unnoted", b"2")
    bench.first.go_down()
    for key in ("noted", "unnoted"):
        with pytest.raises(StoreUnavailable, match="memory:first"):
            bench.store.get(key)
    bench.first.come_up()
    with pytest.raises(ObjectNotFound):
        bench.store.get("neither")


def test_a_replaced_object_is_not_read_from_a_second_that_is_behind(bench: Bench) -> None:
    bench.store.put("a", b"old")
    bench.second.go_down()
    bench.store.put("a", b"new")
    bench.second.come_up()
    bench.first.go_down()
    with pytest.raises(StoreUnavailable):
        bench.store.get("a")
    bench.first.come_up()
    assert repair(bench.store).copied == ("a",)
    assert bench.contents(bench.second) == {"a": b"new"}


def test_extra_objects_are_deleted_only_if_told_or_known(bench: Bench) -> None:
    bench.store.put("gone", b"1")
    bench.second.put("extra", b"2")
    bench.second.go_down()
    bench.store.delete(["gone"])
    assert bench.store.status().undeleted == ("gone",)
    bench.second.come_up()
    fixed = repair(bench.store)
    assert (fixed.deleted, fixed.extra) == (("gone",), ("extra",))
    assert repair(bench.store, delete_extra=True).deleted == ("extra",)
    assert bench.contents(bench.second) == {}


def test_only_a_deep_repair_compares_bytes(bench: Bench) -> None:
    bench.first.put("a", b"12")
    bench.second.put("a", b"21")
    assert repair(bench.store).copied == ()
    assert repair(bench.store, deep=True).copied == ("a",)
    assert bench.contents(bench.second) == {"a": b"12"}


def test_large_objects_are_copied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_repair, "COPY_BYTES", 10)
    bench = Bench()
    data = bytes(range(95))
    bench.first.put("a", data)
    repair(bench.store)
    assert bench.contents(bench.second) == {"a": data}
    operations = [step.operation for step in bench.second.trace]
    assert "put parts" in operations


# A store that is down is spared


def test_a_first_that_is_down_is_asked_by_one_read_in_a_while(bench: Bench) -> None:
    for key in "abc":
        bench.store.put(key, key.encode())
    bench.first.go_down()
    before = bench.first.steps
    for _ in range(10):
        assert bench.store.get("a") == b"a"
        assert [info.key for info in bench.store.list("")] == ["a", "b", "c"]
    assert bench.first.steps == before + 1
    assert "memory:first" in bench.store.status().first_error
    bench.clock.advance(BREAKER_MS)
    bench.store.get("b")
    bench.store.get("c")
    assert bench.first.steps == before + 2
    bench.first.come_up()
    bench.clock.advance(BREAKER_MS)
    bench.store.get("b")
    assert bench.store.status().first_error == ""
    before = bench.second.steps
    bench.store.get("c")
    assert bench.second.steps == before


def test_what_the_second_lacks_is_asked_of_a_first_that_may_be_back(bench: Bench) -> None:
    bench.store.put("a", b"1")
    bench.first.after_crash().put("only/first", b"2")
    bench.first.go_down()
    bench.store.get("a")
    bench.first.come_up()
    assert bench.store.get("only/first") == b"2"


def test_any_answer_to_a_write_ends_the_rest_of_the_first(bench: Bench) -> None:
    bench.store.put("a", b"1")
    bench.first.go_down()
    bench.store.get("a")
    bench.first.come_up()
    with pytest.raises(ObjectExists):
        bench.store.create("a", b"2")
    before = bench.second.steps
    bench.store.get("a")
    assert bench.second.steps == before


def test_a_list_is_not_taken_from_a_second_that_is_behind(bench: Bench) -> None:
    bench.store.put("a", b"1")
    bench.second.go_down()
    bench.store.put("b", b"2")
    bench.second.come_up()
    bench.first.go_down()
    bench.store.get("a")
    for ask in (bench.store.list, bench.store.list_directories):
        with pytest.raises(StoreUnavailable, match="memory:first"):
            list(ask(""))
    bench.first.come_up()
    assert [info.key for info in bench.store.list("")] == ["a", "b"]


@pytest.mark.parametrize("error", [StoreDenied, BucketNotFound])
def test_a_first_that_denies_or_lost_its_bucket_is_read_from_the_second(
    error: type[StoreError], bench: Bench
) -> None:
    bench.store.put("a", b"1")

    class Refusing(MemoryObjectStore):
        def get(self, key: str) -> bytes:
            raise error("no")

    assert MirroredObjectStore(Refusing(), bench.second).get("a") == b"1"


def test_a_second_that_is_down_costs_one_write_in_a_while(bench: Bench) -> None:
    bench.second.go_down()
    before = bench.second.steps
    for number in range(10):
        bench.store.put(f"{number}", b"1")
    assert bench.second.steps == before + 1
    bench.second.come_up()
    bench.clock.advance(BREAKER_MS)
    bench.store.put("later", b"1")
    assert len(bench.store.status().missing) == 10
    assert list(bench.contents(bench.second)) == ["later"]


# Catching up


def test_what_was_noted_is_caught_up_once_the_second_is_back(bench: Bench) -> None:
    bench.store.put("gone", b"1")
    bench.second.go_down()
    bench.store.put("a", b"1")
    bench.store.put("b", b"2")
    bench.store.delete(["gone"])
    assert bench.store.catch_up(within_ms=1000) == 0
    bench.second.come_up()
    bench.clock.advance(BREAKER_MS)
    assert bench.store.catch_up(within_ms=1000) == 3
    assert bench.contents(bench.second) == {"a": b"1", "b": b"2"}
    assert bench.store.status().is_complete


def test_catching_up_ends_in_time_and_when_a_store_fails(bench: Bench) -> None:
    bench.second.go_down()
    for key in "abc":
        bench.store.put(key, b"1")
    bench.second.come_up()
    bench.clock.advance(BREAKER_MS)
    assert bench.store.catch_up(within_ms=-1) == 0
    bench.first.fail_at(bench.first.steps + 3, FaultKind.ERROR_BEFORE)
    assert bench.store.catch_up(within_ms=1000) == 1
    assert bench.store.status().behind_count == 2
    bench.clock.advance(BREAKER_MS)
    assert bench.store.catch_up(within_ms=1000) == 2


def test_a_note_made_while_its_object_is_caught_up_stays(bench: Bench) -> None:
    bench.second.go_down()
    bench.store.put("a", b"old")
    bench.second.come_up()
    bench.clock.advance(BREAKER_MS)

    def show(title: str, done_bytes: int, total_bytes: int) -> None:
        if title == "copy":
            bench.second.go_down()
            bench.store.put("a", b"new")
            bench.second.come_up()

    repair(bench.store, progress=show)
    assert bench.store.status().missing == ("a",)


# Comparing


def test_a_comparison_tells_and_changes_nothing(bench: Bench) -> None:
    bench.store.put("same", b"1")
    bench.first.put("only/first", b"22")
    bench.first.put("size", b"long")
    bench.second.put("size", b"x")
    bench.second.put("only/second", b"333")
    found = bench.store.compare()
    assert (found.object_count, found.total_bytes) == (3, 7)
    assert found.differences == (
        Difference(Fault.MISSING, "only/first", 2),
        Difference(Fault.EXTRA, "only/second", 3),
        Difference(Fault.DIFFERENT, "size", 4),
    )
    assert len(bench.contents(bench.second)) == 3


def test_what_changed_since_the_lists_is_left_alone(bench: Bench) -> None:
    bench.first.put("deleted", b"1")
    bench.second.put("created", b"2")
    found = bench.store.compare()
    bench.first.delete(["deleted"])
    bench.first.put("created", b"2")
    done = bench.store.repair_differences(found.differences, delete_extra=True)
    assert done == MirrorRepair((), (), ())
    assert bench.contents(bench.second) == {"created": b"2"}


def test_a_repair_that_is_interrupted_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_repair, "COPY_BYTES", 10)
    bench = Bench()
    for key in "abc":
        bench.first.put(key, bytes(95))
    shown: list[tuple[str, int, int]] = []

    def show(title: str, done_bytes: int, total_bytes: int) -> None:
        shown.append((title, done_bytes, total_bytes))
        if done_bytes >= 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(bench.store, progress=show)
    assert list(bench.contents(bench.second)) == ["a"]
    assert shown[-1] == ("copy", 155, 285)
    assert repair(bench.store).copied == ("b", "c")


def test_an_undeleted_object_that_is_gone_all_the_same_is_no_note_any_more(bench: Bench) -> None:
    bench.store.put("a", b"1")
    bench.second.fail_at(bench.second.steps + 1, FaultKind.ERROR_AFTER)
    bench.store.delete(["a"])
    assert bench.store.status().undeleted == ("a",)
    bench.clock.advance(BREAKER_MS)
    assert bench.store.catch_up(within_ms=1000) == 1
    assert bench.store.status().is_complete


def test_a_list_that_breaks_off_in_the_second_goes_on_in_a_first_that_is_back(bench: Bench) -> None:
    for key in "abc":
        bench.store.put(key, b"")
    bench.first.go_down()
    bench.store.get("a")
    bench.first.come_up()
    bench.second.fail_at(bench.second.steps + 1, FaultKind.ERROR_AFTER)
    assert [info.key for info in bench.store.list("")] == ["a", "b", "c"]
    assert bench.store.status().first_error == ""
    bench.first.go_down()
    bench.second.go_down()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            list(bench.store.list(""))


# What an earlier process left


class Mark:
    def __init__(self, is_marked: bool = False) -> None:
        self.is_marked = is_marked

    def is_set(self) -> bool:
        return self.is_marked

    def set(self) -> None:
        self.is_marked = True

    def clear(self) -> None:
        self.is_marked = False


def test_lists_are_not_taken_from_a_second_that_was_never_seen_to_be_level(bench: Bench) -> None:
    bench.first.put("a", b"1")
    mark = Mark()
    mirror = MirroredObjectStore(bench.first, bench.second, clock=bench.clock, in_sync=mark)
    assert "was not compared" in mirror.trouble()
    bench.first.go_down()
    with pytest.raises(StoreUnavailable):
        list(mirror.list(""))
    assert mirror.catch_up(within_ms=1000) == 0
    bench.first.come_up()
    bench.clock.advance(BREAKER_MS)
    assert mirror.catch_up(within_ms=1000) == 1
    assert mark.is_marked
    assert mirror.trouble() == ""
    bench.first.go_down()
    assert [info.key for info in mirror.list("")] == ["a"]
    later = MirroredObjectStore(bench.first, bench.second, in_sync=mark)
    assert [info.key for info in later.list("")] == ["a"]


def test_the_mark_is_gone_before_a_write_returns_that_leaves_the_second_behind(
    bench: Bench,
) -> None:
    mark = Mark(is_marked=True)
    mirror = MirroredObjectStore(bench.first, bench.second, clock=bench.clock, in_sync=mark)
    mirror.put("a", b"1")
    assert mark.is_marked
    bench.second.go_down()
    mirror.put("b", b"2")
    assert not mark.is_marked
    bench.second.come_up()
    bench.clock.advance(BREAKER_MS)
    assert mirror.catch_up(within_ms=1000) == 1
    assert mark.is_marked


def test_more_than_can_be_noted_is_caught_up_by_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "BACKLOG_KEYS_MAX", 2)
    bench = Bench()
    bench.second.go_down()
    for key in "abcde":
        bench.store.put(key, b"1")
    status = bench.store.status()
    assert (len(status.missing), status.unlisted_count) == (2, 3)
    bench.second.come_up()
    bench.clock.advance(BREAKER_MS)
    assert [bench.store.catch_up(within_ms=1000) for _ in range(4)] == [2, 2, 1, 0]
    assert bench.store.status().is_complete
    assert bench.contents(bench.first) == bench.contents(bench.second)
