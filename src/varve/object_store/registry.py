"""From a URL to an object store, by scheme; further schemes are added by name.

The schemes of `register` live in this module, as there is one set of them per process; those of
installed packages are looked up in the entry point group `varve.object_stores` when first wanted.

Threads    any; `_lock` guards the registered openers.
"""

import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from varve.foundation.errors import InvalidRequest, StoreUnavailable
from varve.foundation.settings import GivenValue
from varve.object_store.azure import AzureObjectStore, AzureSettings
from varve.object_store.directory import DirectoryObjectStore
from varve.object_store.gcs import GcsObjectStore, GcsSettings
from varve.object_store.http_settings import parse_http_settings
from varve.object_store.lazy import LazyObjectStore
from varve.object_store.memory import MemoryObjectStore
from varve.object_store.object_store import ObjectStore
from varve.object_store.retrying import RetryPolicy
from varve.object_store.s3 import OPEN_RETRIES, S3ObjectStore, S3Settings
from varve.object_store.urls import find_scheme, split_bucket, split_directory

_SCHEME: Final = re.compile(r"[a-z][a-z0-9]*")

ENTRY_POINTS: Final = "varve.object_stores"

Opener = Callable[[str, Mapping[str, GivenValue]], ObjectStore]
"""Makes a store from its URL and settings; raises InvalidRequest or InvalidSetting for bad ones."""

_lock = threading.Lock()
_registered: dict[str, Opener] = {}  # guarded by _lock


class _Prepared(NamedTuple):
    """A store whose URL and settings are good, and that was not asked for anything.

    `connect` asks what is to be known before the store is used, again and again if told how.
    """

    name: str
    connect: Callable[[RetryPolicy | None], ObjectStore]


def open_object_store(
    url: str, settings: Mapping[str, GivenValue] | None = None, *, must_exist: bool = False
) -> ObjectStore:
    """The store that a URL names: file:, memory:, s3:, gs:, az:, or one registered.

    A directory is made if missing, or StoreUnavailable where it `must_exist`.
    """
    scheme = find_scheme(url)
    prepare = _find_built_in(scheme, must_exist=must_exist)
    if prepare is not None:
        return prepare(url, settings or {}).connect(OPEN_RETRIES)
    return _get_opener(scheme)(url, settings or {})


def open_lazily(
    url: str, settings: Mapping[str, GivenValue] | None = None, *, must_exist: bool = False
) -> ObjectStore:
    """The store that a URL names, which is asked for nothing before its first request.

    A URL or settings that are wrong raise at once. A registered store is opened at once, and where
    that is unavailable again at its first request.
    """
    given = settings or {}
    scheme = find_scheme(url)
    prepare = _find_built_in(scheme, must_exist=must_exist)
    if prepare is not None:
        prepared = prepare(url, given)
        return LazyObjectStore(prepared.name, partial(prepared.connect, None))
    opener = _get_opener(scheme)
    try:
        return opener(url, given)
    except StoreUnavailable:
        parts = urlsplit(url)
        name = f"{scheme}:{f'//{parts.hostname}' if parts.hostname else ''}{parts.path}"
        return LazyObjectStore(name, partial(opener, url, given))


def _get_opener(scheme: str) -> Opener:
    opener = _find_opener(scheme)
    if opener is None:
        with _lock:
            known = ", ".join(f"{name}:" for name in (*_BUILT_IN, *sorted(_registered)))
        # The URL itself is not shown: a mistaken one may hold a secret.
        raise InvalidRequest(
            f"the URL of an object store begins with one of {known}, this one with {scheme!r}; "
            "a directory is written file:/path; others come by `register` or by a package with "
            f"entry points of group {ENTRY_POINTS}"
        )
    return opener


def register(scheme: str, opener: Opener) -> None:
    """Let URLs of a scheme be opened by `opener`; a scheme of varve's own cannot be replaced."""
    if scheme in _BUILT_IN or not _SCHEME.fullmatch(scheme):
        raise InvalidRequest(
            f"object store scheme {scheme!r} cannot be registered: it must be of small letters and "
            f"digits and none of {', '.join(_BUILT_IN)}"
        )
    with _lock:
        _registered[scheme] = opener


def _find_opener(scheme: str) -> Opener | None:
    with _lock:
        opener = _registered.get(scheme)
    if opener is None and scheme:
        for point in entry_points(group=ENTRY_POINTS, name=scheme):
            loaded: Opener = point.load()
            return loaded
    return opener


def _prepare_directory(
    url: str, settings: Mapping[str, GivenValue], *, must_exist: bool = False
) -> _Prepared:
    root = split_directory(url)
    _refuse_settings("file:", settings)
    return _Prepared(f"file://{root}", lambda _: DirectoryObjectStore(root, must_exist=must_exist))


def _prepare_memory(url: str, settings: Mapping[str, GivenValue]) -> _Prepared:
    _refuse_settings("memory:", settings)
    return _made(MemoryObjectStore(url))


def _prepare_s3(url: str, settings: Mapping[str, GivenValue]) -> _Prepared:
    bucket, prefix = split_bucket(url)
    store = S3ObjectStore(bucket, prefix, settings=parse_http_settings(S3Settings, settings, url))

    def connect(retries: RetryPolicy | None) -> ObjectStore:
        store.check_conditional_put(retries)
        return store

    return _Prepared(store.name, connect)


def _prepare_gcs(url: str, settings: Mapping[str, GivenValue]) -> _Prepared:
    bucket, prefix = split_bucket(url)
    given = parse_http_settings(GcsSettings, settings, url)
    return _made(GcsObjectStore(bucket, prefix, settings=given))


def _prepare_azure(url: str, settings: Mapping[str, GivenValue]) -> _Prepared:
    container, prefix = split_bucket(url)
    given = parse_http_settings(AzureSettings, settings, url)
    return _made(AzureObjectStore(container, prefix, settings=given))


def _made(store: ObjectStore) -> _Prepared:
    """A store whose making asks nobody."""
    return _Prepared(store.name, lambda _: store)


_Preparer = Callable[[str, Mapping[str, GivenValue]], _Prepared]

_BUILT_IN: Final[Mapping[str, _Preparer]] = {
    "file": _prepare_directory,
    "memory": _prepare_memory,
    "s3": _prepare_s3,
    "gs": _prepare_gcs,
    "az": _prepare_azure,
}


def _find_built_in(scheme: str, *, must_exist: bool) -> "_Preparer | None":
    if scheme == "file":
        return partial(_prepare_directory, must_exist=must_exist)
    return _BUILT_IN.get(scheme)


def _refuse_settings(scheme: str, settings: Mapping[str, GivenValue]) -> None:
    if settings:
        raise InvalidRequest(
            f"a {scheme} object store has no settings, but was given {', '.join(sorted(settings))}"
        )
