"""Names of partitions, of their directories and of the files inside.

Layout     `<base offset, 20 digits><kind>[<state>]` for files; `<topic>-<partition>` or
           `<topic>-<partition>.<id>-<state>` for directories.
Invariant  every name built here is read back by the parser beside it to the same parts,
           except that a capped directory name has lost the end of its topic.
"""

import random
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from varve.foundation.errors import Corrupt, InvalidRequest

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
KEYS = ".keys"
SNAPSHOT = ".snapshot"

DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"

LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
OWN_PREFIX = "varve-"  # of files in a partition directory that Kafka does not know
APPEND_TIMES_FILE = OWN_PREFIX + "append-times"
SYNC_FAILED_FILE = OWN_PREFIX + "sync-failed"

LOCK_FILE = ".lock"
META_PROPERTIES_FILE = "meta.properties"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
REMOTE_INDEX_CACHE_DIRECTORY = "remote-log-index-cache"
CLUSTER_METADATA_DIRECTORY = "__cluster_metadata-0"

OFFSET_MAX = 2**63 - 1
PARTITION_MAX = 2**31 - 1
TOPIC_NAME_SIZE_MAX = 249
DIRECTORY_NAME_SIZE_MAX = 255

_SEGMENT_FILE = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.keys|\.snapshot)"
    r"(\.deleted|\.cleaned|\.swap)?"
)
_UNFINISHED_KEY_INDEX = re.compile(r"[0-9]{20}\.keys(\.cleaned)?\.(tmp|run)")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_MARKED_DIRECTORY = re.compile(r"(\S+-\S+)\.([^\s.]+)-(delete|future|stray)")
# No leading zeros: paths are built from the parsed number.
_PARTITION_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")


class SegmentFileName(NamedTuple):
    """The parts of a file name; `state` is empty, `.deleted`, `.cleaned` or `.swap`."""

    offset: int
    kind: str
    state: str


def log_name(base_offset: int, suffix: str = LOG) -> str:
    """The file name of a segment's part, e.g. `00000000000000000042.log`."""
    return f"{base_offset:020d}{suffix}"


def parse_file_name(name: str) -> SegmentFileName | None:
    """The parts of a segment's or snapshot's file name; None for every other file."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    digits, kind, state = match.groups()
    offset = int(digits)
    return SegmentFileName(offset, kind, state or "") if offset <= OFFSET_MAX else None


def is_unfinished_key_index(name: str) -> bool:
    """Whether a file belongs to a key index whose build was interrupted."""
    return _UNFINISHED_KEY_INDEX.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic; prints as its directory's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def validate_topic_name(name: str) -> None:
    """Raises InvalidRequest unless Kafka would accept the name."""
    if not isinstance(name, str):
        raise InvalidRequest(f"topic name {name!r:.80} is a {type(name).__name__}; give a str")
    if not name:
        raise InvalidRequest("the topic name is empty: choose one")
    if name in (".", ".."):
        raise InvalidRequest(f"topic name {name!r} is not allowed: choose another")
    if len(name) > TOPIC_NAME_SIZE_MAX:
        raise InvalidRequest(
            f"topic name {name[:32]!r}... has {len(name)} characters, the limit is "
            f"{TOPIC_NAME_SIZE_MAX}: shorten it"
        )
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"topic name {name!r} holds a character outside a-z, A-Z, 0-9, '.', '_' and '-': "
            "replace it"
        )


class DirectoryState(StrEnum):
    """The state of a partition's directory; only ACTIVE ones are served."""

    ACTIVE = ""
    DELETE = "delete"
    FUTURE = "future"
    STRAY = "stray"


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """The parts of a partition directory's name; `id` is None for an active one."""

    topic_partition: TopicPartition
    state: DirectoryState
    id: str | None


def parse_partition_directory(name: str) -> PartitionDirectory:
    """The parts of a partition directory's name; raises Corrupt for any other directory."""
    state, id, partition_name = DirectoryState.ACTIVE, None, name
    if name.endswith(("-delete", "-future", "-stray")):
        match = _MARKED_DIRECTORY.fullmatch(name)
        if match is None:
            raise _not_a_partition(name)
        partition_name, id, state = match[1], match[2], DirectoryState(match[3])
    topic, _, number = partition_name.rpartition("-")
    if not topic or _PARTITION_NUMBER.fullmatch(number) is None or int(number) > PARTITION_MAX:
        raise _not_a_partition(name)
    return PartitionDirectory(TopicPartition(topic, int(number)), state, id)


def _not_a_partition(name: str) -> Corrupt:
    return Corrupt(
        f"directory {name!r} is not named like a partition (topic-partition or "
        "topic-partition.id-delete|future|stray): move it out of the log directory"
    )


def random_directory_id(random: random.Random) -> str:
    """32 random hex digits that distinguish the marked directories of one partition."""
    return f"{random.getrandbits(128):032x}"


def delete_directory_name(topic_partition: TopicPartition, id: str) -> str:
    """The name of a directory that waits for deletion; the end of a long topic is cut off."""
    ending = f"-{topic_partition.partition}.{id}-{DirectoryState.DELETE}"
    return topic_partition.topic[: DIRECTORY_NAME_SIZE_MAX - len(ending)] + ending


def future_directory_name(topic_partition: TopicPartition, id: str) -> str:
    """The name of a copy being built; never cut, because it becomes the partition itself."""
    return f"{topic_partition}.{id}-{DirectoryState.FUTURE}"
