"""The newest manifest of a partition, kept from one use to the next.

Invariant  what is kept was the newest at some time; it never goes back to an older version.
Threads    any: one lock, not held during I/O.
"""

import threading
from typing import Final

from varve.foundation.errors import Corrupt, Unavailable
from varve.tiering.manifest import Manifest
from varve.tiering.manifest_versions import ManifestVersions

_LOAD_ATTEMPTS: Final = 8


class NewestManifest:
    """Loads the newest version, and only when it is another than the one kept."""

    def __init__(self, versions: ManifestVersions) -> None:
        self._versions = versions
        self._lock = threading.Lock()
        self._kept: Manifest | None = None  # guarded by _lock

    def find_kept(self) -> Manifest | None:
        """The newest as far as known without asking the store."""
        with self._lock:
            return self._kept

    def keep(self, manifest: Manifest) -> None:
        with self._lock:
            if self._kept is None or manifest.version > self._kept.version:
                self._kept = manifest

    def load(self) -> Manifest:
        """The newest version there is now; an empty manifest of version 0 when there is none."""
        for _ in range(_LOAD_ATTEMPTS):
            kept = self.find_kept()
            version = self._versions.find_newest(known=kept.version if kept else None)
            if kept is not None and version <= kept.version:
                self._check_not_lost(kept, version)
                return kept
            if version == 0:
                return Manifest(home=self._versions.home)
            manifest = self._versions.find(version)
            if manifest is not None:
                self.keep(manifest)
                return manifest
        raise Unavailable(
            f"{self._versions.home}: {_LOAD_ATTEMPTS} times the newest manifest version was "
            "removed before it could be read: give versions a longer retention, then try again"
        )

    def _check_not_lost(self, kept: Manifest, version: int) -> None:
        # A version noted by another thread while we listed is newer than the listing: ask again.
        if version < kept.version and self._versions.find(kept.version) is None:
            raise Corrupt(
                f"{self._versions.home}: manifest version {kept.version} was there and now "
                f"{version} is the newest: somebody removed it; restore the object"
            )
