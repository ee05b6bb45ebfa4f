"""Deletes the noncurrent versions of removed objects from a versioned bucket.

Invariant  only versions of objects that no longer exist are deleted, and their delete markers
           last: deleting a marker first would restore the object. Versions of a removed segment's
           indexes are deleted too, because they contain keys or hashes of keys.
Crash      may be run again: the list of versions shows the remaining ones.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from varve.foundation.errors import StoreDenied, StoreError, StoreUnsupported
from varve.jobs.tier.bucket import BucketAccess
from varve.object_store.s3_versions import ObjectVersion, S3Versions
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import LOG_PART

IsKey = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ErasedVersions:
    """The deleted versions, and messages about versions that could not be deleted.

    `is_listed` is False if the store cannot list versions.
    """

    removed: tuple[ObjectVersion, ...] = ()
    out_of_reach: tuple[str, ...] = ()
    is_listed: bool = True

    @classmethod
    def join(cls, parts: Sequence["ErasedVersions"]) -> "ErasedVersions":
        return cls(
            tuple(version for part in parts for version in part.removed),
            tuple(message for part in parts for message in part.out_of_reach),
            all(part.is_listed for part in parts),
        )

    def to_json(self) -> list[dict[str, object]]:
        return [version.to_json() for version in self.removed]


def erase_versions(
    versions: S3Versions, prefix: str, *, is_removed: IsKey, is_data: IsKey
) -> ErasedVersions:
    """Deletes the versions of removed objects below a prefix; reports older versions of data."""
    where = f"{versions.name}/{prefix}"
    try:
        listed = list(versions.find(prefix))
    except (StoreDenied, StoreUnsupported) as error:
        return ErasedVersions(out_of_reach=(_describe_refusal(where, error),))
    existing = {version.key for version in listed if version.is_latest and not version.is_marker}
    selected = {
        version: None
        for version in listed
        if version.key not in existing and is_removed(version.key)
    }
    removed, refusals = _delete_versions(versions, list(selected))
    remaining = [
        version
        for version in listed
        if is_data(version.key)
        and not (version.is_marker or version.is_latest or version in selected)
    ]
    messages = [_describe_refusal(where, next(iter(refusals.values())))] if refusals else []
    if remaining:
        messages.append(
            f"{where}: the bucket keeps {len(remaining)} older versions of objects that were "
            "removed or replaced before. They were not read: delete them with a lifecycle rule of "
            "the bucket."
        )
    return ErasedVersions(tuple(removed), tuple(messages))


def _delete_versions(
    versions: S3Versions, selected: Sequence[ObjectVersion]
) -> tuple[list[ObjectVersion], dict[str, StoreError]]:
    """Returns the deleted versions, and errors by key; a key with an error keeps its marker."""
    removed: list[ObjectVersion] = []
    refusals: dict[str, StoreError] = {}
    for version in sorted(selected, key=lambda version: version.is_marker):
        if version.is_marker and version.key in refusals:
            continue
        try:
            versions.delete(version)
            removed.append(version)
        except (StoreDenied, StoreUnsupported) as error:
            refusals.setdefault(version.key, error)
    return removed, refusals


def _describe_refusal(where: str, error: StoreError) -> str:
    return (
        f"{where}: the bucket may keep versions of removed objects, which could not be deleted "
        f"({error}): delete them manually or with a lifecycle rule of the bucket."
    )


def erase_remote_versions(
    bucket: BucketAccess, partitions: Sequence[RemotePath], keys: Collection[str]
) -> ErasedVersions:
    """Deletes the versions of all objects of removed segments; `keys` name their log objects."""
    folders = {folder_of(key) for key in keys}
    return ErasedVersions.join(
        [
            _erase_segment_versions(versions, partition, folders)
            for versions in bucket.versions()
            for partition in partitions
        ]
    )


def _erase_segment_versions(
    versions: S3Versions | None, partition: RemotePath, folders: Collection[str]
) -> ErasedVersions:
    if versions is None:
        return ErasedVersions(is_listed=False)
    return erase_versions(
        versions,
        partition.segment_folder,
        is_removed=lambda key: folder_of(key) in folders,
        is_data=lambda key: key.endswith(f"/{LOG_PART}"),
    )


def folder_of(key: str) -> str:
    """The folder of a segment's objects, from the key of any of them."""
    return key.rpartition("/")[0]
