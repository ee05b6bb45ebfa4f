"""Where the ids of partitions lie on disk, and the end of those that nobody needs.

Layout     `<log directory>.dedup/<topic id>-<partition>/`, and a note beside it of the same name
           with `.json` behind. docs/formats/dedup-ids.md
Invariant  only what has a note is removed: directories of the processor may lie beside.
"""

import logging
import posixpath
from collections.abc import Collection, Iterable
from typing import Final

from varve.broker.topics import ServedTopic
from varve.commit_log import Log
from varve.disk import FileSystem
from varve.wire import NO_ID

logger = logging.getLogger(__name__)

NOTE_SUFFIX: Final = ".json"
_STATE_SUFFIX: Final = ".dedup"


def state_root(log_directory: str) -> str:
    """Where the ids of a log directory's partitions lie."""
    return log_directory + _STATE_SUFFIX


def state_name(topic: ServedTopic, partition: int) -> str:
    """The name of a partition's ids; by the topic's id, which no later topic of its name has."""
    return f"{topic.name if topic.id == NO_ID else topic.id}-{partition}"


def state_directory(topic: ServedTopic, log: Log) -> str:
    root = state_root(posixpath.dirname(log.directory))
    return f"{root}/{state_name(topic, log.topic_partition.partition)}"


def remove_state(file_system: FileSystem, directory: str) -> None:
    """Removes ids and note, the note last: by it the rest is known. Raises OSError."""
    if file_system.exists(directory):
        file_system.remove_tree(directory)
    if file_system.exists(directory + NOTE_SUFFIX):
        file_system.remove(directory + NOTE_SUFFIX)


def sweep(file_system: FileSystem, roots: Iterable[str], known: Collection[str]) -> None:
    """Removes the ids of all partitions but the known; what cannot be removed is logged."""
    for root in roots:
        names = file_system.names(root) if file_system.exists(root) else []
        stems = [name.removesuffix(NOTE_SUFFIX) for name in names if name.endswith(NOTE_SUFFIX)]
        for stem in stems:
            if stem not in known:
                _try_remove(file_system, f"{root}/{stem}")


def _try_remove(file_system: FileSystem, directory: str) -> None:
    try:
        remove_state(file_system, directory)
    except OSError as error:
        logger.error(
            "ids that nobody needs were not removed",
            extra={"directory": directory, "error": str(error)},
        )
    else:
        logger.info("ids removed", extra={"directory": directory})
