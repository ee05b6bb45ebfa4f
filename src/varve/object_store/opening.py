"""Opens the object store of a URL: by scheme, lazily, or two stores as a mirror.

`register` adds schemes for this process; packages add them with entry points of the group
`varve.object_stores`, which are loaded on first use.

Invariant  two URLs of built-in schemes name the same location of a server if and only if
           `normal_url` writes them alike. No message shows a user, a password or a query.
Threads    any; `_lock` guards the registered openers.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, quote, unquote, urlsplit

from varve.foundation.clock import Clock
from varve.foundation.errors import Closed, InvalidRequest, InvalidSetting, StoreUnavailable
from varve.foundation.metrics import MetricTable
from varve.foundation.plugins import PluginRegistry
from varve.foundation.settings import GivenValue
from varve.object_store.cloud import (
    OPEN_RETRIES,
    AzureObjectStore,
    CloudObjectStore,
    GcsObjectStore,
    S3ObjectStore,
)
from varve.object_store.directory import DirectoryObjectStore
from varve.object_store.metering import MeteredObjectStore
from varve.object_store.mirror import InSyncFlag, MirroredObjectStore
from varve.object_store.obstore_store import MemoryObjectStore
from varve.object_store.protocol import ObjectInfo, ObjectStore, ObjectStoreWrapper, find_key_fault
from varve.object_store.retry import RetryingObjectStore, RetryPolicy

T = TypeVar("T")

_CLOUDS: Final[Mapping[str, type[CloudObjectStore[Any]]]] = {
    store.scheme: store for store in (S3ObjectStore, GcsObjectStore, AzureObjectStore)
}

BUCKETS: Final = frozenset(_CLOUDS)
"""Schemes whose URLs are a bucket and a prefix."""

_BUILT_IN: Final = ("file", "memory", *_CLOUDS)

_SECRET: Final = re.compile(r"(?<=//)[^/]*@|[?#].*", re.DOTALL)


def find_scheme(url: str) -> str:
    """The scheme of a URL in lower case; empty without one."""
    return url.partition(":")[0].lower() if ":" in url else ""


def normal_url(url: str) -> str:
    """The URL as varve writes it: directories absolute, prefixes without a closing '/'.

    A URL of a registered scheme is returned unchanged. Raises InvalidRequest.
    """
    scheme = find_scheme(url)
    if scheme == "file":
        return f"file:{quote(split_directory(url))}"
    if scheme in BUCKETS:
        bucket, prefix = split_bucket(url)
        return f"{scheme}://{bucket}/{prefix}".rstrip("/")
    return f"memory:{url.partition(':')[2]}" if scheme == "memory" else url


def to_url(location: str) -> str:
    """The normal URL of a location, which is a URL or a path with any characters."""
    is_url = "://" in location or find_scheme(location) in _BUILT_IN
    return normal_url(location if is_url else f"file:{quote(location)}")


def split_directory(url: str) -> str:
    """The absolute path that a file: URL names; raises InvalidRequest."""
    parts = _split(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise InvalidRequest(
            f"{hide_secrets(url)} names no directory of this machine: write file:/path or "
            "file:///path"
        )
    path = os.path.abspath(unquote(parts.path))
    return f"/{path.lstrip('/')}"


def split_bucket(url: str) -> tuple[str, str]:
    """The bucket and prefix that a URL names; raises InvalidRequest."""
    parts = _split(url)
    prefix = parts.path.strip("/")
    fault = find_key_fault(prefix) if prefix else None
    if not parts.netloc or fault is not None:
        raise InvalidRequest(
            f"{hide_secrets(url)} names no bucket of an object store: write "
            f"{parts.scheme}://bucket/prefix" + (f"; its prefix {fault}" if fault else "")
        )
    return parts.netloc, prefix


def hide_secrets(url: str) -> str:
    """The URL without user, password, query and fragment, for messages."""
    return _SECRET.sub("", url)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequest(
            f"the {find_scheme(url)}: URL of an object store cannot be read: {error}"
        ) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidRequest(
            f"a {parts.scheme}: URL of an object store takes no user, password, '?' or '#': "
            "credentials and options are settings"
        )
    return parts


_SCHEME: Final = re.compile(r"[a-z][a-z0-9]*")

ENTRY_POINTS: Final = "varve.object_stores"

Opener = Callable[[str, Mapping[str, GivenValue]], ObjectStore]
"""Opens a store by URL and settings; raises InvalidRequest or InvalidSetting for bad ones."""

_PROVIDED: Final[PluginRegistry[Opener]] = PluginRegistry("object store scheme", ENTRY_POINTS, {})

_lock = threading.Lock()
_registered: dict[str, Opener] = {}  # guarded by _lock


def open_object_store(
    url: str, settings: Mapping[str, GivenValue] | None = None, *, must_exist: bool = False
) -> ObjectStore:
    """The store that a URL names: file:, memory:, s3:, gs:, az:, or one registered.

    A directory is created if missing, or StoreUnavailable where it `must_exist`.
    """
    if find_scheme(url) in _BUILT_IN:
        return _prepare(url, settings or {}, OPEN_RETRIES, must_exist=must_exist).opened()
    return _get_opener(find_scheme(url))(url, settings or {})


def open_lazily(
    url: str, settings: Mapping[str, GivenValue] | None = None, *, must_exist: bool = False
) -> ObjectStore:
    """The store that a URL names; nothing is sent to its server before the first operation.

    An invalid URL or setting raises immediately. A store of a registered scheme is opened
    immediately, and again at its first operation if it was unavailable.
    """
    store_settings = settings or {}
    scheme = find_scheme(url)
    if scheme in _BUILT_IN:
        return _prepare(url, store_settings, None, must_exist=must_exist)
    opener = _get_opener(scheme)
    try:
        return opener(url, store_settings)
    except StoreUnavailable:
        parts = urlsplit(url)
        name = f"{scheme}:{f'//{parts.hostname}' if parts.hostname else ''}{parts.path}"
        return LazyObjectStore(name, lambda: opener(url, store_settings))


def _prepare(
    url: str,
    settings: Mapping[str, GivenValue],
    retries: RetryPolicy | None,
    *,
    must_exist: bool,
) -> "LazyObjectStore":
    """A built-in store with a valid URL and settings; no request is sent yet."""
    scheme = find_scheme(url)
    cloud = _CLOUDS.get(scheme)
    if cloud is not None:
        bucket, prefix = split_bucket(url)
        store = cloud(bucket, prefix, settings=cloud.settings_class.parse(settings, url))
        return LazyObjectStore(store.name, lambda: store.checked(retries))
    root = split_directory(url) if scheme == "file" else ""
    if settings:
        raise InvalidRequest(
            f"a {scheme}: object store has no settings, but was given {', '.join(sorted(settings))}"
        )
    if scheme == "file":
        return LazyObjectStore(
            f"file://{root}", lambda: DirectoryObjectStore(root, must_exist=must_exist)
        )
    return LazyObjectStore(url, lambda: MemoryObjectStore(url))


def check_url(url: str) -> None:
    """Raises InvalidRequest for a URL that names no object store; opens nothing."""
    scheme = find_scheme(url)
    if scheme not in _BUILT_IN:
        _get_opener(scheme)
    normal_url(url)


def _get_opener(scheme: str) -> Opener:
    with _lock:
        opener = _registered.get(scheme)
        schemes = ", ".join(f"{name}:" for name in (*_BUILT_IN, *sorted(_registered)))
    opener = opener or (_PROVIDED.find(scheme) if scheme else None)
    if opener is None:
        # The URL itself is not shown: a mistaken one may hold a secret.
        raise InvalidRequest(
            f"the URL of an object store begins with one of {schemes}, this one with "
            f"{scheme!r}: write a directory as file:/path"
            if scheme
            else "the URL of an object store has no scheme: write a directory as file:/path, and a "
            f"bucket with one of {schemes}"
        )
    return opener


def register(scheme: str, opener: Opener) -> None:
    """Open URLs of a scheme with `opener`; a built-in scheme cannot be replaced."""
    if scheme in _BUILT_IN or not _SCHEME.fullmatch(scheme):
        raise InvalidRequest(
            f"object store scheme {scheme!r} cannot be registered: it must be of small letters and "
            f"digits and none of {', '.join(_BUILT_IN)}"
        )
    with _lock:
        _registered[scheme] = opener


class LazyObjectStore(ObjectStoreWrapper):
    """An ObjectStore that `connect` opens at the first request, or at the next if that failed.

    For a store whose opening sends a request: while it is down every request fails, and once it is
    back requests succeed without another open. Concurrent first requests each open a store, as no
    lock is held during requests; the first to succeed is kept.
    """

    def __init__(self, name: str, connect: Callable[[], ObjectStore]) -> None:
        self.name = name  # without super().__init__: there is no store yet
        self._connect = connect
        self._lock = threading.Lock()
        self._inner: ObjectStore | None = None  # guarded by _lock
        self._is_closed = False  # guarded by _lock

    def _request(self, operation: str, key: str, call: Callable[[ObjectStore], T]) -> T:
        return call(self.opened())

    def _list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        yield from self.opened().list(prefix, start_after=start_after)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            store = self._inner
        if store is not None:
            store.close()

    def opened(self) -> ObjectStore:
        """The wrapped store, opened if necessary."""
        with self._lock:
            store, is_closed = self._inner, self._is_closed
        if store is None and is_closed:
            raise Closed(f"{self.name}: the object store was closed: open it again")
        return store or self._open()

    def _open(self) -> ObjectStore:
        opened = self._connect()
        with self._lock:
            if self._inner is None:
                self._inner = opened
            kept, is_closed = self._inner, self._is_closed
        if kept is not opened or is_closed:
            opened.close()
        return kept


SIDE_RETRIES: Final = RetryPolicy(attempt_count_max=4, wait_ms_max=2_000, deadline_ms=15_000)
"""Retries of each store of a mirror: shorter than usual, as the other store can answer."""

_SERVERS: Final = ("endpoint", "base.url", "account.name")
"""Settings that distinguish servers."""


def open_mirrored(
    url: str,
    second_url: str,
    *,
    settings: Mapping[str, GivenValue],
    second_settings: Mapping[str, GivenValue],
    clock: Clock | None = None,
    in_sync: InSyncFlag | None = None,
    must_exist: bool = False,
    second_must_exist: bool = False,
    table: MetricTable | None = None,
) -> MirroredObjectStore:
    """The mirror of two stores; nothing is sent to them before the first operation.

    Raises InvalidRequest or InvalidSetting for a URL or settings that are wrong, and for a second
    store that is the first, or a part of it. Directories that must exist are not created. `table`
    collects the metrics of both stores.
    """
    first = open_lazily(url, settings, must_exist=must_exist)
    second = open_lazily(second_url, second_settings, must_exist=second_must_exist)
    is_one_server = all(settings.get(name) == second_settings.get(name) for name in _SERVERS)
    if is_one_server and _overlap(first.name, second.name):
        raise InvalidSetting(
            f"{second.name} cannot be the mirror of {first.name}: one is the other or a part of "
            "it; give an independent store"
        )
    return MirroredObjectStore(
        RetryingObjectStore(MeteredObjectStore(first, table=table), policy=SIDE_RETRIES),
        RetryingObjectStore(MeteredObjectStore(second, table=table), policy=SIDE_RETRIES),
        clock=clock,
        in_sync=in_sync,
    )


def _overlap(first: str, second: str) -> bool:
    short, long = sorted((f"{first}/", f"{second}/"), key=len)
    return long.startswith(short) and not short.startswith("memory:")
