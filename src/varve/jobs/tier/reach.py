"""How the parts of a job, wherever they run, come to the objects and manifests of a cold tier.

Invariant  a reach that travels to other processes opens what it needs there.
"""

import random
from dataclasses import dataclass
from typing import Protocol

from varve.jobs.tier.address import TierAddress, open_manifests
from varve.object_store import ObjectStore
from varve.object_store.s3_versions import S3Versions, open_versions
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore


class TierReach(Protocol):
    """What a task needs of the cold tier."""

    def objects(self) -> ObjectStore: ...
    def manifests(self, home: RemotePath) -> ManifestStore: ...

    def versions(self) -> list[S3Versions | None]:
        """Of each store behind it the versions that it keeps; None where they cannot be asked."""


@dataclass(frozen=True, slots=True)
class AddressReach:
    """By an address: for any process."""

    address: TierAddress

    def objects(self) -> ObjectStore:
        return self.address.open()

    def manifests(self, home: RemotePath) -> ManifestStore:
        return open_manifests(self.address, home)

    def versions(self) -> list[S3Versions | None]:
        return [open_versions(self.address.url, dict(self.address.settings))]


@dataclass(frozen=True, slots=True)
class StoreReach:
    """By a store that is open: for this process alone."""

    store: ObjectStore
    random: random.Random

    def objects(self) -> ObjectStore:
        return self.store

    def manifests(self, home: RemotePath) -> ManifestStore:
        return ObjectManifestStore(self.store, home, random=self.random, wait=lambda wait_ms: None)

    def versions(self) -> list[S3Versions | None]:
        return [None]
