"""Where manifests are kept, by name; further backends are added by name.

What `register_backend` adds lives in this module, as there is one set per process; backends of
installed packages are looked up in the entry point group `varve.manifest_stores` when first wanted.

Threads    any; `_lock` guards the registered backends.
"""

import random
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final

from varve.foundation.errors import InvalidRequest, InvalidSetting
from varve.object_store import ObjectStore
from varve.tiering.manifest.pages import PageCache
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore
from varve.tiering.metadata.topic import MetadataTopic
from varve.tiering.metadata.topic_manifest_store import TopicManifestStore
from varve.tiering.settings import TierSettings

ENTRY_POINTS: Final = "varve.manifest_stores"

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendContext:
    """What the backends of one open store share.

    `wait` sleeps for so many milliseconds. `metadata_topic` gives the store's own one, which it
    makes when it is first asked for.
    """

    objects: ObjectStore
    random: random.Random
    wait: Callable[[float], object]
    metadata_topic: Callable[[], MetadataTopic]
    settings: TierSettings = field(default_factory=TierSettings)
    pages: PageCache = field(default_factory=PageCache)


Backend = Callable[[BackendContext, RemotePath], ManifestStore]
"""Gives the ManifestStore of a partition; called once for each."""

_lock = threading.Lock()
_registered: dict[str, Backend] = {}  # guarded by _lock


def open_backend(name: str) -> Backend:
    """The backend that varve.tier.metadata names: object, topic, or one registered."""
    backend = _BUILT_IN.get(name) or _find_backend(name)
    if backend is None:
        with _lock:
            known = ", ".join((*_BUILT_IN, *sorted(_registered)))
        raise InvalidSetting(
            f"varve.tier.metadata: {name!r:.80} is not known, only {known}; others come by "
            f"`register_backend` or by a package with entry points of group {ENTRY_POINTS}"
        )
    return backend


def register_backend(name: str, backend: Backend) -> None:
    """Let varve.tier.metadata name a backend; one of varve's own cannot be replaced."""
    if name in _BUILT_IN or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"manifest backend {name!r:.80} cannot be registered: its name must be of small "
            f"letters, digits, '-' and '_', and none of {', '.join(_BUILT_IN)}"
        )
    with _lock:
        _registered[name] = backend


def _find_backend(name: str) -> Backend | None:
    with _lock:
        backend = _registered.get(name)
    if backend is None and name:
        for point in entry_points(group=ENTRY_POINTS, name=name):
            loaded: Backend = point.load()
            return loaded
    return backend


def _open_object(context: BackendContext, home: RemotePath) -> ManifestStore:
    return ObjectManifestStore(
        context.objects,
        home,
        random=context.random,
        wait=context.wait,
        cache=context.pages,
        grace_ms=context.settings.varve_tier_grace_ms,
    )


def _open_topic(context: BackendContext, home: RemotePath) -> ManifestStore:
    return TopicManifestStore(context.metadata_topic(), context.objects, home)


_BUILT_IN: Final[Mapping[str, Backend]] = {"object": _open_object, "topic": _open_topic}
