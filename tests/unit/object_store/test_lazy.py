"""A store that is opened by its first request: what fails when, and how often it is opened."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from varve.foundation.errors import (
    Closed,
    InvalidRequest,
    InvalidSetting,
    ObjectNotFound,
    StoreDenied,
    StoreUnavailable,
)
from varve.foundation.settings import GivenValue
from varve.object_store import (
    LazyObjectStore,
    MemoryObjectStore,
    ObjectStore,
    open_lazily,
    register,
)
from varve.object_store import opening as registry

REQUESTS: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("a", b"1"),
    "put parts": lambda store: store.put_parts("a", iter([b"1"]), size=1),
    "create": lambda store: store.create("b", b"1"),
    "get": lambda store: store.get("a"),
    "get range": lambda store: store.get_range("a", 0, 1),
    "head": lambda store: store.head("a"),
    "list": lambda store: list(store.list("")),
    "list directories": lambda store: store.list_directories(""),
    "delete": lambda store: store.delete(["a"]),
}


class Door:
    """Opens a store when `error` is None, and counts."""

    def __init__(self, error: Exception | None = None) -> None:
        self.below = MemoryObjectStore()
        self.error = error
        self.count = 0

    def __call__(self) -> ObjectStore:
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.below


def test_nothing_is_opened_before_the_first_request_and_then_once() -> None:
    door = Door()
    store = LazyObjectStore("memory:", door)
    assert door.count == 0
    store.put("a", b"1")
    for request in REQUESTS.values():
        request(store)
    assert door.count == 1


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_each_request_tries_to_open_until_that_works(
    request_: Callable[[ObjectStore], object],
) -> None:
    door = Door(StoreUnavailable("memory:: open failed"))
    store = LazyObjectStore("memory:", door)
    for attempt in (1, 2):
        with pytest.raises(StoreUnavailable, match="open failed"):
            request_(store)
        assert door.count == attempt
    door.error = StoreDenied("memory:: no right to open")
    with pytest.raises(StoreDenied):
        request_(store)
    door.error = None
    store.put("a", b"1")
    request_(store)
    assert door.count == 4


def test_a_list_fails_when_it_is_gone_through_like_any_other() -> None:
    store = LazyObjectStore("memory:", Door(StoreUnavailable("down")))
    found = store.list("")
    with pytest.raises(StoreUnavailable):
        next(found)
    with pytest.raises(InvalidRequest):
        store.list("../a")


def test_of_several_that_open_at_once_one_store_is_kept() -> None:
    barrier = threading.Barrier(4)
    opened: list[MemoryObjectStore] = []
    closed: list[object] = []

    class Closing(MemoryObjectStore):
        def close(self) -> None:
            closed.append(self)

    def connect() -> ObjectStore:
        barrier.wait(10)
        opened.append(Closing())
        return opened[-1]

    store = LazyObjectStore("memory:", connect)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: store.put(f"{number}", b"1"), range(4)))
    assert [info.key for info in store.list("")] == ["0", "1", "2", "3"]
    assert (len(opened), len(closed)) == (4, 3)


def test_a_closed_one_is_not_opened_any_more() -> None:
    door = Door()
    store = LazyObjectStore("memory:", door)
    store.close()
    with pytest.raises(Closed, match="memory:"):
        store.get("a")
    assert door.count == 0


# By URL


@pytest.fixture(autouse=True)
def _unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


@pytest.mark.parametrize(
    "url", ["", "ftp://host", "file:", "file://host/path", "s3:", "s3://bucket/a//b", "gs://"]
)
def test_a_url_that_names_no_store_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidRequest):
        open_lazily(url)


def test_wrong_settings_are_refused_at_once() -> None:
    with pytest.raises(InvalidSetting, match="did you mean 'endpoint'"):
        open_lazily("s3://bucket", {"endpoints": "https://host"})
    with pytest.raises(InvalidSetting, match="no TLS"):
        open_lazily("s3://bucket", {"endpoint": "http://host"})
    with pytest.raises(InvalidRequest, match="no settings"):
        open_lazily("file:/x", {"region": "x"})


def test_a_directory_is_made_by_the_first_request(tmp_path: Path) -> None:
    store = open_lazily(f"file:{tmp_path}/objects")
    assert store.name == f"file://{tmp_path}/objects"
    assert not (tmp_path / "objects").exists()
    with pytest.raises(ObjectNotFound):
        store.get("a")
    assert (tmp_path / "objects").exists()


def test_a_registered_store_that_is_down_is_opened_again_at_a_request() -> None:
    door = Door(StoreUnavailable("tape is out"))

    def open_tape(url: str, settings: Mapping[str, GivenValue]) -> ObjectStore:
        return door()

    register("tape", open_tape)
    store = open_lazily("tape://user:TOPSECRET@host/cold?TOPSECRET")
    assert store.name == "tape://host/cold"
    with pytest.raises(StoreUnavailable):
        store.get("a")
    door.error = None
    store.put("a", b"1")
    assert open_lazily("tape://host/cold") is door.below
    door.error = InvalidRequest("no such tape")
    with pytest.raises(InvalidRequest):
        open_lazily("tape://host/cold")
