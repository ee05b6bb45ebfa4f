"""Versions that a bucket keeps of removed objects: deleted for good.

Invariant  only versions of objects that no longer exist are deleted, and their delete markers
           after them: deleting a marker first would bring the object back. All objects of a removed
           segment are meant, its indexes too: they hold keys or hashes.
Crash      may be run again: what is left is found by the list of versions.
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
    """What went, and sentences about what did not.

    `is_asked` is False where a store cannot list versions.
    """

    removed: tuple[ObjectVersion, ...] = ()
    out_of_reach: tuple[str, ...] = ()
    is_asked: bool = True

    def to_json(self) -> list[dict[str, object]]:
        return [version.to_json() for version in self.removed]


def erase_versions(
    versions: S3Versions, prefix: str, *, is_removed: IsKey, is_data: IsKey
) -> ErasedVersions:
    """Removes the versions of removed objects below a prefix, and reports those of other data."""
    where = f"{versions.name}/{prefix}"
    try:
        listed = list(versions.find(prefix))
    except (StoreDenied, StoreUnsupported) as error:
        return ErasedVersions(out_of_reach=(_describe_refusal(where, error),))
    there = {version.key for version in listed if version.is_latest and not version.is_marker}
    going = [version for version in listed if version.key not in there and is_removed(version.key)]
    removed, refusals = _delete(versions, going)
    known = set(going)
    left = [
        version
        for version in listed
        if is_data(version.key) and not (version.is_marker or version.is_latest or version in known)
    ]
    sentences = [_describe_refusal(where, next(iter(refusals.values())))] if refusals else []
    if left:
        sentences.append(
            f"{where}: the bucket keeps {len(left)} older versions of objects that others removed "
            "or replaced before. They were not read: let a rule of the bucket's remove them."
        )
    return ErasedVersions(tuple(removed), tuple(sentences))


def _delete(
    versions: S3Versions, going: Sequence[ObjectVersion]
) -> tuple[list[ObjectVersion], dict[str, StoreError]]:
    """What went, and by key what was refused; the marker of such an object stays."""
    removed: list[ObjectVersion] = []
    refusals: dict[str, StoreError] = {}
    for version in sorted(going, key=lambda version: version.is_marker):
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
        f"{where}: the bucket may keep versions of removed objects, which could not be removed "
        f"({error}): remove them there, or let a rule of the bucket's do it."
    )


def erase_remote_versions(
    bucket: BucketAccess, partitions: Sequence[RemotePath], keys: Collection[str]
) -> ErasedVersions:
    """Of all objects of removed segments, given the keys of their log objects."""
    folders = {folder_of(part) for part in keys}
    done = [
        _erase_of_segments(versions, partition, folders)
        for versions in bucket.versions()
        for partition in partitions
    ]
    return ErasedVersions(
        tuple(version for part in done for version in part.removed),
        tuple(sentence for part in done for sentence in part.out_of_reach),
        all(part.is_asked for part in done),
    )


def _erase_of_segments(
    versions: S3Versions | None, partition: RemotePath, folders: Collection[str]
) -> ErasedVersions:
    if versions is None:
        return ErasedVersions(is_asked=False)
    return erase_versions(
        versions,
        partition.segment_folder,
        is_removed=lambda key: folder_of(key) in folders,
        is_data=lambda key: key.endswith(f"/{LOG_PART}"),
    )


def folder_of(key: str) -> str:
    """Where the objects of a segment are, by the key of one."""
    return key.rpartition("/")[0]
