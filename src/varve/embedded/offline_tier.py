"""The remote tier of a log directory that is not opened: its topics, objects and manifests.

Invariant  reads only, of the local disk and of the object store. No log is opened and no lock is
           taken, so a store may have the directory open.
"""

from collections.abc import Mapping
from uuid import UUID

from varve.commit_log import TopicPartition
from varve.disk import FileSystem
from varve.embedded.tier_location import check_object_manifests, read_location
from varve.foundation.closing import Closing
from varve.foundation.errors import InvalidRequest
from varve.object_store import RetryingObjectStore, open_object_store
from varve.tiering.manifest.store import ObjectManifestStore, open_manifests
from varve.tiering.partition import get_remote_path
from varve.tiering.restore import read_cluster


class OfflineTier(Closing):
    """The object store of a log directory's remote tier.

    Raises InvalidRequest when the directory has no remote tier, or when its manifests are not in
    the object store.
    """

    def __init__(self, fs: FileSystem, directory: str, store_settings: Mapping[str, str]) -> None:
        location = read_location(fs, directory)
        if location is None:
            raise InvalidRequest(f"{directory} has no remote tier: nothing was copied from it")
        check_object_manifests(location, directory)
        self._cluster = read_cluster(fs, directory)
        self.objects = RetryingObjectStore(
            open_object_store(location.url, store_settings, must_exist=True)
        )

    def open_manifests(
        self, partition: TopicPartition, topic_id: UUID | None
    ) -> ObjectManifestStore:
        """The manifests of a partition; those of one that was never copied are empty."""
        return open_manifests(self.objects, get_remote_path(partition, topic_id, self._cluster))

    def close(self) -> None:
        self.objects.close()
