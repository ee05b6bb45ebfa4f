"""The cold part of a partition that another process has open, for those who follow its files.

Invariant  changes nothing, neither locally nor in the store; indexes are kept in memory.
Threads    one; `close` ends those that read ahead.
"""

from collections.abc import Iterator
from typing import Final

from varve.cli.tier_access import open_manifests, open_tier
from varve.commit_log.directory_files import decode_partition_metadata
from varve.commit_log.log_reader import RemoteReadRequest
from varve.commit_log.names import PARTITION_METADATA_FILE, TopicPartition
from varve.disk import FileSystem
from varve.embedded.partition import columns_within, stored_records
from varve.embedded.stored_record import StoredRecord
from varve.embedded.tier_location import DEFAULT_METADATA, TIER_FILE, TierLocation, read_location
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Corrupt, InvalidRequest, OffsetOutOfRange
from varve.records import CommittedBatches
from varve.tiering.partition import get_remote_path
from varve.tiering.read.read_caches import ReadCaches
from varve.tiering.read.remote_log import RemoteLog
from varve.tiering.restore import read_cluster
from varve.tiering.settings import TierSettings

_READ_BYTES: Final = 1 << 20
_INDEX_BYTES: Final = 64 << 20


class RemotePart:
    """What a partition has before its first local segment; raises OffsetOutOfRange without any."""

    def __init__(
        self, fs: FileSystem, root: str, partition: TopicPartition, store_settings: list[str]
    ) -> None:
        self._partition = partition
        self._objects = open_tier(_find_location(fs, root, partition).url, store_settings)
        path = f"{root}/{partition}/{PARTITION_METADATA_FILE}"
        home = get_remote_path(
            partition, decode_partition_metadata(fs.read(path), path), read_cluster(fs, root)
        )
        settings = TierSettings(remote_log_index_file_cache_total_size_bytes=_INDEX_BYTES)
        self._caches = ReadCaches.open(self._objects, SystemClock(), settings)
        self._reader = RemoteLog(
            home,
            open_manifests(self._objects, home),
            self._caches,
            read_ahead_max_bytes=settings.varve_tier_read_ahead_max_bytes,
        )

    def find_time(self, timestamp: int, *, start: int, end: int) -> int:
        """The first offset in [start, end) that is not older than a time, else the end."""
        offset = self._reader.find_offset_by_time(timestamp, start_offset=start, end_offset=end)
        return end if offset is None else offset.offset

    def read(self, *, start: int, end: int) -> Iterator[StoredRecord]:
        """The records in [start, end), without control records."""
        offset = start
        while offset < end:
            run = self._reader.read(RemoteReadRequest(offset, end, _READ_BYTES))
            if run is None:
                raise Corrupt(
                    f"{self._partition}: offsets {offset} to {end - 1} are neither on the local "
                    "disk nor in the cold tier; `varve check --tier` tells more"
                )
            where = str(self._partition)
            batches = CommittedBatches(run.data, start_offset=offset, where=where)
            for batch in batches:
                wanted = columns_within(batch, start=start, end=end)
                yield from stored_records(wanted, self._partition.partition)
            offset = run.next_offset

    def close(self) -> None:
        self._caches.close()
        self._objects.close()


def _find_location(fs: FileSystem, root: str, partition: TopicPartition) -> TierLocation:
    place = read_location(fs, root)
    if place is None:
        raise OffsetOutOfRange(
            f"{partition}: its first records are neither on the local disk nor, as there is no "
            f"{TIER_FILE} in {root}, in the cold tier"
        )
    if place.metadata != DEFAULT_METADATA:
        raise InvalidRequest(
            f"{partition}: its first records are in the cold tier, whose manifests are kept as "
            f"varve.tier.metadata={place.metadata} says: read them without --follow, when no other "
            "process has the directory open"
        )
    return place
