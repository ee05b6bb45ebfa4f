"""Every object store keeps the promises of `varve.object_store.ObjectStore`, wrapped or not."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.s3_server import BUCKET, S3Server
from varve.foundation.errors import InvalidRequest, NotFound, ObjectExists, ObjectNotFound
from varve.object_store import (
    Buffer,
    LazyObjectStore,
    MeteredObjectStore,
    ObjectStore,
    RetryingObjectStore,
    open_object_store,
)

MEGABYTE = 1 << 20


def _plain(store: ObjectStore) -> ObjectStore:
    return store


def _retrying(store: ObjectStore) -> ObjectStore:
    return RetryingObjectStore(MeteredObjectStore(store))


def _lazy(store: ObjectStore) -> ObjectStore:
    return LazyObjectStore(store.name, lambda: store)


@pytest.fixture(params=["directory", "memory", "s3"])
def bare_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    match request.param:
        case "directory":
            return open_object_store(f"file://{tmp_path}/objects")
        case "memory":
            return open_object_store("memory:")
        case _:
            s3: S3Server = request.getfixturevalue("s3")
            settings = {**s3.settings, "conditional.put.check": False, "part.bytes": 5 * MEGABYTE}
            return open_object_store(f"s3://{BUCKET}/{secrets.token_hex(8)}", settings)


@pytest.fixture(params=[_plain, _retrying, _lazy], ids=["plain", "retrying", "lazy"])
def store(request: pytest.FixtureRequest, bare_store: ObjectStore) -> Iterator[ObjectStore]:
    wrap: Callable[[ObjectStore], ObjectStore] = request.param
    wrapped = wrap(bare_store)
    yield wrapped
    wrapped.close()
    wrapped.close()


def _keys(store: ObjectStore, prefix: str = "", start_after: str | None = None) -> list[str]:
    return [info.key for info in store.list(prefix, start_after=start_after)]


def test_what_was_put_is_read_back(store: ObjectStore) -> None:
    info = store.put("a/b", b"hello world")
    assert (info.key, info.size) == ("a/b", 11)
    assert info.modified_ms > 1_600_000_000_000
    data = store.get("a/b")
    assert data == b"hello world"
    assert type(data) is bytes
    assert bytes(store.get_range("a/b", 6, 11)) == b"world"


def test_a_put_replaces(store: ObjectStore) -> None:
    store.put("a", b"one")
    assert bytes(store.get_range("a", 0, 3)) == b"one"
    store.put("a", b"other")
    assert store.get("a") == b"other"
    assert bytes(store.get_range("a", 0, 9)) == b"other"
    assert store.head("a").size == 5


def test_any_buffer_may_be_written(store: ObjectStore) -> None:
    buffers: list[Buffer] = [b"", bytearray(b"ab"), memoryview(b"xaby")[1:3], memoryview(b"")]
    for number, data in enumerate(buffers):
        size = len(data)
        assert store.put(f"put/{number}", data).size == size
        assert store.create(f"create/{number}", data).size == size
        assert store.put_parts(f"parts/{number}", [data, data], size=2 * size).size == 2 * size
        assert store.get(f"put/{number}") == store.get(f"create/{number}") == bytes(data)
        assert store.get(f"parts/{number}") == bytes(data) * 2


def test_head_and_list_tell_the_same(store: ObjectStore) -> None:
    written = store.put("a/b", b"12345")
    head = store.head("a/b")
    (listed,) = store.list("a")
    assert replace(listed, modified_ms=head.modified_ms) == head
    assert 0 <= listed.modified_ms - head.modified_ms < 1000
    assert (head.size, head.etag) == (5, written.etag)


def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    store.put("a/b", b"1")
    for key in ("nothing", "a", "a/b2", "a/c/d"):
        with pytest.raises(ObjectNotFound, match=key) as caught:
            store.get(key)
        assert isinstance(caught.value, NotFound)
        assert store.name in str(caught.value)
        with pytest.raises(ObjectNotFound):
            store.head(key)
        with pytest.raises(ObjectNotFound):
            store.get_range(key, 0, 1)


def test_create_makes_only_what_is_absent(store: ObjectStore) -> None:
    assert store.create("a/b", b"first").size == 5
    with pytest.raises(ObjectExists, match="a/b"):
        store.create("a/b", b"second")
    store.put("c", b"put")
    with pytest.raises(ObjectExists):
        store.create("c", b"created")
    assert (store.get("a/b"), store.get("c")) == (b"first", b"put")
    store.delete(["a/b"])
    store.create("a/b", b"again")
    assert store.get("a/b") == b"again"


def test_one_of_many_creating_threads_wins(store: ObjectStore) -> None:
    def create(name: int) -> int | None:
        try:
            store.create(f"race/{number}", b"by %d" % name)
        except ObjectExists:
            return None
        return name

    with ThreadPoolExecutor(6) as pool:
        for number in range(4):
            winners = [name for name in pool.map(create, range(6)) if name is not None]
            assert len(winners) == 1
            assert store.get(f"race/{number}") == b"by %d" % winners[0]


def test_ranges_end_with_the_object(store: ObjectStore) -> None:
    store.put("a", bytes(range(20)))
    store.put("empty", b"")
    for start, end in [(0, 20), (0, 1), (19, 20), (5, 5), (3, 14), (15, 100), (20, 30), (99, 100)]:
        found = store.get_range("a", start, end)
        assert isinstance(found, memoryview)
        assert found == bytes(range(20))[start:end]
    assert bytes(store.get_range("empty", 0, 10)) == b""


def test_an_impossible_range_is_refused(store: ObjectStore) -> None:
    store.put("a", b"12345")
    for start, end in [(-1, 3), (3, 2)]:
        with pytest.raises(InvalidRequest, match="not a range"):
            store.get_range("a", start, end)


def test_a_range_is_unchanged_by_a_later_put(store: ObjectStore) -> None:
    store.put("a", b"one")
    found = store.get_range("a", 0, 3)
    store.put("a", b"two")
    store.delete(["a"])
    assert bytes(found) == b"one"


def test_large_objects_are_put_in_parts(store: ObjectStore) -> None:
    parts = [bytes([number]) * (3 * MEGABYTE + number) for number in range(4)]
    size = sum(map(len, parts))
    assert store.put_parts("large", iter(parts), size=size).size == size
    assert store.head("large").size == size
    assert store.get("large") == b"".join(parts)


@pytest.mark.parametrize("size", [10, 9 * MEGABYTE])
def test_parts_of_another_size_leave_nothing(store: ObjectStore, size: int) -> None:
    for wrong in (size - 1, size + 1):
        with pytest.raises(InvalidRequest, match=str(size)):
            store.put_parts("a", [bytes(wrong // 2), bytes(wrong - wrong // 2)], size=size)
    assert _keys(store) == []


@pytest.mark.parametrize("size", [10, 20 * MEGABYTE])
def test_parts_that_break_off_leave_nothing(store: ObjectStore, size: int) -> None:
    store.put("a", b"before")

    def parts() -> Iterator[bytes]:
        yield bytes(size // 2)
        raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        store.put_parts("a", parts(), size=size)
    assert store.get("a") == b"before"
    assert _keys(store) == ["a"]


def test_a_list_is_in_the_order_of_keys(store: ObjectStore) -> None:
    keys = ["a-b/x", "a.b", "a/b/c", "a/b.c", "a/b-c", "a0", "B", "a/c", "z/y/x/w", "a/bc/d"]
    for key in keys:
        store.put(key, key.encode())
    assert _keys(store) == sorted(keys)
    assert [info.size for info in store.list("")] == [len(key) for key in sorted(keys)]
    for start_after in ["", "a", "a/", "a/b", "a/b.c", "a/b/c", "a/b/zz", "a/zz", "b", "z/y/x/w"]:
        expected = [key for key in sorted(keys) if key > start_after]
        assert _keys(store, start_after=start_after) == expected


def test_a_prefix_is_a_directory(store: ObjectStore) -> None:
    for key in ["a/b/1", "a/b/2", "a/bc/3", "ab/4", "a-b"]:
        store.put(key, b"")
    assert _keys(store, "a/b") == _keys(store, "a/b/") == ["a/b/1", "a/b/2"]
    assert _keys(store, "a") == ["a/b/1", "a/b/2", "a/bc/3"]
    assert _keys(store, "a", start_after="a/b/1") == ["a/b/2", "a/bc/3"]
    assert _keys(store, "a/b/1") == _keys(store, "nothing") == []


def test_directories_are_those_that_hold_objects(store: ObjectStore) -> None:
    for key in ["a/b/c/1", "a/d/2", "a/3", "e-f/4", "5"]:
        store.put(key, b"")
    assert store.list_directories("") == ["a", "e-f"]
    assert store.list_directories("a") == store.list_directories("a/") == ["a/b", "a/d"]
    assert store.list_directories("a/d") == store.list_directories("nothing") == []
    store.delete(["a/b/c/1", "e-f/4"])
    assert store.list_directories("") == ["a"]
    assert store.list_directories("a") == ["a/d"]


def test_deleted_objects_are_gone_and_missing_ones_are_fine(store: ObjectStore) -> None:
    for key in ["a/1", "a/2", "b"]:
        store.put(key, b"x")
    store.get_range("a/1", 0, 1)
    store.delete([])
    store.delete(["a/1", "nothing", "b", "a/1/below", "a"])
    assert _keys(store) == ["a/2"]
    with pytest.raises(ObjectNotFound):
        store.get_range("a/1", 0, 1)
    store.delete(["a/1"])


BAD_KEYS = ["", "/a", "a/", "a//b", "../a", "a/./b", "a\\b", "a b", "a%41", "ä", "a\nb", "a\0",
            ".varve-writing/x", "a/.varve-x", "x" * 201, "/".join(["x" * 99] * 10)]  # fmt: skip


def test_a_key_that_not_every_store_takes_is_refused(store: ObjectStore) -> None:
    for key in BAD_KEYS:
        for call in _calls_with(store, key):
            with pytest.raises(InvalidRequest, match="the key "):
                call()
    assert _keys(store) == []


def _calls_with(store: ObjectStore, key: str) -> list[Callable[[], object]]:
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, b""),
        lambda: store.put_parts(key, [b"1"], size=1),
        lambda: store.create(key, b""),
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
        lambda: store.delete(["fine", key]),
    ]
    if key not in ("", "a/"):
        calls += [lambda: store.list(key), lambda: store.list_directories(key)]
    return calls
