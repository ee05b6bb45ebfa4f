"""A bucket by a store that is open: for this process alone."""

from dataclasses import dataclass, field
from random import Random

from varve.object_store import ObjectStore
from varve.object_store.s3_versions import S3Versions
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """A BucketAccess over any store; its manifests do not wait."""

    store: ObjectStore
    random: Random = field(default_factory=Random)

    def objects(self) -> ObjectStore:
        return self.store

    def manifests(self, home: RemotePath) -> ManifestStore:
        return ObjectManifestStore(self.store, home, random=self.random, wait=lambda wait_ms: None)

    def versions(self) -> list[S3Versions | None]:
        return [None]
