"""From URL to store."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import obstore
import pytest

from varve.foundation import plugins
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
    DirectoryObjectStore,
    LazyObjectStore,
    MemoryObjectStore,
    ObjectStore,
    open_lazily,
    open_object_store,
    register,
)
from varve.object_store import opening as registry
from varve.object_store.opening import hide_secrets, normal_url


@pytest.fixture(autouse=True)
def _unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def open_plugin(url: str, settings: Mapping[str, GivenValue]) -> ObjectStore:
    return MemoryObjectStore(f"{url} {sorted(settings)}")


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}", "FILE:{}"])
def test_a_directory_by_any_form_of_file_url(form: str, tmp_path: Path) -> None:
    store = open_object_store(form.format(f"{tmp_path}/some%20where"))
    assert isinstance(store, DirectoryObjectStore)
    assert store.name == f"file://{tmp_path}/some where"


def test_memory_stores_share_nothing() -> None:
    first, second = open_object_store("memory:"), open_object_store("memory:")
    first.put("a", b"1")
    assert list(second.list("")) == []


@pytest.mark.parametrize(
    "url",
    ["", "/data/cold", "ftp://host/TOPSECRET", "file:", "file://host/path", "s3:", "s3:///prefix",
     "s3://bucket/a//b", "s3://bucket/../b", "s3://bucket?x=TOPSECRET", "s3://key:TOPSECRET@bucket",
     "gs://", "az://c#TOPSECRET"],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused_at_once(url: str) -> None:
    for open_by_url in (open_object_store, open_lazily):
        with pytest.raises(InvalidRequest) as caught:
            open_by_url(url)
        assert "TOPSECRET" not in str(caught.value)


@pytest.mark.parametrize("open_by_url", [open_object_store, open_lazily])
def test_wrong_settings_are_refused_at_once(
    open_by_url: Callable[[str, Mapping[str, GivenValue]], ObjectStore],
) -> None:
    with pytest.raises(InvalidSetting, match="did you mean 'endpoint'"):
        open_by_url("s3://bucket", {"endpoints": "https://host"})
    with pytest.raises(InvalidSetting, match="no TLS"):
        open_by_url("s3://bucket", {"endpoint": "http://host"})
    with pytest.raises(InvalidRequest, match="no settings"):
        open_by_url("file:/x", {"region": "x"})


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    with pytest.raises(InvalidSetting, match="not shown") as caught:
        open_object_store("s3://bucket", {"secret.access.key": 987654321})
    assert "987654321" not in str(caught.value)


def test_a_registered_scheme_is_opened_with_its_settings() -> None:
    register("ours", open_plugin)
    assert open_object_store("ours://place", {"b": 1}).name == "ours://place ['b']"


@pytest.mark.parametrize("scheme", ["s3", "file", "", "Ours", "a:b", "1a"])
def test_some_schemes_cannot_be_registered(scheme: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be registered"):
        register(scheme, open_plugin)


def test_an_installed_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", f"{__name__}:open_plugin", registry.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", EntryPoints([point]).select)
    monkeypatch.setattr(EntryPoint, "load", lambda self: open_plugin)
    assert open_object_store("theirs:x").name == "theirs:x []"
    with pytest.raises(InvalidRequest, match="begins with one of"):
        open_object_store("nobodys:x")


# Ranges are views of what obstore received, not copies of it


def test_a_range_is_a_view_of_what_was_received() -> None:
    store = MemoryObjectStore()
    store.put("a", bytes(100))
    assert isinstance(store.get_range("a", 10, 20).obj, obstore.Bytes)


# URLs of object stores: equal places are written alike, and no secret is shown


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("file:/p/q", "file:/p/q"),
        ("file:///p/q/", "file:/p/q"),
        ("FILE:/p/./x/../q//", "file:/p/q"),
        ("file://localhost/p/q", "file:/p/q"),
        ("file:/p%20q", "file:/p%20q"),
        ("file:/p q", "file:/p%20q"),
        ("s3://b", "s3://b"),
        ("S3://b/", "s3://b"),
        ("s3://Bucket/a/b/", "s3://Bucket/a/b"),
        ("gs://b//a/", "gs://b/a"),
        ("az://c/x", "az://c/x"),
        ("Memory:x", "memory:x"),
        ("Own://user@h/?x", "Own://user@h/?x"),
        ("topic", "topic"),
    ],
)
def test_each_place_is_written_one_way(url: str, normal: str) -> None:
    assert normal_url(url) == normal
    assert normal_url(normal) == normal


@pytest.mark.parametrize(
    "url",
    ["s3://AKIA:TOPSECRET@b/x", "gs://b?TOPSECRET", "file://TOPSECRET@/x", "az://b#TOPSECRET"],
)
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidRequest, match="credentials and options are settings") as caught:
        normal_url(url)
    assert "TOPSECRET" not in str(caught.value)
    assert "TOPSECRET" not in hide_secrets(url)


@pytest.mark.parametrize("url", ["s3://[b", "file://[b"])
def test_a_url_that_cannot_be_read_is_told_so(url: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        normal_url(url)


# A store that is opened by its first request: what fails when, and how often it is opened


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
