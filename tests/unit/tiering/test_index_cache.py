"""Indexes of cold segments come from memory, from local files or from object storage, checked."""

import errno
import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.support.cold_builder import HOME
from tests.support.index_bench import (
    ABORTED,
    DIRECTORY,
    KINDS,
    IndexBench,
    checksum,
    encode,
    file_names,
    file_path,
    overwrite,
)
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.commit_log.offset_index import OffsetIndex
from varve.commit_log.time_index import TimeIndex
from varve.disk import MemoryFileSystem, RealFileSystem
from varve.foundation.errors import Closed, Corrupt, ObjectNotFound, StoreUnavailable
from varve.object_store import FaultKind, MemoryObjectStore, ObjectStore
from varve.tiering import index_cache
from varve.tiering.cold_segment import ColdSegment, ObjectPart
from varve.tiering.index_cache import IndexCache


@pytest.fixture
def tier() -> IndexBench:
    return IndexBench()


# What is handed out


def test_indexes_are_those_that_were_copied(tier: IndexBench) -> None:
    cache = tier.open()
    for segment in tier.segments:
        tier.check(segment, cache.get(HOME, segment))


def test_aborted_transactions_are_found(tier: IndexBench) -> None:
    segment = tier.segments[ABORTED]
    aborted, is_complete = (
        tier.open()
        .get(HOME, segment)
        .txn_index.collect(segment.base_offset, segment.end_offset + 1)
    )
    assert [entry.producer_id for entry in aborted] == [7, 8]
    assert not is_complete


def test_a_segment_without_transaction_index_has_an_empty_one(tier: IndexBench) -> None:
    segment = tier.segments[0]
    assert segment.find_part("txnindex") is None
    assert tier.open().get(HOME, segment).txn_index.entries() == ()
    assert tier.disk.read(file_path(segment, "txnindex")) == b""


def test_a_segment_is_fetched_once(tier: IndexBench) -> None:
    cache = tier.open()
    first = cache.get(HOME, tier.segments[ABORTED])
    steps = tier.objects.steps
    assert cache.get(HOME, tier.segments[ABORTED]) is first
    assert tier.objects.steps == steps <= len(KINDS)
    assert (cache.usage().hits, cache.usage().misses) == (1, 1)


def test_an_empty_index_is_not_asked_for(tier: IndexBench) -> None:
    segment = replace(
        tier.segments[0], parts=(ObjectPart("index", 0, 0), ObjectPart("timeindex", 0, 0))
    )
    indexes = tier.open().get(HOME, segment)
    assert encode(indexes) == (b"", b"", b"")
    assert indexes.offset_index.lookup(segment.end_offset) == (segment.base_offset, 0)
    assert tier.objects.steps == 0


# Files


def test_files_have_kafkas_names_and_the_directory_is_made_when_first_used(
    tier: IndexBench,
) -> None:
    cache = tier.open()
    assert not tier.disk.exists(DIRECTORY)
    cache.get(HOME, tier.segments[ABORTED])
    assert set(tier.disk.names(DIRECTORY)) == file_names(tier.segments[ABORTED])
    assert cache.usage().held_bytes == tier.size(tier.segments[ABORTED])


def test_what_memory_has_no_room_for_is_read_from_its_files(tier: IndexBench) -> None:
    cache = tier.open(memory_bytes=0)
    for segment in tier.segments:
        cache.get(HOME, segment)
    tier.objects.go_down()
    for segment in tier.segments:
        tier.check(segment, cache.get(HOME, segment))
    assert cache.usage().hits == len(tier.segments)


def test_memory_holds_the_most_recent(tier: IndexBench) -> None:
    cache = tier.open()
    sizes = [cache.get(HOME, segment).memory_bytes for segment in tier.segments]
    cache = tier.open(memory_bytes=sum(sizes) - 1)
    first, second, *others = [cache.get(HOME, segment) for segment in tier.segments]
    assert cache.get(HOME, tier.segments[1]) is second
    assert cache.get(HOME, tier.segments[2]) is others[0]
    assert cache.get(HOME, tier.segments[0]) is not first


