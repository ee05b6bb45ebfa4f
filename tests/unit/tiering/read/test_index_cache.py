"""Indexes of cold segments come from memory, from local files or from object storage, checked."""

import errno
import logging
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.support.index_bench import (
    ABORTED,
    DIRECTORY,
    KINDS,
    IndexBench,
    file_name,
    file_path,
    get_index,
    overwrite,
)
from tests.support.remote_builder import HOME
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.commit_log.sparse_index import OffsetIndex
from varve.disk import MemoryFileSystem, RealFileSystem
from varve.foundation.errors import (
    Closed,
    Corrupt,
    ObjectNotFound,
    StoreUnavailable,
    Unavailable,
)
from varve.kernels.crc import crc32c_of
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment
from varve.tiering.read import index_cache
from varve.tiering.read.index_cache import IndexCache
from varve.tiering.read.read_pool import ReadPool


@pytest.fixture
def tier() -> IndexBench:
    return IndexBench()


def file_names(segment: RemoteSegment, *kinds: str) -> set[str]:
    return {file_name(segment, kind) for kind in kinds or KINDS}


# What is handed out


def test_an_unlisted_transaction_index_is_empty_and_not_asked_for(tier: IndexBench) -> None:
    segment = tier.segments[0]
    assert segment.find_part("txnindex") is None
    assert tier.open().txn_index(HOME, segment).entries() == ()
    assert tier.objects.steps == 0
    assert not tier.disk.exists(DIRECTORY)


def test_an_empty_index_is_not_asked_for(tier: IndexBench) -> None:
    empty = tuple(ObjectPart(kind, 0, 0) for kind in KINDS)
    segment = replace(tier.segments[0], parts=empty)
    cache = tier.open()
    assert [get_index(cache, segment, kind).encode() for kind in KINDS] == [b"", b"", b""]
    index = cache.offset_index(HOME, segment)
    assert index.lookup(segment.end_offset) == (segment.base_offset, 0)
    assert tier.objects.steps == 0
    assert not tier.disk.exists(DIRECTORY)


def test_an_offset_index_at_hand_is_known_as_such(tier: IndexBench) -> None:
    first, second, *_ = tier.segments
    cache = tier.open()
    cache.time_index(HOME, first)
    assert not cache.has_offset_index(first)
    cache.offset_index(HOME, first)
    assert cache.has_offset_index(first)
    assert not cache.has_offset_index(second)
    cache = tier.open()
    cache.load()
    assert cache.has_offset_index(first)


# Files


def test_memory_holds_the_most_recent(tier: IndexBench) -> None:
    cache = tier.open(memory_bytes=3_000)
    first, second, *others = [cache.offset_index(HOME, segment) for segment in tier.segments]
    cache.time_index(HOME, tier.segments[3])
    assert cache.offset_index(HOME, tier.segments[2]) is others[0]
    assert cache.offset_index(HOME, tier.segments[1]) is second
    assert cache.offset_index(HOME, tier.segments[0]) is not first


