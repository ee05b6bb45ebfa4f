"""The record ids that deduplicated partitions remember, on disk: where, and when they are valid.

Layout     `<log directory>.dedup/<topic id>-<partition>/` with the ids, and beside it a state file
           of the same name with `.json`: `format`, `rules` in words, `secret` as 32 hexadecimal
           digits, and `boot`, the boot id of the machine while the ids are open, empty once they
           are closed. docs/reference/formats/dedup-ids.md
Invariant  ids are used only under the rules they were written with, and only if the log cannot have
           lost a record that they remember: they were closed, or the machine has not been restarted
           since. Only directories with a state file are removed: others may belong to the
           processor of `varve dedup`.
Crash      a state file is written to a temporary file that is renamed. An unreadable one counts
           as missing: the ids are rebuilt.
"""

import logging
import posixpath
import random
import threading
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from varve.broker.topics import ServedTopic
from varve.commit_log import Log
from varve.dedup.directories import STATE_FILE_SUFFIX, remove_state, state_root
from varve.dedup.rules import DedupRules
from varve.disk import FileSystem, JsonDocument, RealFileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt
from varve.wire import NO_ID

if TYPE_CHECKING:
    from varve.dedup.ids import Secret
    from varve.rocks.database import Databases

logger = logging.getLogger(__name__)

SECRET_BYTES: Final = 16
_FORMAT: Final = JsonDocument(version=1)


class DedupEnvironment:
    """What all deduplicated partitions share: disk, clock, boot id and one database engine.

    While the boot id stays the same, a crash of the process loses no write. The engine is created
    at the first use, in any thread: most servers never need one.
    """

    def __init__(
        self,
        *,
        file_system: FileSystem,
        clock: Clock,
        random: random.Random,
        boot_id: str,
    ) -> None:
        self.file_system = file_system
        self.clock = clock
        self.random = random
        self.boot_id = boot_id
        self._lock = threading.Lock()
        self._databases: Databases | None = None  # guarded by _lock

    def databases(self) -> "Databases":
        """The engine, with one memory budget for all partitions."""
        with self._lock:
            if self._databases is None:
                self._databases = self._make_databases()
            return self._databases

    def _make_databases(self) -> "Databases":
        """On disk; in memory if the logs are."""
        # A server without deduplicated topics loads neither engine.
        if isinstance(self.file_system, RealFileSystem):
            from varve.rocks.database import RocksDatabases

            return RocksDatabases()
        from varve.rocks.memory_database import MemoryDatabases

        return MemoryDatabases(self.file_system)


# Directories


def state_name(topic: ServedTopic, partition: int) -> str:
    """The directory name of a partition; by topic id, which a recreated topic does not share."""
    return f"{topic.name if topic.id == NO_ID else topic.id}-{partition}"


def state_directory(topic: ServedTopic, log: Log) -> str:
    root = state_root(posixpath.dirname(log.directory))
    return f"{root}/{state_name(topic, log.topic_partition.partition)}"


def remove_unused_state(
    file_system: FileSystem, roots: Iterable[str], used: Collection[str]
) -> None:
    """Removes the ids of all partitions that are not in use; logs what cannot be removed."""
    for root in roots:
        names = file_system.names(root) if file_system.exists(root) else []
        for name in names:
            stem = name.removesuffix(STATE_FILE_SUFFIX)
            if not name.endswith(STATE_FILE_SUFFIX) or stem in used:
                continue
            extra = {"directory": f"{root}/{stem}"}
            try:
                remove_state(file_system, f"{root}/{stem}")
            except OSError as error:
                extra["error"] = str(error)
                logger.error("unused dedup ids were not removed", extra=extra)
            else:
                logger.info("unused dedup ids removed", extra=extra)


# State files


@dataclass(frozen=True, slots=True)
class DedupStateFile:
    """The content of the state file of a partition's ids."""

    rules: str
    secret: str
    boot: str

    @property
    def secret_words(self) -> "Secret":
        data = bytes.fromhex(self.secret)
        return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")

    def allows(self, rules: DedupRules, boot_id: str) -> bool:
        """Whether the ids may be used under these rules, in this boot of the machine."""
        return self.rules == describe_rules(rules) and self.boot in ("", boot_id)


def describe_rules(rules: DedupRules) -> str:
    """All rules that decide what is remembered, and for how long."""
    return f"{rules.fingerprint()}, {rules.lateness_ms} ms late"


def find_state_file(file_system: FileSystem, path: str) -> DedupStateFile | None:
    """None where there is none that can be read."""
    try:
        fields = _FORMAT.read(file_system, path)
        if fields is None:
            return None
        state = DedupStateFile(**fields)
        is_text = all(isinstance(text, str) for text in (state.rules, state.secret, state.boot))
        if not is_text or len(bytes.fromhex(state.secret)) != SECRET_BYTES:
            raise ValueError("rules or boot is not a text, or secret not of 16 bytes")
    except (OSError, ValueError, TypeError, Corrupt) as error:
        logger.warning("unreadable dedup state file", extra={"path": path, "error": str(error)})
        return None
    return state


def write_state_file(file_system: FileSystem, path: str, state: DedupStateFile) -> None:
    """Durable on return; raises OSError."""
    _FORMAT.write(file_system, path, asdict(state))