@pytest.mark.parametrize("real", [False, True])
def test_a_new_process_goes_on_with_the_files(
    tier: IndexBench, real: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = RealFileSystem() if real else MemoryFileSystem(tier.clock)
    directory = f"{tmp_path_factory.mktemp('cache')}/{REMOTE_INDEX_CACHE_DIRECTORY}"
    disk.make_directory(directory)

    def open_cache() -> IndexCache:
        return IndexCache(disk, directory, tier.objects, limit_bytes=1 << 20)

    cache = open_cache()
    for segment in tier.segments:
        cache.get(HOME, segment)
    held = cache.usage().held_bytes
    cache.close()
    tier.objects.go_down()
    cache = open_cache()
    cache.load()
    assert cache.usage().held_bytes == held
    for segment in tier.segments:
        tier.check(segment, cache.get(HOME, segment))
    assert cache.usage().misses == 0


def test_files_of_a_former_process_are_not_used_before_they_are_loaded(tier: IndexBench) -> None:
    tier.open().get(HOME, tier.segments[0])
    cache = tier.open()
    cache.get(HOME, tier.segments[0])
    assert cache.usage().misses == 1


def test_loading_deletes_what_is_not_whole_and_leaves_what_is_foreign(tier: IndexBench) -> None:
    cache = tier.open()
    for segment in tier.segments:
        cache.get(HOME, segment)
    tier.disk.remove(file_path(tier.segments[0], "timeindex"))
    overwrite(tier.disk, file_path(tier.segments[1], "index"), b"torn")
    path = file_path(tier.segments[2], "index")
    for left in (path + ".tmp", path + ".deleted", f"{DIRECTORY}/7_other.index"):
        overwrite(tier.disk, left, b"12345678")
    foreign = {"notes.txt", "7_other.log", "x_y.index", "07_other.index"}
    for name in foreign:
        overwrite(tier.disk, f"{DIRECTORY}/{name}", b"mine")
    cache = tier.open()
    cache.load()
    whole = file_names(tier.segments[2]) | file_names(tier.segments[3])
    assert set(tier.disk.names(DIRECTORY)) == whole | foreign
    assert cache.usage().held_bytes == sum(map(tier.size, tier.segments[2:4]))
    for segment in tier.segments:
        tier.check(segment, cache.get(HOME, segment))
    assert (cache.usage().hits, cache.usage().misses) == (2, 2)


def test_of_two_triples_of_one_segment_the_later_one_stays(tier: IndexBench) -> None:
    segment = tier.segments[0]
    cache = tier.open()
    cache.get(HOME, segment)
    tier.clock.advance(1)
    for kind in KINDS:
        overwrite(tier.disk, f"{DIRECTORY}/9_{segment.id}.{kind}", b"")
    cache = tier.open()
    cache.load()
    assert cache.usage().held_bytes == 0
    assert set(tier.disk.names(DIRECTORY)) == {f"9_{segment.id}.{kind}" for kind in KINDS}
    tier.check(segment, cache.get(HOME, segment))
    assert cache.usage().held_bytes == tier.size(segment)


# Limits


def test_the_least_recently_wanted_files_make_room(tier: IndexBench) -> None:
    first, second, third, _ = tier.segments
    limit = tier.size(first) + tier.size(second) + tier.size(third) - 1
    cache = tier.open(limit_bytes=limit)
    cache.get(HOME, first)
    cache.get(HOME, second)
    cache.get(HOME, first)
    cache.get(HOME, third)
    assert set(tier.disk.names(DIRECTORY)) == file_names(first) | file_names(third)
    assert cache.usage().evicted == 1
    assert cache.usage().held_bytes <= limit == cache.usage().limit_bytes


def test_an_index_larger_than_the_limit_is_served_and_not_kept(tier: IndexBench) -> None:
    small, large = tier.segments[0], tier.segments[ABORTED]
    assert tier.size(small) < tier.size(large)
    cache = tier.open(limit_bytes=tier.size(large) - 1, memory_bytes=0)
    cache.get(HOME, small)
    tier.check(large, cache.get(HOME, large))
    assert set(tier.disk.names(DIRECTORY)) == file_names(small)
    tier.check(large, cache.get(HOME, large))
    assert cache.usage().misses == 3


def test_a_lower_limit_is_kept_from_the_next_start_on(tier: IndexBench) -> None:
    cache = tier.open()
    for segment in tier.segments:
        tier.clock.advance(1)
        cache.get(HOME, segment)
    cache = tier.open(limit_bytes=tier.size(tier.segments[3]))
    cache.load()
    assert set(tier.disk.names(DIRECTORY)) == file_names(tier.segments[3])
    assert cache.usage().evicted == 3


# Damage


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["shorter", "longer", "changed", "gone"])
def test_a_damaged_file_is_fetched_again(tier: IndexBench, kind: str, damage: str) -> None:
    segment = tier.segments[ABORTED]
    cache = tier.open(memory_bytes=0)
    cache.get(HOME, segment)
    path = file_path(segment, kind)
    data = tier.disk.read(path)
    damaged = {"shorter": data[:-1], "longer": data + b"\0", "changed": _flip(data)}
    if damage == "gone":
        tier.disk.remove(path)
    else:
        overwrite(tier.disk, path, damaged[damage])
    tier.check(segment, cache.get(HOME, segment))
    assert cache.usage().misses == 2
    assert tier.disk.read(path) == data
    assert cache.usage().held_bytes == tier.size(segment)


