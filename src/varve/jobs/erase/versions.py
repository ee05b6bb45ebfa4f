"""Versions that buckets keep of what an erasure removed from the cold tier.

Invariant  all objects of a removed segment are meant, its indexes too: they hold keys or hashes.
"""

from collections.abc import Collection, Sequence

from varve.jobs.tier.reach import TierReach
from varve.jobs.tier.removed_versions import ErasedVersions, erase_versions
from varve.tiering.copy.segment_upload import LOG_PART
from varve.tiering.manifest.paths import RemotePath


def erase_tier_versions(
    reach: TierReach, homes: Sequence[RemotePath], keys: Collection[str]
) -> ErasedVersions:
    """Of all objects of segments that were removed, told by the keys of their log objects."""
    folders = {folder_of(one) for one in keys}
    done = [
        ErasedVersions(is_asked=False)
        if one is None
        else erase_versions(
            one,
            home.segment_folder,
            is_removed=lambda key: folder_of(key) in folders,
            is_data=lambda key: key.endswith(f"/{LOG_PART}"),
        )
        for one in reach.versions()
        for home in homes
    ]
    return ErasedVersions(
        tuple(version for one in done for version in one.removed),
        tuple(told for one in done for told in one.out_of_reach),
        all(one.is_asked for one in done),
    )


def folder_of(key: str) -> str:
    """Where the objects of a segment are, by the key of one."""
    return key.rpartition("/")[0]
