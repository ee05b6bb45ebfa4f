"""Where manifests are kept: what varve.tier.metadata names.

Built in are `object` (beside the segments) and `topic` (__remote_log_metadata). Other names are
looked up in the entry point group `varve.manifest_stores`; an entry point is a function that gets
these `ManifestStores` and a path, and returns the ManifestStore of that partition.
"""

import random
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final

from varve.foundation.errors import InvalidSetting
from varve.object_store import ObjectStore
from varve.tiering.manifest.pages import PageCache
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore
from varve.tiering.metadata.topic import MetadataTopic
from varve.tiering.metadata.topic_manifest_store import TopicManifestStore
from varve.tiering.settings import TierSettings

ENTRY_POINTS: Final = "varve.manifest_stores"
_BUILT_IN: Final = ("object", "topic")


class ManifestStores:
    """Opens the manifest store of each partition of one tier.

    `wait` sleeps for so many milliseconds. `topic` is needed for `topic` alone.
    """

    def __init__(
        self,
        backend: str,
        objects: ObjectStore,
        *,
        random: random.Random,
        wait: Callable[[float], object],
        settings: TierSettings,
        topic: MetadataTopic | None = None,
    ) -> None:
        self.objects = objects
        self.random = random
        self.wait = wait
        self.settings = settings
        self._topic = topic
        self._pages = PageCache()
        self._plugin = None if backend in _BUILT_IN else _load_plugin(backend)
        if backend == "topic" and topic is None:
            raise InvalidSetting(
                "varve.tier.metadata is topic, but this store has no topic "
                "__remote_log_metadata: use object"
            )

    def open(self, path: RemotePath) -> ManifestStore:
        if self._plugin is not None:
            return self._plugin(self, path)
        if self._topic is not None:
            return TopicManifestStore(self._topic, self.objects, path)
        return ObjectManifestStore(
            self.objects,
            path,
            random=self.random,
            wait=self.wait,
            cache=self._pages,
            grace_ms=self.settings.varve_tier_grace_ms,
        )


Plugin = Callable[[ManifestStores, RemotePath], ManifestStore]


def _load_plugin(name: str) -> Plugin:
    points = entry_points(group=ENTRY_POINTS)
    for point in points:
        if point.name == name:
            plugin: Plugin = point.load()
            return plugin
    known = ", ".join((*_BUILT_IN, *sorted(points.names)))
    raise InvalidSetting(
        f"varve.tier.metadata: {name!r:.80} is not known, only {known}; a package adds others by "
        f"entry points of group {ENTRY_POINTS}"
    )