def _flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda data: data[:-1], "bytes, but the manifest says"),
        (lambda data: data + b"\0" * 100, "has more than"),
        (_flip, "has CRC-32C"),
        (lambda data: b"", "has 0 bytes"),
    ],
)
def test_a_damaged_object_is_corrupt_and_not_kept(
    tier: IndexBench, kind: str, change: Callable[[bytes], bytes], fault: str
) -> None:
    segment = tier.segments[ABORTED]
    key = HOME.part_key(segment, kind)
    data = tier.bucket.get(key)
    tier.damage(segment, kind, change(data))
    cache = tier.open()
    with pytest.raises(Corrupt, match=fault) as caught:
        cache.get(HOME, segment)
    assert key in str(caught.value)
    assert not tier.disk.exists(DIRECTORY)
    tier.damage(segment, kind, data)
    tier.check(segment, cache.get(HOME, segment))


def test_an_index_that_cannot_be_true_is_corrupt_though_its_checksum_is_right(
    tier: IndexBench,
) -> None:
    segment = tier.segments[0]
    torn = b"\0" * 7
    parts = tuple(
        ObjectPart("index", 7, checksum(torn)) if part.name == "index" else part
        for part in segment.parts
    )
    tier.damage(segment, "index", torn)
    with pytest.raises(Corrupt, match="multiple of the entry size"):
        tier.open().get(HOME, replace(segment, parts=parts))
    assert not tier.disk.exists(DIRECTORY)


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_segment_whose_manifest_lists_no_index_is_corrupt(tier: IndexBench, kind: str) -> None:
    segment = tier.segments[0]
    parts = tuple(part for part in segment.parts if part.name != kind)
    with pytest.raises(Corrupt, match=f"lists no {kind}"):
        tier.open().get(HOME, replace(segment, parts=parts))


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_object_that_is_listed_is_told_apart_from_damage(
    tier: IndexBench, kind: str
) -> None:
    segment = tier.segments[ABORTED]
    tier.bucket.delete([HOME.part_key(segment, kind)])
    with pytest.raises(ObjectNotFound):
        tier.open().get(HOME, segment)


def test_another_description_of_a_segment_is_not_answered_with_the_old_one(
    tier: IndexBench,
) -> None:
    segment = tier.segments[0]
    cache = tier.open()
    cache.get(HOME, segment)
    index = OffsetIndex(segment.base_offset, 800)
    index.append(segment.base_offset, 0)
    times = TimeIndex(segment.base_offset, 1200)
    changed = {"index": index.encode(), "timeindex": times.encode()}
    parts = tuple(
        ObjectPart(kind, len(data), checksum(data) if data else 0) for kind, data in changed.items()
    )
    for kind, data in changed.items():
        tier.damage(segment, kind, data)
    indexes = cache.get(HOME, replace(segment, parts=parts))
    assert encode(indexes)[0] == index.encode()
    assert tier.disk.read(file_path(segment, "index")) == index.encode()


# A disk and a store that fail