@pytest.mark.parametrize("real", [False, True])
def test_a_new_process_goes_on_with_the_files(
    tier: IndexBench, real: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = RealFileSystem() if real else MemoryFileSystem(tier.clock)
    directory = f"{tmp_path_factory.mktemp('cache')}/{REMOTE_INDEX_CACHE_DIRECTORY}"
    disk.make_directory(directory)

    def open_cache() -> IndexCache:
        return IndexCache(disk, directory, tier.objects, pool=tier.pool, limit_bytes=1 << 20)

    cache = open_cache()
    for segment in tier.segments:
        tier.use(cache, segment)
    held = cache.usage().held_bytes
    cache.close()
    tier.objects.go_down()
    cache = open_cache()
    cache.load()
    assert cache.usage().held_bytes == held
    for segment in tier.segments:
        tier.use(cache, segment)
    assert cache.usage().misses == 0


def test_files_of_a_former_process_are_not_used_before_they_are_loaded(tier: IndexBench) -> None:
    tier.open().offset_index(HOME, tier.segments[0])
    cache = tier.open()
    cache.offset_index(HOME, tier.segments[0])
    assert cache.usage().misses == 1


def test_loading_deletes_what_is_not_whole_and_leaves_what_is_foreign(tier: IndexBench) -> None:
    cache = tier.open()
    torn, emptied, *_ = tier.segments
    for segment in tier.segments:
        tier.use(cache, segment, "index", "timeindex")
    overwrite(tier.disk, file_path(torn, "index"), b"torn")
    overwrite(tier.disk, file_path(emptied, "timeindex"), b"")
    path = file_path(tier.segments[2], "index")
    for left in (path + ".tmp", path + ".deleted", f"{DIRECTORY}/{10**19 - 1}_other.index"):
        overwrite(tier.disk, left, b"12345678")
    foreign = {"notes.txt", "7_other.log", "x_y.index", "07_other.index"}
    for name in foreign:
        overwrite(tier.disk, f"{DIRECTORY}/{name}", b"mine")
    cache = tier.open()
    cache.load()
    whole = file_names(torn, "timeindex") | file_names(emptied, "index")
    for segment in tier.segments[2:]:
        whole |= file_names(segment, "index", "timeindex")
    assert set(tier.disk.names(DIRECTORY)) == whole | foreign
    assert cache.usage().held_bytes == sum(
        tier.disk.info(f"{DIRECTORY}/{one}").size for one in whole
    )
    for segment in tier.segments:
        tier.use(cache, segment, "index", "timeindex")
    assert (cache.usage().hits, cache.usage().misses) == (6, 2)


# Limits


def test_the_least_recently_wanted_files_make_room(tier: IndexBench) -> None:
    first, second, third, _ = tier.segments
    limit = sum(tier.size(segment, "index") for segment in (first, second, third)) - 1
    cache = tier.open(limit_bytes=limit)
    for segment in (first, second, first, third):
        cache.offset_index(HOME, segment)
    assert set(tier.disk.names(DIRECTORY)) == {file_name(first, "index"), file_name(third, "index")}
    assert cache.usage().evicted == 1
    assert cache.usage().held_bytes <= limit == cache.usage().limit_bytes


def test_a_lower_limit_is_kept_from_the_next_start_on(tier: IndexBench) -> None:
    cache = tier.open()
    for segment in tier.segments:
        tier.clock.advance(1)
        cache.offset_index(HOME, segment)
    cache = tier.open(limit_bytes=tier.size(tier.segments[3], "index"))
    cache.load()
    assert tier.disk.names(DIRECTORY) == [file_name(tier.segments[3], "index")]
    assert cache.usage().evicted == 3


# Damage


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["shorter", "longer", "changed", "gone"])
def test_a_damaged_file_is_fetched_again(tier: IndexBench, kind: str, damage: str) -> None:
    segment = tier.segments[ABORTED]
    cache = tier.open(memory_bytes=0)
    tier.use(cache, segment)
    path = file_path(segment, kind)
    data = tier.disk.read(path)
    damaged = {"shorter": data[:-1], "longer": data + b"\0", "changed": _flip(data)}
    if damage == "gone":
        tier.disk.remove(path)
    else:
        overwrite(tier.disk, path, damaged[damage])
    tier.use(cache, segment)
    assert cache.usage().misses == len(KINDS) + 1, "the others are as they were"
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
        get_index(cache, segment, kind)
    assert key in str(caught.value)
    assert not tier.disk.exists(DIRECTORY)
    tier.damage(segment, kind, data)
    tier.use(cache, segment, kind)


