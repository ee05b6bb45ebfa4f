"""Opens the tier of a store: its object store, the mirror, and where manifests are kept.

What the tier imports is imported on opening, so that a store without one does not wait for it.

Layout     `varve-mirror-level` in every log directory that is online, with the URLs of both stores,
           while the mirror lacks nothing. Unless all of them have it the stores are compared.
Crash      removed durably from one directory at least before a write that leaves the mirror behind
           returns; see `varve.object_store.mirror`.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.commit_log import LogManager
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.disk import FileSystem, write_atomically
from varve.embedded.store_settings import MIRROR_STORE_PREFIX
from varve.embedded.tier_place import (
    DEFAULT_METADATA,
    TierPlace,
    find_place,
    recall_place,
    remember_place,
)
from varve.foundation.clock import Clock
from varve.foundation.errors import DirectoryOffline, InvalidSetting, Unavailable
from varve.foundation.metrics import MetricTable, declared_metrics
from varve.foundation.settings import GivenValue
from varve.tiering.settings import MetadataSettings, TierSettings

if TYPE_CHECKING:
    from varve.object_store import ObjectStore
    from varve.tiering.metadata.topic import MetadataTopic, TopicMaker
    from varve.tiering.tier import Tier


class TierOpening:
    """What it takes to open a store's tier.

    `objects` is given by tests; otherwise the URL tells, and `store_settings` go to its store,
    `mirror_settings` to the one that mirrors it.
    """

    def __init__(
        self,
        logs: LogManager,
        *,
        clock: Clock,
        random: Random,
        settings: TierSettings,
        metadata: MetadataSettings,
        store_settings: Mapping[str, GivenValue],
        mirror_settings: Mapping[str, GivenValue],
        objects: "ObjectStore | None",
        cleaner: Callable[[], LogCleaner],
    ) -> None:
        self.settings = settings
        self._logs = logs
        self._clock = clock
        self._random = random
        self._metadata = metadata
        self._store_settings = store_settings
        self._mirror_settings = mirror_settings
        self._objects = objects
        self._cleaner = cleaner
        self._store_metrics: MetricTable | None = None

    @property
    def owns_objects(self) -> bool:
        """Whether who opens the tier also closes its object store."""
        return self._objects is None

    def prepare(self, maker: "TopicMaker") -> None:
        """Makes what the tier needs of the store itself; raises InvalidSetting for a bad place."""
        if self._find_place().metadata == "topic":
            from varve.tiering.metadata.topic import ensure_metadata_topic

            ensure_metadata_topic(maker, self._metadata)

    def open(self) -> "Tier":
        """The tier, opened now; raises what keeps its object store from that."""
        from varve.object_store import metrics as store_metrics
        from varve.tiering.tier import Tier

        self._store_metrics = MetricTable(declared_metrics(store_metrics))
        place = self._find_place()
        live = [directory for directory in self._logs.directories if directory.failure is None]
        if not live:
            raise DirectoryOffline("no log directory is online to hold indexes of the cold tier")
        known = recall_place(self._logs.fs, self._logs.directories)
        return Tier(
            self._logs,
            self._objects
            or self._open_objects(place, known, [directory.path for directory in live]),
            cleaner=self._cleaner(),
            clock=self._clock,
            random=self._random,
            settings=self.settings,
            cache_directory=f"{live[0].path}/{REMOTE_INDEX_CACHE_DIRECTORY}",
            backend=place.metadata,
            metadata_topic=self._open_metadata_topic() if place.metadata == "topic" else None,
            before_first_copy=lambda: self._remember(place),
            may_be_new=known is None,
            store_metrics=self._store_metrics,
        )

    def _open_objects(
        self, place: TierPlace, known: TierPlace | None, directories: Sequence[str]
    ) -> "ObjectStore":
        """What was remembered may have been copied to: its directory is never created again."""
        from varve.object_store import (
            MeteredObjectStore,
            RetryingObjectStore,
            open_mirrored,
            open_object_store,
        )

        if place.mirror:
            return open_mirrored(
                place.url,
                place.mirror,
                settings=self._store_settings,
                second_settings=self._mirror_settings,
                clock=self._clock,
                in_sync=MirrorInSyncFile(
                    self._logs.fs, directories, url=place.url, mirror=place.mirror
                ),
                must_exist=known is not None,
                second_must_exist=known is not None and bool(known.mirror),
                table=self._store_metrics,
            )
        if self._mirror_settings:
            raise InvalidSetting(
                f"{', '.join(f'{MIRROR_STORE_PREFIX}{name}' for name in self._mirror_settings)} "
                f"given, but the cold tier at {place.url} has no mirror: set varve.tier.mirror.url"
            )
        store = open_object_store(place.url, self._store_settings, must_exist=known is not None)
        # Below the retries, so that every attempt is counted as the provider bills it.
        return RetryingObjectStore(MeteredObjectStore(store, table=self._store_metrics))

    def _find_place(self) -> TierPlace:
        settings = self.settings
        if self._objects is not None:
            return TierPlace("", settings.varve_tier_metadata or DEFAULT_METADATA)
        return find_place(
            self._logs.fs,
            self._logs.directories,
            url=settings.varve_tier_url,
            metadata=settings.varve_tier_metadata,
            mirror=settings.varve_tier_mirror_url,
        )

    def _remember(self, place: TierPlace) -> None:
        if place.url:
            remember_place(self._logs.fs, self._logs.directories, place)

    def _open_metadata_topic(self) -> "MetadataTopic":
        from varve.tiering.metadata.topic import MetadataTopic

        return MetadataTopic(
            self._logs,
            partition_count=self._metadata.remote_log_metadata_topic_num_partitions,
            custom_bytes_max=self._metadata.remote_log_metadata_custom_metadata_max_bytes,
        )


logger = logging.getLogger(__name__)

MARK_FILE: Final = "varve-mirror-level"


class MirrorInSyncFile:
    """An InSyncFlag in log directories, for two stores by their URLs."""

    def __init__(
        self, fs: FileSystem, directories: Sequence[str], *, url: str, mirror: str
    ) -> None:
        self._fs = fs
        self._directories = directories
        self._data = json.dumps({"url": url, "mirror": mirror}).encode() + b"\n"

    def is_set(self) -> bool:
        try:
            return all(
                self._fs.read(f"{directory}/{MARK_FILE}") == self._data
                for directory in self._directories
            )
        except OSError:
            return False

    def set(self) -> None:
        """Where that fails nothing is known, and the next to open compares the stores."""
        for directory in self._directories:
            try:
                write_atomically(self._fs, f"{directory}/{MARK_FILE}", self._data)
            except OSError as error:
                logger.warning(
                    "it cannot be remembered that the mirror of the cold tier lacks nothing",
                    extra={"directory": directory, "error": str(error)},
                )

    def clear(self) -> None:
        """Raises Unavailable where no directory can delete it."""
        failure: OSError | None = None
        for directory in self._directories:
            try:
                if self._fs.exists(f"{directory}/{MARK_FILE}"):
                    self._fs.remove(f"{directory}/{MARK_FILE}")
                self._fs.sync_directory(directory)
            except OSError as error:
                failure = error
            else:
                return
        raise Unavailable(
            f"{MARK_FILE} cannot be removed from {', '.join(self._directories)}: {failure}; the "
            "mirror of the cold tier is left behind, and who opens the store must know it: mend "
            "the disk"
        ) from failure
