"""The chain of a partition's manifest versions in an object store.

Layout     `manifest/<20-digit version>.json`, and `manifest/hint` with the number of a version that
           was the newest some time ago. docs/formats/manifest.md
Invariant  a version is created once and never changed. Versions are counted from 1 without holes;
           what stands below a hole is left over, never read.
Crash      a version is there whole or not at all. The hint may be old, missing or wrong: it only
           says where to begin looking.
Threads    any: holds nothing but its collaborators.
"""

import logging
from typing import Final

from varve.foundation.errors import Corrupt, ObjectNotFound, Unavailable
from varve.object_store import ObjectStore
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.manifest import Manifest
from varve.tiering.manifest_json import decode_manifest, encode_manifest

logger = logging.getLogger(__name__)

HINT_INTERVAL: Final = 16
"""Every so many versions the hint is written: a listing from it stays short."""


class ManifestVersions:
    """Reads, lists and creates versions; decides nothing."""

    def __init__(self, objects: ObjectStore, home: ColdPartition) -> None:
        self.home = home
        self._objects = objects

    def read(self, version: int) -> Manifest:
        """Raises ObjectNotFound when the version is not there, Corrupt when it is damaged."""
        key = self.home.manifest_key(version)
        manifest = decode_manifest(self._objects.get(key), where=f"{self._objects.name}: {key}")
        if manifest.version != version or manifest.home != self.home:
            raise Corrupt(
                f"{self._objects.name}: {key} holds version {manifest.version} of {manifest.home} "
                f"({manifest.topic_id}): the object was moved; restore it"
            )
        return manifest

    def find(self, version: int) -> Manifest | None:
        try:
            return self.read(version)
        except ObjectNotFound:
            return None

    def create(self, manifest: Manifest) -> None:
        """Writes a version; raises ObjectExists when it is there."""
        self._objects.create(self.home.manifest_key(manifest.version), encode_manifest(manifest))

    def list_after(self, version: int) -> list[int]:
        """All versions there are above this one, ascending."""
        listed = self._objects.list(
            self.home.manifest_folder, start_after=self.home.manifest_key(version)
        )
        found = (self.home.find_version(entry.key) for entry in listed)
        return [number for number in found if number is not None]

    def list_retained(self) -> tuple[list[int], list[int]]:
        """The versions up to the newest without a hole; and those left over below."""
        versions = self.list_after(0)
        first = len(versions) - 1
        while first > 0 and versions[first - 1] == versions[first] - 1:
            first -= 1
        return versions[max(first, 0) :], versions[: max(first, 0)]

    def find_newest(self, *, known: int | None) -> int:
        """The newest version, 0 when there is none; `known` is one that was there once.

        Raises Unavailable when a list without any version is contradicted by one that can be read:
        a partition would otherwise be taken for one that was never copied.
        """
        start = self.read_hint() if known is None else known
        versions = self.list_after(start - 1) if start > 0 else []
        if not versions:
            versions = self.list_after(0)
        if not versions and start > 0 and self.find(start) is not None:
            raise Unavailable(
                f"{self._objects.name}: the list of {self.home.manifest_folder} shows no version, "
                f"but version {start} is there: the store lists wrongly; try again, and if it "
                "stays, look for a proxy in between"
            )
        return versions[-1] if versions else 0

    def write_hint(self, version: int) -> None:
        """Notes a recent version, from time to time; without it the first listing is longer."""
        # The first one is noted too: who reads from a mirror cannot tell a hint that never was from
        # one that it lacks.
        if version % HINT_INTERVAL and version != 1:
            return
        try:
            self._objects.put(self.home.hint_key, b"%d\n" % version)
        except Unavailable as error:
            logger.debug(
                "manifest hint not written",
                extra={"partition": str(self.home), "version": version, "error": str(error)},
            )

    def remove(self, versions: list[int]) -> None:
        self._objects.delete([self.home.manifest_key(version) for version in versions])

    def read_hint(self) -> int:
        """A version that was there once, if the hint is right; 0 without one."""
        try:
            text = self._objects.get(self.home.hint_key)
        except ObjectNotFound:
            return 0
        digits = text.strip()
        return int(digits) if digits.isdigit() and len(digits) < 20 else 0
