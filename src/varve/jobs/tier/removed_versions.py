"""Older versions of removed objects, which a bucket with versioning keeps: taken away for good.

Invariant  only versions of objects that are not there any more go, and the markers of their
           deletion behind them: a marker that went first would bring the object back.
Crash      may be run again: what is left is found by the list of versions.
"""

from collections.abc import Callable
from dataclasses import dataclass

from varve.foundation.errors import StoreDenied, StoreUnsupported
from varve.object_store.s3_versions import ObjectVersion, S3Versions

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
    removed: list[ObjectVersion] = []
    where = f"{versions.name}/{prefix}"
    try:
        listed = list(versions.find(prefix))
        there = {one.key for one in listed if one.is_latest and not one.is_marker}
        gone = [one for one in listed if one.key not in there]
        for one in sorted(gone, key=lambda one: one.is_marker):
            if is_removed(one.key):
                versions.delete(one)
                removed.append(one)
    except (StoreDenied, StoreUnsupported) as error:
        told = (
            f"{where}: the bucket may keep versions of removed objects, which could not be removed "
            f"({error}): remove them there, or let a rule of the bucket's do it."
        )
        return ErasedVersions(tuple(removed), (told,))
    known = set(removed)
    left = [
        one
        for one in listed
        if is_data(one.key) and not (one.is_marker or one.is_latest or one in known)
    ]
    if not left:
        return ErasedVersions(tuple(removed))
    told = (
        f"{where}: the bucket keeps {len(left)} older versions of objects that others removed or "
        "replaced before. They were not looked into: let a rule of the bucket's remove them."
    )
    return ErasedVersions(tuple(removed), (told,))