def _broken(code: int) -> OSError:
    return OSError(code, "broken")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_is_noted_once_and_costs_no_read(
    tier: IndexBench, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    tier.disk.fail_from(1, _broken(code))
    cache = tier.open()
    with caplog.at_level(logging.WARNING):
        cache.load()
        for segment in tier.segments:
            tier.check(segment, cache.get(HOME, segment))
    assert len(caplog.records) == 1
    assert cache.usage().held_bytes == 0
    steps = tier.objects.steps
    for segment in tier.segments:
        cache.get(HOME, segment)
    assert tier.objects.steps == steps, "memory still holds them"


def test_a_disk_that_cannot_even_be_read_costs_no_read(tier: IndexBench) -> None:
    cache = tier.open(memory_bytes=0)
    cache.get(HOME, tier.segments[0])
    tier.disk.fail_under(DIRECTORY, _broken(errno.EIO))
    for segment in tier.segments:
        tier.check(segment, cache.get(HOME, segment))
    cache = tier.open()
    cache.load()
    tier.check(tier.segments[0], cache.get(HOME, tier.segments[0]))


def test_a_full_disk_is_left_without_pieces(tier: IndexBench) -> None:
    large = tier.segments[ABORTED]
    for capacity in range(tier.size(large)):
        tier.disk.full_at(capacity)
        tier.check(large, tier.open().get(HOME, large))
        assert tier.disk.names(DIRECTORY) == []


def test_a_disk_that_recovers_is_used_again(tier: IndexBench) -> None:
    tier.disk.full_at(0)
    cache = tier.open()
    cache.get(HOME, tier.segments[0])
    tier.disk.full_at(None)
    cache.get(HOME, tier.segments[1])
    assert set(tier.disk.names(DIRECTORY)) == file_names(tier.segments[1])


@pytest.mark.parametrize("request_number", [1, 2, 3])
def test_a_failed_fetch_is_told_and_tried_again_by_the_next(
    tier: IndexBench, request_number: int
) -> None:
    tier.objects.fail_at(request_number, FaultKind.ERROR_BEFORE)
    cache = tier.open()
    with pytest.raises(StoreUnavailable):
        cache.get(HOME, tier.segments[ABORTED])
    assert not tier.disk.exists(DIRECTORY)
    tier.check(tier.segments[ABORTED], cache.get(HOME, tier.segments[ABORTED]))


# Care


def test_a_forgotten_segment_is_gone_from_memory_and_disk(tier: IndexBench) -> None:
    cache = tier.open()
    for segment in tier.segments[:2]:
        cache.get(HOME, segment)
    cache.forget(tier.segments[0].id)
    cache.forget("never-heard-of")
    assert set(tier.disk.names(DIRECTORY)) == file_names(tier.segments[1])
    assert cache.usage().held_bytes == tier.size(tier.segments[1])
    cache.get(HOME, tier.segments[0])
    assert cache.usage().misses == 3


def test_closing_keeps_the_files_and_refuses_what_follows(tier: IndexBench) -> None:
    cache = tier.open()
    cache.get(HOME, tier.segments[0])
    cache.close()
    cache.close()
    assert set(tier.disk.names(DIRECTORY)) == file_names(tier.segments[0])
    with pytest.raises(Closed):
        cache.get(HOME, tier.segments[0])


# Threads


class Gate(MemoryObjectStore):
    """Lets requests to another store wait until it is opened."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__()
        self.store = store
        self.is_reached = threading.Event()
        self.is_open = threading.Event()
        self.keys: list[str] = []

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        self.keys.append(key)
        self.is_reached.set()
        assert self.is_open.wait(10)
        return self.store.get_range(key, start, end)


def test_many_readers_of_one_segment_fetch_it_once(tier: IndexBench) -> None:
    gate = Gate(tier.bucket)
    cache = tier.open(objects=gate, memory_bytes=0, limit_bytes=1)
    segment = tier.segments[ABORTED]
    with ThreadPoolExecutor(12) as pool:
        waiting = [pool.submit(cache.get, HOME, segment) for _ in range(12)]
        assert gate.is_reached.wait(10)
        _wait_for_waiters(cache, segment, 11)
        gate.is_open.set()
        for future in waiting:
            tier.check(segment, future.result())
    assert sorted(gate.keys) == sorted(HOME.part_key(segment, kind) for kind in KINDS)
    assert (cache.usage().hits, cache.usage().misses) == (11, 1)


def _wait_for_waiters(cache: IndexCache, segment: ColdSegment, count: int) -> None:
    """Returns when so many threads wait for the flight of another."""
    event = cache._flights[segment.id].done
    for _ in range(10_000):
        if len(event._cond._waiters) >= count:  # type: ignore[attr-defined]  # no public way
            return
        threading.Event().wait(0.001)
    raise AssertionError(f"fewer than {count} threads wait")


def test_a_failure_is_told_to_all_who_wait_and_forgotten(tier: IndexBench) -> None:
    tier.objects.go_down()
    gate = Gate(tier.objects)
    cache = tier.open(objects=gate)
    segment = tier.segments[ABORTED]
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(cache.get, HOME, segment) for _ in range(5)]
        assert gate.is_reached.wait(10)
        _wait_for_waiters(cache, segment, 4)
        gate.is_open.set()
        errors = [future.exception() for future in waiting]
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    assert len(set(map(id, errors))) == 5, "one that is raised twice drags its traces along"
    assert len(gate.keys) <= len(KINDS)
    tier.objects.come_up()
    tier.check(segment, cache.get(HOME, segment))


def test_an_interrupted_fetch_is_taken_over_by_one_who_waits(tier: IndexBench) -> None:
    class Interrupted(Gate):
        def get_range(self, key: str, start: int, end: int) -> memoryview:
            is_first = not self.keys
            data = super().get_range(key, start, end)
            if is_first:
                raise KeyboardInterrupt
            return data

    gate = Interrupted(tier.bucket)
    cache = tier.open(objects=gate)
    segment = replace(tier.segments[0])
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(cache.get, HOME, segment) for _ in range(2)]
        assert gate.is_reached.wait(10)
        _wait_for_waiters(cache, segment, 1)
        gate.is_open.set()
        errors = [future.exception() for future in waiting]
    assert sorted(type(error).__name__ for error in errors) == ["KeyboardInterrupt", "NoneType"]
    tier.check(segment, cache.get(HOME, segment))


def test_a_segment_that_is_forgotten_on_its_way_is_not_kept(tier: IndexBench) -> None:
    gate = Gate(tier.bucket)
    cache = tier.open(objects=gate)
    segment = tier.segments[0]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache.get, HOME, segment)
        assert gate.is_reached.wait(10)
        cache.forget(segment.id)
        gate.is_open.set()
        tier.check(segment, waiting.result())
    assert tier.disk.names(DIRECTORY) == []
    assert cache.usage().held_bytes == 0
    cache.get(HOME, segment)
    assert cache.usage().misses == 2


def test_closing_waits_for_what_is_on_its_way(tier: IndexBench) -> None:
    gate = Gate(tier.bucket)
    cache = tier.open(objects=gate)
    segment = tier.segments[0]
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(cache.get, HOME, segment)
        assert gate.is_reached.wait(10)
        closing = pool.submit(cache.close)
        _wait_for_waiters(cache, segment, 1)
        assert not closing.done()
        gate.is_open.set()
        tier.check(segment, waiting.result())
        closing.result()


def test_closing_has_a_deadline(tier: IndexBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_cache, "_CLOSE_SECONDS", 0.02)
    gate = Gate(tier.bucket)
    cache = tier.open(objects=gate)
    segment = tier.segments[ABORTED]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache.get, HOME, segment)
        assert gate.is_reached.wait(10)
        cache.close()
        assert not waiting.done()
        gate.is_open.set()
        tier.check(segment, waiting.result())


def test_who_waits_for_another_description_is_not_told_its_failure(tier: IndexBench) -> None:
    gate = Gate(tier.bucket)
    cache = tier.open(objects=gate)
    segment = tier.segments[0]
    parts = tuple(replace(part, crc32c=part.crc32c ^ 1) for part in segment.parts)
    with ThreadPoolExecutor(2) as pool:
        wrong = pool.submit(cache.get, HOME, replace(segment, parts=parts))
        assert gate.is_reached.wait(10)
        right = pool.submit(cache.get, HOME, segment)
        _wait_for_waiters(cache, segment, 1)
        gate.is_open.set()
        tier.check(segment, right.result())
        assert isinstance(wrong.exception(), Corrupt)


def test_all_indexes_of_a_segment_are_asked_for_at_once(tier: IndexBench) -> None:
    segment = tier.segments[ABORTED]
    together = threading.Barrier(len(KINDS), timeout=10)

    class Together(Gate):
        def get_range(self, key: str, start: int, end: int) -> memoryview:
            together.wait()
            return self.store.get_range(key, start, end)

    tier.check(segment, tier.open(objects=Together(tier.bucket)).get(HOME, segment))


def test_more_readers_than_fetchers_do_not_wait_for_one_another() -> None:
    tier = IndexBench(segment_count=30)
    cache = tier.open(memory_bytes=10_000, limit_bytes=300)
    source = random.Random(7)
    wanted = [source.choice(tier.segments) for _ in range(600)]
    with ThreadPoolExecutor(16) as pool:
        found = pool.map(lambda segment: cache.get(HOME, segment), wanted)
        for segment, indexes in zip(wanted, found, strict=True):
            tier.check(segment, indexes)
    usage = cache.usage()
    assert usage.hits + usage.misses == len(wanted)
    assert usage.held_bytes <= 300
    on_disk = sum(file.size for file in tier.disk.scan(DIRECTORY))
    assert on_disk == usage.held_bytes
