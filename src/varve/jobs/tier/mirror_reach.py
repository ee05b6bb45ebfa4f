"""A cold tier that a second object store mirrors, reached from any process.

Invariant  what is written and deleted through it reaches both stores, or it raises.
Threads    any; `_lock` guards the stores that are open.
"""

import random
import threading
from dataclasses import dataclass

from varve.foundation.settings import GivenValue
from varve.jobs.tier.address import TierAddress
from varve.object_store import ObjectStore, open_mirrored
from varve.object_store.s3_versions import S3Versions, open_versions
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore

_lock = threading.Lock()
_open: dict["MirrorReach", ObjectStore] = {}  # guarded by _lock; a process talks to few stores


@dataclass(frozen=True, slots=True)
class MirrorReach:
    """By the addresses of both: for any process."""

    address: TierAddress
    mirror_url: str
    mirror_settings: tuple[tuple[str, GivenValue], ...] = ()

    def objects(self) -> ObjectStore:
        with _lock:
            if self not in _open:
                _open[self] = open_mirrored(
                    self.address.url,
                    self.mirror_url,
                    settings=dict(self.address.settings),
                    second_settings=dict(self.mirror_settings),
                    must_exist=True,
                    second_must_exist=True,
                )
            return _open[self]

    def manifests(self, home: RemotePath) -> ManifestStore:
        pause = threading.Event()
        return ObjectManifestStore(
            self.objects(),
            home,
            random=random.Random(),
            wait=lambda wait_ms: pause.wait(wait_ms / 1000),
        )

    def versions(self) -> list[S3Versions | None]:
        return [
            open_versions(self.address.url, dict(self.address.settings)),
            open_versions(self.mirror_url, dict(self.mirror_settings)),
        ]
