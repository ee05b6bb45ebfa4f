"""Opens the tier of a store: its object store, the mirror, and where manifests are kept.

The modules of the tier are imported when it is opened, so a store without one does not load them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.commit_log import LogManager
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.embedded.store_settings import MIRROR_STORE_PREFIX, ParsedSettings
from varve.embedded.tier_location import (
    DEFAULT_METADATA,
    MirrorInSyncFile,
    TierLocation,
    find_location,
    recall_location,
    remember_location,
)
from varve.foundation.clock import Clock
from varve.foundation.errors import DirectoryOffline, InvalidSetting
from varve.foundation.metrics import MetricTable, declared_metrics

if TYPE_CHECKING:
    from varve.object_store import ObjectStore
    from varve.tiering.metadata.topic import MetadataTopic, TopicMaker
    from varve.tiering.tier import Tier


@dataclass(frozen=True, slots=True)
class TierOpening:
    """Opens the tier of a store; `objects` replaces the object store of its URL in tests."""

    logs: LogManager
    clock: Clock
    random: Random
    settings: ParsedSettings
    objects: "ObjectStore | None"

    @property
    def owns_objects(self) -> bool:
        """Whether the object store is opened here, so that it is closed with the tier."""
        return self.objects is None

    def prepare(self, maker: "TopicMaker") -> None:
        """Creates the metadata topic where one is used; raises InvalidSetting for a bad URL."""
        if self._find_location().metadata == "topic":
            from varve.tiering.metadata.topic import ensure_metadata_topic

            ensure_metadata_topic(maker, self.settings.metadata)

    def open(self, cleaner: LogCleaner) -> "Tier":
        """Opens the tier; raises StoreError when its object store cannot be opened."""
        from varve.object_store import metering
        from varve.tiering.tier import Tier

        table = MetricTable(declared_metrics(metering))
        location = self._find_location()
        live = [directory for directory in self.logs.directories if directory.failure is None]
        if not live:
            raise DirectoryOffline("no log directory is online to hold indexes of the remote tier")
        remembered = recall_location(
            self.logs.fs, [directory.path for directory in self.logs.directories]
        )
        return Tier(
            self.logs,
            self.objects
            or self._open_objects(
                location, remembered, [directory.path for directory in live], table
            ),
            cleaner=cleaner,
            clock=self.clock,
            random=self.random,
            settings=self.settings.tier,
            cache_directory=f"{live[0].path}/{REMOTE_INDEX_CACHE_DIRECTORY}",
            backend=location.metadata,
            metadata_topic=self._open_metadata_topic() if location.metadata == "topic" else None,
            before_first_copy=lambda: self._remember(location, is_new=remembered is None),
            may_be_new=remembered is None,
            store_metrics=table,
        )

    def _open_objects(
        self,
        location: TierLocation,
        remembered: TierLocation | None,
        directories: Sequence[str],
        table: MetricTable,
    ) -> "ObjectStore":
        """A remembered store may hold copies: its directory must exist and is never created."""
        from varve.object_store import (
            DirectoryObjectStore,
            MeteredObjectStore,
            RetryingObjectStore,
            open_mirrored,
            open_object_store,
        )
        from varve.object_store.opening import split_directory

        if location.mirror:
            return open_mirrored(
                location.url,
                location.mirror,
                settings=self.settings.tier_store,
                second_settings=self.settings.mirror_store,
                clock=self.clock,
                in_sync=MirrorInSyncFile(
                    self.logs.fs, directories, url=location.url, mirror=location.mirror
                ),
                must_exist=remembered is not None,
                second_must_exist=remembered is not None and bool(remembered.mirror),
                table=table,
            )
        if self.settings.mirror_store:
            names = (f"{MIRROR_STORE_PREFIX}{name}" for name in self.settings.mirror_store)
            raise InvalidSetting(
                f"{', '.join(names)} given, but the tier at {location.url} has no mirror: set "
                "varve.tier.mirror.url"
            )
        store: ObjectStore
        if remembered is None and not self.settings.tier.varve_tier_url:
            # Another store may still be named, so the default directory waits for the first copy.
            store = DirectoryObjectStore(split_directory(location.url), is_created_late=True)
        else:
            store = open_object_store(
                location.url, self.settings.tier_store, must_exist=remembered is not None
            )
        # Below the retries, so that every attempt is counted as the provider bills it.
        return RetryingObjectStore(MeteredObjectStore(store, table=table))

    def _find_location(self) -> TierLocation:
        settings = self.settings.tier
        if self.objects is not None:
            return TierLocation("", settings.varve_tier_metadata or DEFAULT_METADATA)
        return find_location(
            self.logs.fs,
            self.logs.directories,
            url=settings.varve_tier_url,
            metadata=settings.varve_tier_metadata,
            mirror=settings.varve_tier_mirror_url,
        )

    def _remember(self, location: TierLocation, *, is_new: bool) -> None:
        from varve.object_store import DirectoryObjectStore
        from varve.object_store.opening import find_scheme, split_directory

        if is_new and find_scheme(location.url) == "file":
            # A directory that is remembered must exist.
            DirectoryObjectStore(split_directory(location.url))
        if location.url:
            remember_location(self.logs.fs, self.logs.directories, location)

    def _open_metadata_topic(self) -> "MetadataTopic":
        from varve.tiering.metadata.topic import MetadataTopic

        return MetadataTopic(
            self.logs,
            partition_count=self.settings.metadata.remote_log_metadata_topic_num_partitions,
            custom_bytes_max=self.settings.metadata.remote_log_metadata_custom_metadata_max_bytes,
        )
