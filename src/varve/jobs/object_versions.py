"""Versions that a bucket keeps of removed objects: deleted for good.

Invariant  only versions of objects that no longer exist are deleted, and their delete markers
           after them: deleting a marker first would bring the object back. All objects of a removed
           segment are meant, its indexes too: they hold keys or hashes.
Crash      may be run again: what is left is found by the list of versions.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from varve.foundation.errors import StoreDenied, StoreError, StoreUnsupported
from varve.jobs.tier.reach import TierReach
from varve.object_store.s3_versions import ObjectVersion, S3Versions
from varve.tiering.copy.segment_upload import LOG_PART
from varve.tiering.manifest.paths import RemotePath

IsKey = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ErasedVersions:
    """What went, and sentences about what did not.

    `is_asked` is False where a store does not tell of versions.
    """

    removed: tuple[ObjectVersion, ...] = ()
    out_of_reach: tuple[str, ...] = ()
    is_asked: bool = True

    def to_json(self) -> list[dict[str, object]]:
        return [one.to_json() for one in self.removed]


def erase_versions(
    versions: S3Versions, prefix: str, *, is_removed: IsKey, is_data: IsKey
) -> ErasedVersions:
    """Removes the versions of removed objects below a prefix, and tells of those of other data."""
    where = f"{versions.name}/{prefix}"
    try:
        listed = list(versions.find(prefix))
    except (StoreDenied, StoreUnsupported) as error:
        return ErasedVersions(out_of_reach=(_tell_refusal(where, error),))
    there = {one.key for one in listed if one.is_latest and not one.is_marker}
    going = [one for one in listed if one.key not in there and is_removed(one.key)]
    removed, refusals = _delete(versions, going)
    known = set(going)
    left = [
        one
        for one in listed
        if is_data(one.key) and not (one.is_marker or one.is_latest or one in known)
    ]
    told = [_tell_refusal(where, next(iter(refusals.values())))] if refusals else []
    if left:
        told.append(
            f"{where}: the bucket keeps {len(left)} older versions of objects that others removed "
            "or replaced before. They were not looked into: let a rule of the bucket's remove them."
        )
    return ErasedVersions(tuple(removed), tuple(told))


def _delete(
    versions: S3Versions, going: Sequence[ObjectVersion]
) -> tuple[list[ObjectVersion], dict[str, StoreError]]:
    """What went, and by key what was refused; the marker of such an object stays."""
    removed: list[ObjectVersion] = []
    refusals: dict[str, StoreError] = {}
    for one in sorted(going, key=lambda one: one.is_marker):
        if one.is_marker and one.key in refusals:
            continue
        try:
            versions.delete(one)
            removed.append(one)
        except (StoreDenied, StoreUnsupported) as error:
            refusals.setdefault(one.key, error)
    return removed, refusals


def _tell_refusal(where: str, error: StoreError) -> str:
    return (
        f"{where}: the bucket may keep versions of removed objects, which could not be removed "
        f"({error}): remove them there, or let a rule of the bucket's do it."
    )


def erase_remote_versions(
    reach: TierReach, partitions: Sequence[RemotePath], keys: Collection[str]
) -> ErasedVersions:
    """Of all objects of segments that were removed, told by the keys of their log objects."""
    folders = {folder_of(one) for one in keys}
    done = [
        ErasedVersions(is_asked=False)
        if one is None
        else erase_versions(
            one,
            partition.segment_folder,
            is_removed=lambda key: folder_of(key) in folders,
            is_data=lambda key: key.endswith(f"/{LOG_PART}"),
        )
        for one in reach.versions()
        for partition in partitions
    ]
    return ErasedVersions(
        tuple(version for one in done for version in one.removed),
        tuple(told for one in done for told in one.out_of_reach),
        all(one.is_asked for one in done),
    )


def folder_of(key: str) -> str:
    """Where the objects of a segment are, by the key of one."""
    return key.rpartition("/")[0]
