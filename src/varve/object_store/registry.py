"""From a URL to an object store, by scheme; further schemes are added by name.

The schemes of `register` live in this module, as there is one set of them per process; those of
installed packages are looked up in the entry point group `varve.object_stores` when first wanted.

Threads    any; `_lock` guards the registered openers.
"""

import re
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import GivenValue
from varve.object_store.azure import AzureObjectStore, AzureSettings
from varve.object_store.directory import DirectoryObjectStore
from varve.object_store.gcs import GcsObjectStore, GcsSettings
from varve.object_store.http_settings import parse_http_settings
from varve.object_store.keys import find_fault
from varve.object_store.memory import MemoryObjectStore
from varve.object_store.object_store import ObjectStore
from varve.object_store.s3 import S3ObjectStore, S3Settings

_SCHEME: Final = re.compile(r"[a-z][a-z0-9]*")

ENTRY_POINTS: Final = "varve.object_stores"

Opener = Callable[[str, Mapping[str, GivenValue]], ObjectStore]
"""Makes a store from its URL and settings; raises InvalidRequest or InvalidSetting for bad ones."""

_lock = threading.Lock()
_registered: dict[str, Opener] = {}  # guarded by _lock


def open_object_store(url: str, settings: Mapping[str, GivenValue] | None = None) -> ObjectStore:
    """The store that a URL names: file:, memory:, s3:, gs:, az:, or one registered."""
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    opener = _BUILT_IN.get(scheme) or _find_opener(scheme)
    if opener is None:
        with _lock:
            known = ", ".join(f"{name}:" for name in (*_BUILT_IN, *sorted(_registered)))
        # The URL itself is not shown: a mistaken one may hold a secret.
        raise InvalidRequest(
            f"the URL of an object store begins with one of {known}, this one with {scheme!r}; "
            "a directory is written file:/path; others come by `register` or by a package with "
            f"entry points of group {ENTRY_POINTS}"
        )
    return opener(url, settings or {})


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


def _open_directory(url: str, settings: Mapping[str, GivenValue]) -> ObjectStore:
    parts = _split(url)
    _refuse_settings("file:", settings)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise InvalidRequest(
            f"{url} names no directory of this machine: write file:/path or file:///path"
        )
    return DirectoryObjectStore(unquote(parts.path))


def _open_memory(url: str, settings: Mapping[str, GivenValue]) -> ObjectStore:
    _refuse_settings("memory:", settings)
    return MemoryObjectStore(url)


def _open_s3(url: str, settings: Mapping[str, GivenValue]) -> ObjectStore:
    bucket, prefix = _bucket_and_prefix(url)
    store = S3ObjectStore(bucket, prefix, settings=parse_http_settings(S3Settings, settings, url))
    store.check_conditional_put()
    return store


def _open_gcs(url: str, settings: Mapping[str, GivenValue]) -> ObjectStore:
    bucket, prefix = _bucket_and_prefix(url)
    return GcsObjectStore(bucket, prefix, settings=parse_http_settings(GcsSettings, settings, url))


def _open_azure(url: str, settings: Mapping[str, GivenValue]) -> ObjectStore:
    container, prefix = _bucket_and_prefix(url)
    given = parse_http_settings(AzureSettings, settings, url)
    return AzureObjectStore(container, prefix, settings=given)


_BUILT_IN: Final[Mapping[str, Opener]] = {
    "file": _open_directory,
    "memory": _open_memory,
    "s3": _open_s3,
    "gs": _open_gcs,
    "az": _open_azure,
}


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidRequest(
            f"a {parts.scheme}: URL of an object store takes no user, password, '?' or '#': "
            "credentials and options are settings"
        )
    return parts


def _bucket_and_prefix(url: str) -> tuple[str, str]:
    parts = _split(url)
    prefix = parts.path.strip("/")
    fault = find_fault(prefix) if prefix else None
    if not parts.netloc or fault is not None:
        raise InvalidRequest(
            f"{url} names no place in an object store: write {parts.scheme}://bucket/prefix"
            + (f"; its prefix {fault}" if fault else "")
        )
    return parts.netloc, prefix


def _refuse_settings(scheme: str, settings: Mapping[str, GivenValue]) -> None:
    if settings:
        raise InvalidRequest(
            f"a {scheme} object store has no settings, but was given {', '.join(sorted(settings))}"
        )
