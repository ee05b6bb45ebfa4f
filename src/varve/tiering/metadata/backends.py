"""The backends that store manifests, selected by varve.tier.metadata.

Built-in backends are `object` (beside the segments) and `topic` (__remote_log_metadata). Other
names are looked up in the entry point group `varve.manifest_stores`; an entry point is a function
that gets these `ManifestStores` and a path, and returns the ManifestStore of that partition.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import InvalidRequest, InvalidSetting
from varve.foundation.plugins import PluginRegistry
from varve.object_store import ObjectStore
from varve.tiering.manifest.pages import PageCache
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore
from varve.tiering.settings import TierSettings

if TYPE_CHECKING:
    from varve.tiering.metadata.topic import MetadataTopic

Plugin = Callable[["ManifestStores", RemotePath], ManifestStore]


def _open_in_objects(stores: "ManifestStores", path: RemotePath) -> ManifestStore:
    return ObjectManifestStore(
        stores.objects,
        path,
        random=stores.random,
        wait=stores.wait,
        cache=stores.pages,
        grace_ms=stores.settings.varve_tier_grace_ms,
    )


def _open_in_topic(stores: "ManifestStores", path: RemotePath) -> ManifestStore:
    # Kafka's messages take a moment to compile: only tiers with this backend load them.
    from varve.tiering.metadata.topic_manifest_store import TopicManifestStore

    assert stores.topic is not None
    return TopicManifestStore(stores.topic, stores.objects, path)


BACKENDS: Final[PluginRegistry[Plugin]] = PluginRegistry(
    kind="varve.tier.metadata",
    group="varve.manifest_stores",
    built_in={"object": _open_in_objects, "topic": _open_in_topic},
)


class ManifestStores:
    """Opens the manifest store of each partition of one tier.

    `wait` sleeps for milliseconds. `topic` is required by the backend `topic`.
    """

    def __init__(
        self,
        backend: str,
        objects: ObjectStore,
        *,
        random: random.Random,
        wait: Callable[[float], object],
        settings: TierSettings,
        topic: "MetadataTopic | None" = None,
    ) -> None:
        self.objects = objects
        self.random = random
        self.wait = wait
        self.settings = settings
        self.topic = topic
        self.pages = PageCache()
        try:
            self._plugin = BACKENDS.get(backend)
        except InvalidRequest as error:
            raise InvalidSetting(str(error)) from error
        if backend == "topic" and topic is None:
            raise InvalidSetting(
                "varve.tier.metadata is topic, but this store has no topic "
                "__remote_log_metadata: use object"
            )

    def open(self, path: RemotePath) -> ManifestStore:
        return self._plugin(self, path)
