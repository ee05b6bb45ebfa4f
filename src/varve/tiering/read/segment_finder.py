"""The readable segments of one partition, by a manifest that is not older than some seconds.

Reading by an older manifest is safe, because the objects of a segment stay for a while after it was
replaced or expired.

Threads    any; one thread loads the manifest, the others continue with the one they have.
"""

import logging
import threading
from collections.abc import Iterator
from typing import Final

from varve.foundation.clock import Clock
from varve.foundation.errors import StoreUnavailable
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.manifest.store import ManifestStore

logger = logging.getLogger(__name__)

REFRESH_MS: Final = 30_000
"""How old a manifest may be that is read by."""


class SegmentFinder:
    """The readable segments of one partition."""

    def __init__(self, manifests: ManifestStore, *, clock: Clock, refresh_ms: int) -> None:
        self._manifests = manifests
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._loading = threading.Lock()
        self._kept: tuple[Manifest, int] | None = None  # with the time it was loaded at

    def refresh(self) -> Manifest:
        """The newest manifest, loaded now."""
        with self._loading:
            return self._load_locked()

    def _load_locked(self) -> Manifest:
        now_ms = self._clock.now_ms()
        manifest = self._manifests.load()
        self._kept = (manifest, now_ms)
        return manifest

    def manifest(self) -> Manifest:
        """The manifest kept, loaded again if it is too old and nobody else does so.

        What this process committed is seen at once: local segments go once it tells of their copy.
        """
        kept = self._kept
        if kept is None:
            return self.refresh()
        manifest, loaded_ms = kept
        known = self._manifests.find_known()
        if known is not None and known.version > manifest.version:
            manifest = known
            self._kept = (known, loaded_ms)
        now_ms = self._clock.now_ms()
        if now_ms - loaded_ms < self._refresh_ms or not self._loading.acquire(blocking=False):
            return manifest
        try:
            return self._load_locked()
        except StoreUnavailable as error:
            self._kept = (manifest, now_ms)
            logger.warning(
                "reading on by an older manifest, the newest cannot be loaded",
                extra={"partition": str(manifest.path), "error": str(error)},
            )
            return manifest
        finally:
            self._loading.release()

    def readable_from(self, manifest: Manifest, offset: int) -> Iterator[RemoteSegment]:
        """The readable segments that end at or behind an offset, in order."""
        segments = self._manifests.segments(manifest, from_offset=offset)
        return (segment for segment in segments if segment.is_readable)

    def find_by_time(self, manifest: Manifest, timestamp: int) -> RemoteSegment | None:
        return self._manifests.find_by_time(manifest, timestamp)
