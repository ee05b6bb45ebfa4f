"""What an erasure could not reach, in sentences: a receipt says it as plainly as what was done."""

import os
from collections.abc import Sequence

from varve.commit_log.names import DirectoryState, parse_partition_directory
from varve.foundation.errors import Corrupt
from varve.jobs.erase.places import ErasedStore, Places, TopicPlace
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.rescan import RescanMode
from varve.jobs.outputs.erased_rows import ErasedOutput
from varve.jobs.tier.removed_versions import ErasedVersions


def tell_out_of_reach(
    places: Places,
    topics: Sequence[TopicPlace],
    request: ErasureRequest,
    *,
    unread: int,
    outputs: Sequence[ErasedOutput],
    is_versioned: bool,
    versions: ErasedVersions,
) -> list[str]:
    """Each sentence once, the particular ones first."""
    told = [
        *(one for output in outputs for one in output.out_of_reach),
        *(one for topic in topics for one in topic.outputs.out_of_reach),
        *_tell_request(request, unread, has_outputs=any(one.outputs.copies for one in topics)),
        *_tell_places(places, topics),
        *_tell_versions(places, versions, is_versioned=is_versioned),
        "Temporary files of jobs that were killed on other machines: the next job there that "
        "rewrites or verifies segments removes them.",
        "Consumers, and what they made of records that they had read before; checkpoints of "
        "streaming queries among it.",
    ]
    return list(dict.fromkeys(told))


def _tell_request(request: ErasureRequest, unread: int, *, has_outputs: bool) -> list[str]:
    told = []
    if request.field is not None:
        told.append("Headers of records: a field is looked for in keys and values alone.")
        if unread:
            told.append(f"{unread} values that could not be read as JSON.")
        if has_outputs:
            told.append(
                "Rows of snapshots and tables whose records had left the log before: without a key "
                "these are found by their offsets alone."
            )
    if request.rescan is RescanMode.KEYS:
        told.append(
            "Data of live segments was not read again where their key indexes rule the keys out."
        )
    return told


def _tell_aside(hot: ErasedStore) -> list[str]:
    """What lies in and beside the log directories and is of no log."""
    told = []
    for directory in hot.directories:
        folders = [one for one in hot.fs.names(directory) if _is_aside(one)]
        if folders:
            told.append(f"{directory}: {', '.join(folders)}, which are no longer logs of a topic.")
        aside = (f"{os.path.dirname(directory)}/varve-quarantine", f"{directory}.staging")
        for path in aside:
            if hot.fs.exists(path):
                told.append(f"{path}: what a repair or a write that was cut has left aside.")
    return told


def _is_aside(name: str) -> bool:
    try:
        return parse_partition_directory(name).state is not DirectoryState.ACTIVE
    except Corrupt:
        return False


def _tell_versions(places: Places, versions: ErasedVersions, *, is_versioned: bool) -> list[str]:
    """What a bucket keeps, where it was not asked for it or did not let it go."""
    told = list(versions.out_of_reach)
    if places.tier is None or versions.is_asked:
        return told
    if is_versioned:
        return [
            *told,
            "The bucket keeps versions: those of the deleted objects are named above. Delete them "
            "there, or let a rule of the bucket's do it.",
        ]
    return [
        *told,
        "Versions that the bucket keeps of deleted objects, where versioning or a retention lock "
        "is on: they go with a rule of the bucket's.",
    ]


def _tell_places(places: Places, topics: Sequence[TopicPlace]) -> list[str]:
    told = []
    if places.hot is None:
        told.append(
            "Log directories of servers: none was given. A segment that is copied later may bring "
            "records back, and snapshots and tables may be noted there alone, of the time before "
            "the topic came to the bucket; erase there as well."
        )
    else:
        told.append("Backups and file system snapshots of the log directories.")
        told += _tell_aside(places.hot)
        missing = [one.name for one in topics if not one.logs]
        if missing:
            told.append(f"Local logs of {', '.join(missing)}: the log directory has none of them.")
    if places.tier is None:
        told.append("Object storage: none was given.")
    else:
        told.append("Mirrors, replicas and backups of the bucket that this store does not know of.")
    return told