def test_an_index_that_cannot_be_true_is_corrupt_though_its_checksum_is_right(
    tier: IndexBench,
) -> None:
    segment = tier.segments[0]
    torn = b"\0" * 7
    parts = tuple(
        ObjectPart("index", 7, crc32c_of(torn)) if part.name == "index" else part
        for part in segment.parts
    )
    tier.damage(segment, "index", torn)
    with pytest.raises(Corrupt, match="multiple of the entry size"):
        tier.open().offset_index(HOME, replace(segment, parts=parts))
    assert not tier.disk.exists(DIRECTORY)


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_segment_whose_manifest_lists_no_index_is_corrupt(tier: IndexBench, kind: str) -> None:
    segment = tier.segments[0]
    parts = tuple(part for part in segment.parts if part.name != kind)
    with pytest.raises(Corrupt, match=f"lists no {kind}"):
        get_index(tier.open(), replace(segment, parts=parts), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_object_that_is_listed_is_told_apart_from_damage(
    tier: IndexBench, kind: str
) -> None:
    segment = tier.segments[ABORTED]
    tier.bucket.delete([HOME.part_key(segment, kind)])
    with pytest.raises(ObjectNotFound):
        get_index(tier.open(), segment, kind)


def test_another_description_of_a_segment_is_not_answered_with_the_old_one(
    tier: IndexBench,
) -> None:
    segment = tier.segments[0]
    cache = tier.open()
    cache.offset_index(HOME, segment)
    index = OffsetIndex(segment.base_offset, 800)
    index.append(segment.base_offset, 0)
    changed = index.encode()
    tier.damage(segment, "index", changed)
    parts = (ObjectPart("index", len(changed), crc32c_of(changed)),)
    found = cache.offset_index(HOME, replace(segment, parts=parts))
    assert found.encode() == changed
    assert tier.disk.read(file_path(segment, "index")) == changed


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
            tier.use(cache, segment)
    assert len(caplog.records) == 1
    assert cache.usage().held_bytes == 0
    steps = tier.objects.steps
    for segment in tier.segments:
        tier.use(cache, segment)
    assert tier.objects.steps == steps, "memory still holds them"


def test_a_disk_that_cannot_even_be_read_costs_no_read(tier: IndexBench) -> None:
    cache = tier.open(memory_bytes=0)
    tier.use(cache, tier.segments[0])
    tier.disk.fail_under(DIRECTORY, _broken(errno.EIO))
    for segment in tier.segments:
        tier.use(cache, segment)
    cache = tier.open()
    cache.load()
    tier.use(cache, tier.segments[0])


def test_a_full_disk_is_left_without_pieces(tier: IndexBench) -> None:
    large = tier.segments[ABORTED]
    for capacity in range(tier.size(large, "txnindex")):
        tier.disk.full_at(capacity)
        tier.use(tier.open(), large, "txnindex")
        assert tier.disk.names(DIRECTORY) == []


def test_a_disk_that_recovers_is_used_again(tier: IndexBench) -> None:
    tier.disk.full_at(0)
    cache = tier.open()
    cache.offset_index(HOME, tier.segments[0])
    tier.disk.full_at(None)
    cache.offset_index(HOME, tier.segments[1])
    assert tier.disk.names(DIRECTORY) == [file_name(tier.segments[1], "index")]


# Care


def test_closing_keeps_the_files_and_refuses_what_follows(tier: IndexBench) -> None:
    cache = tier.open()
    cache.offset_index(HOME, tier.segments[0])
    cache.close()
    cache.close()
    assert tier.disk.names(DIRECTORY) == [file_name(tier.segments[0], "index")]
    with pytest.raises(Closed):
        cache.offset_index(HOME, tier.segments[0])


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


class Fetching(NamedTuple):
    """A cache while it fetches an index, which `waiting` threads asked for."""

    gate: Gate
    cache: IndexCache
    waiting: list[Future[OffsetIndex]]
    pool: ThreadPoolExecutor


@contextmanager
def fetching(
    tier: IndexBench, segment: RemoteSegment, readers: int = 1, gate: Gate | None = None
) -> Iterator[Fetching]:
    """The fetch goes on when the gate is opened, at the end at the latest."""
    gate = gate or Gate(tier.bucket)
    cache = tier.open(objects=gate)
    with ThreadPoolExecutor(readers + 1) as pool:
        waiting = [pool.submit(cache.offset_index, HOME, segment) for _ in range(readers)]
        assert gate.is_reached.wait(10)
        _wait_for_waiters(cache, segment, readers - 1)
        yield Fetching(gate, cache, waiting, pool)
        gate.is_open.set()


def test_many_readers_of_one_index_fetch_it_once(tier: IndexBench) -> None:
    segment = tier.segments[ABORTED]
    with fetching(tier, segment, 12) as (gate, cache, waiting, _):
        gate.is_open.set()
        for future in waiting:
            tier.check(segment, "index", future.result())
    assert gate.keys == [HOME.part_key(segment, "index")]
    assert (cache.usage().hits, cache.usage().misses) == (11, 1)


def _wait_for_waiters(cache: IndexCache, segment: RemoteSegment, count: int) -> None:
    """Returns when so many threads wait for the fetch of another."""
    (fetch,) = (
        fetch for key, fetch in cache._fetches.items() if key.name == file_name(segment, "index")
    )
    for _ in range(10_000):
        # There is no public way to see those in `result` and those in `concurrent.futures.wait`.
        waiters = len(fetch._condition._waiters) + len(fetch._waiters)  # type: ignore[attr-defined]
        if waiters >= count:
            return
        threading.Event().wait(0.001)
    raise AssertionError(f"fewer than {count} threads wait")


def test_a_failure_is_told_to_all_who_wait_and_forgotten(tier: IndexBench) -> None:
    tier.objects.go_down()
    segment = tier.segments[ABORTED]
    with fetching(tier, segment, 5, Gate(tier.objects)) as (gate, cache, waiting, _):
        gate.is_open.set()
        errors = [future.exception() for future in waiting]
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    assert len(set(map(id, errors))) == 5, "one that is raised twice drags its traces along"
    assert len(gate.keys) == 1
    tier.objects.come_up()
    tier.use(cache, segment, "index")


def test_an_interrupted_fetch_is_taken_over_by_one_who_waits(tier: IndexBench) -> None:
    class Interrupted(Gate):
        def get_range(self, key: str, start: int, end: int) -> memoryview:
            is_first = not self.keys
            data = super().get_range(key, start, end)
            if is_first:
                raise KeyboardInterrupt
            return data

    segment = tier.segments[0]
    with fetching(tier, segment, 2, Interrupted(tier.bucket)) as (gate, cache, waiting, _):
        gate.is_open.set()
        errors = [future.exception() for future in waiting]
    assert sorted(type(error).__name__ for error in errors) == ["KeyboardInterrupt", "NoneType"]
    tier.use(cache, segment, "index")


def test_closing_waits_for_what_is_on_its_way(tier: IndexBench) -> None:
    segment = tier.segments[0]
    with fetching(tier, segment) as (gate, cache, (waiting,), pool):
        closing = pool.submit(cache.close)
        _wait_for_waiters(cache, segment, 1)
        assert not closing.done()
        gate.is_open.set()
        tier.check(segment, "index", waiting.result())
        closing.result()


def test_closing_has_a_deadline(tier: IndexBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_cache, "_CLOSE_DEADLINE_SECONDS", 0.02)
    segment = tier.segments[ABORTED]
    with fetching(tier, segment) as (gate, cache, (waiting,), _):
        cache.close()
        assert not waiting.done()
        gate.is_open.set()
        tier.check(segment, "index", waiting.result())


def test_who_waits_for_another_description_is_not_told_its_failure(tier: IndexBench) -> None:
    segment = tier.segments[0]
    parts = tuple(part._replace(crc32c=part.crc32c ^ 1) for part in segment.parts)
    with fetching(tier, replace(segment, parts=parts)) as (gate, cache, (wrong,), pool):
        right = pool.submit(cache.offset_index, HOME, segment)
        gate.is_open.set()
        tier.check(segment, "index", right.result())
        assert isinstance(wrong.exception(), Corrupt)


def test_the_kinds_of_one_segment_do_not_wait_for_one_another(tier: IndexBench) -> None:
    segment = tier.segments[ABORTED]
    with fetching(tier, segment) as (gate, cache, (waiting,), _):
        assert cache.has_offset_index(segment)
        assert cache.txn_index(HOME, tier.segments[0]).entries() == ()
        gate.is_open.set()
        tier.use(cache, segment, "timeindex", "txnindex")
        tier.check(segment, "index", waiting.result())


# Bounds of reading


def test_a_fetch_is_made_by_who_asks_and_counts_as_one_of_the_reads(tier: IndexBench) -> None:
    seen: list[tuple[threading.Thread, int]] = []

    class Watched(Gate):
        def get_range(self, key: str, start: int, end: int) -> memoryview:
            seen.append((threading.current_thread(), tier.pool.active_count))
            return self.store.get_range(key, start, end)

    cache = tier.open(objects=Watched(tier.bucket))
    tier.use(cache, tier.segments[0], "index", "index")
    assert seen == [(threading.current_thread(), 1)]
    assert tier.pool.active_count == 0


def test_too_many_reads_refuse_a_fetch_and_leave_what_is_held(tier: IndexBench) -> None:
    tier.pool = ReadPool(threads=1, max_pending=0)
    cache = tier.open()
    tier.use(cache, tier.segments[0], "index")
    is_done = threading.Event()
    busy = tier.pool.submit(lambda: is_done.wait(10))
    tier.use(cache, tier.segments[0], "index")
    with pytest.raises(Unavailable, match=r"remote\.log\.reader\.threads"):
        cache.offset_index(HOME, tier.segments[1])
    is_done.set()
    busy.result(10)
    tier.pool.close()


def test_readers_of_many_indexes_get_what_they_asked_for() -> None:
    tier = IndexBench(segment_count=30)
    cache = tier.open(memory_bytes=10_000, limit_bytes=300)
    source = random.Random(7)
    wanted = [(source.choice(tier.segments), source.choice(KINDS)) for _ in range(600)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda one: tier.use(cache, *one), wanted))
    usage = cache.usage()
    assert usage.hits + usage.misses == len(wanted)
    assert usage.held_bytes <= 300
    on_disk = sum(file.size for file in tier.disk.scan(DIRECTORY))
    assert on_disk == usage.held_bytes
