"""Older versions of removed objects, which a bucket with versioning keeps: taken away for good.

Invariant  only versions of objects that are not there any more go, and the markers of their
           deletion behind them: a marker that went first would bring the object back.
Crash      may be run again: what is left is found by the list of versions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from varve.foundation.errors import StoreDenied, StoreError, StoreUnsupported
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
