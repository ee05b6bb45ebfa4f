"""Tiered logs whose topic settings, or whose cluster id, are lost.

The table of topics says which topics are tiered. Where a topic is in no table, its removal log
still shows that segments were evicted to object storage. The objects of a partition are named by
its cluster: a new cluster id would find nothing.

Invariant  reads only.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress

from varve.cleaning.removals.removal import RemovalKind
from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE, read_removal_log
from varve.commit_log.names import (
    LOG,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    DirectoryState,
    TopicPartition,
    parse_file_name,
    parse_partition_directory,
)
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.disk import FileSystem
from varve.embedded.tier_place import read_place
from varve.embedded.topic_table import TOPICS_FILE
from varve.foundation.errors import InconsistentClusterId, StoreError


def find_lost_settings(
    fs: FileSystem, directories: Sequence[str], known: Collection[str]
) -> frozenset[str]:
    """The topics that are not among the known ones and have a part in the cold tier.

    A directory that cannot be read, or a file in it, tells of none: who opens it says why.
    """
    lost: set[str] = set()
    for directory in directories:
        with suppress(OSError, StoreError):
            starts = _read_starts(fs, directory)
            for entry in fs.scan(directory):
                partition = _find_partition(entry.name) if entry.is_directory else None
                if partition is None or partition.topic in known or partition.topic in lost:
                    continue
                path = f"{directory}/{entry.name}"
                if _has_remote_part(fs, path, starts.get(partition)):
                    lost.add(partition.topic)
    return frozenset(lost)


def lost_settings_message(topic: str) -> str:
    """The remedy for such a topic."""
    return (
        f"the settings of {topic} are lost, {TOPICS_FILE} does not have it; a part of it is in the "
        "cold tier, where it is still read, and nothing of it expires: give its settings again "
        f"with `varve log configure {topic} remote.storage.enable=true NAME=VALUE ...`"
    )


def _find_partition(name: str) -> TopicPartition | None:
    with suppress(StoreError):
        directory = parse_partition_directory(name)
        return directory.topic_partition if directory.state is DirectoryState.ACTIVE else None
    return None


def _read_starts(fs: FileSystem, directory: str) -> dict[TopicPartition, int]:
    path = f"{directory}/{LOG_START_OFFSET_FILE}"
    return decode_offsets(fs.read(path), where=path) if fs.exists(path) else {}


def _has_remote_part(fs: FileSystem, directory: str, log_start: int | None) -> bool:
    """Whether the local part begins where segments left it, and the log starts before that."""
    if not fs.exists(f"{directory}/{REMOVAL_LOG_FILE}"):
        return False
    entries = read_removal_log(fs, directory).entries
    moved = [
        removal_entry.removal
        for removal_entry in entries
        if removal_entry.removal.kind is RemovalKind.EVICTION
    ]
    names = [parse_file_name(entry.name) for entry in fs.scan(directory)]
    bases = [name.offset for name in names if name and name.kind == LOG and not name.state]
    if not moved or not bases:
        return False
    first = min(bases)
    return moved[-1].end_offset >= first and (log_start is None or log_start < first)


def check_cluster_id_known(fs: FileSystem, directories: Sequence[str]) -> None:
    """Raises InconsistentClusterId where logs have a cold tier and no directory has the cluster id.

    What cannot be read is passed over: who opens the directory says why.
    """
    if any(fs.exists(f"{directory}/{META_PROPERTIES_FILE}") for directory in directories):
        return
    for directory in directories:
        place = None
        with suppress(OSError):
            if any(entry.is_directory for entry in fs.scan(directory)):
                place = read_place(fs, directory)
        if place is not None:
            raise InconsistentClusterId(
                f"{directory}/{META_PROPERTIES_FILE} is missing, and its cluster.id names the "
                f"objects of the cold tier: the folder at the top of {place.url} has that name; "
                "recreate the file with the lines version=1, node.id=1 and cluster.id=NAME"
            )
