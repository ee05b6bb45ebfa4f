"""Checks log directories: the owner in meta.properties, the checkpoints, and every partition.

Invariant  a check never writes. It holds the directory's lock, so that no owner changes the files
           meanwhile; without the lock a finding may already be outdated.
"""

import contextlib
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from varve.commit_log.check.findings import Finding, FindingList, Severity
from varve.commit_log.check.partition import (
    PartitionCheck,
    PartitionContext,
    PartitionFacts,
)
from varve.commit_log.directory_files import decode_meta_properties, encode_topic_id
from varve.commit_log.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    CLUSTER_METADATA_DIRECTORY,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    LOCK_FILE,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    REMOTE_INDEX_CACHE_DIRECTORY,
    DirectoryState,
    TopicPartition,
    parse_file_name,
    parse_partition_directory,
)
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt

_BEYOND_END: Final = {
    RECOVERY_POINT_FILE: (
        Severity.ERROR,
        "recovery-point-beyond-end",
        ": synced records are missing",
    ),
    LOG_START_OFFSET_FILE: (
        Severity.ERROR,
        "log-start-beyond-end",
        ": the next open would drop all of it",
    ),
    HIGH_WATERMARK_FILE: (Severity.WARNING, "high-watermark-beyond-end", ""),
    CLEANER_OFFSET_FILE: (Severity.WARNING, "cleaner-offset-beyond-end", ""),
}
"""For an offset beyond the log end, by checkpoint: severity, rule and consequence."""
CHECKPOINT_FILES: Final = tuple(_BEYOND_END)
NOT_PARTITIONS: Final = (CLUSTER_METADATA_DIRECTORY, REMOTE_INDEX_CACHE_DIRECTORY)
REWRITE: Final = "rewrite the file from the partitions"

Offsets = dict[TopicPartition, int]


@dataclass(slots=True)
class DirectoryFacts:
    """The result of checking a log directory."""

    path: str
    findings: list[Finding]
    partitions: dict[TopicPartition, PartitionFacts]


class DirectoryCheck:
    """One check of one log directory."""

    def __init__(self, fs: FileSystem, path: str, context: PartitionContext) -> None:
        self._fs = fs
        self._path = path
        self._context = context
        self._findings = FindingList()

    def run(self, only: TopicPartition | None = None) -> DirectoryFacts:
        """Checks all partitions, or only one and its entries in the checkpoints."""
        self._check_metadata()
        offsets = {name: self._read_offsets(name) for name in CHECKPOINT_FILES}
        clean = self._fs.exists(f"{self._path}/{CLEAN_SHUTDOWN_FILE}")
        partitions: dict[TopicPartition, PartitionFacts] = {}
        for partition in self._find_partitions():
            if only is None or partition == only:
                context = self._partition_context(partition, offsets, clean=clean)
                directory = f"{self._path}/{partition}"
                partitions[partition] = PartitionCheck(self._fs, directory, context).run()
        for name, checkpoint in offsets.items():
            self._check_offsets(name, checkpoint or {}, partitions, is_all=only is None)
        self._check_topic_ids(partitions)
        findings = self._findings.all()
        for facts in partitions.values():
            findings += facts.findings
        return DirectoryFacts(self._path, findings, partitions)

    def _partition_context(
        self,
        partition: TopicPartition,
        offsets: Mapping[str, Offsets | None],
        *,
        clean: bool,
    ) -> PartitionContext:
        """An unreadable checkpoint counts as empty, as it does at the next open."""
        start = (offsets[LOG_START_OFFSET_FILE] or {}).get(partition, 0)
        return replace(
            self._context,
            clean=clean,
            recovery_point=(offsets[RECOVERY_POINT_FILE] or {}).get(partition, 0),
            log_start_offset=max(start, 0),
            high_watermark=(offsets[HIGH_WATERMARK_FILE] or {}).get(partition),
        )

    def _check_metadata(self) -> None:
        path = f"{self._path}/{META_PROPERTIES_FILE}"
        try:
            decode_meta_properties(self._fs.read(path), where=path)
        except FileNotFoundError:
            message = "missing: the owner of the directory is unknown; the next open writes it"
            self._findings.warning(path, "missing-meta-properties", message)
        except Corrupt as error:
            repair = "keep the readable lines, generate the others"
            self._findings.add_corrupt(path, "meta-properties-corrupt", error, repair=repair)

    def _read_offsets(self, name: str) -> Offsets | None:
        path = f"{self._path}/{name}"
        try:
            return decode_offsets(self._fs.read(path), where=path)
        except FileNotFoundError:
            return {}
        except Corrupt as error:
            self._findings.add_corrupt(path, "checkpoint-corrupt", error, repair=REWRITE)
            return None

    def _find_partitions(self) -> list[TopicPartition]:
        partitions = []
        for entry in self._fs.scan(self._path):
            if not entry.is_directory or entry.name in NOT_PARTITIONS:
                continue
            path = f"{self._path}/{entry.name}"
            try:
                directory = parse_partition_directory(entry.name)
            except Corrupt:
                message = "not named like a partition; Kafka and varve refuse to open the directory"
                self._findings.error(path, "foreign-directory", message)
                continue
            if directory.state is DirectoryState.ACTIVE:
                partitions.append(directory.topic_partition)
            else:
                rule = f"{directory.state}-partition"
                self._findings.note(path, rule, f"a partition set aside: {directory.state}")
        return partitions

    def _check_offsets(
        self,
        name: str,
        offsets: Offsets,
        partitions: Mapping[TopicPartition, PartitionFacts],
        *,
        is_all: bool,
    ) -> None:
        path = f"{self._path}/{name}"
        for partition, offset in sorted(offsets.items()):
            facts = partitions.get(partition)
            if facts is None:
                if is_all:
                    message = f"names {partition}, which is not in this directory"
                    self._findings.note(path, "checkpoint-unknown-partition", message)
                continue
            if offset < 0:
                message = f"{partition} has offset {offset}"
                self._findings.error(path, "checkpoint-range", message, repair=REWRITE)
            elif offset > facts.end_offset:
                severity, rule, effect = _BEYOND_END[name]
                message = f"{partition} has offset {offset}, its log ends at {facts.end_offset}"
                self._findings.add(severity, path, rule, message + effect, repair=REWRITE)

    def _check_topic_ids(self, partitions: Mapping[TopicPartition, PartitionFacts]) -> None:
        first: dict[str, tuple[TopicPartition, PartitionFacts]] = {}
        for partition, facts in sorted(partitions.items()):
            if facts.topic_id is None:
                continue
            first_partition, first_facts = first.setdefault(partition.topic, (partition, facts))
            if first_facts.topic_id not in (None, facts.topic_id):
                assert first_facts.topic_id is not None
                message = f"topic id {encode_topic_id(facts.topic_id)}, that of {first_partition}"
                message += f" is {encode_topic_id(first_facts.topic_id)}"
                self._findings.error(facts.directory, "topic-id-differs", message)


_OWN_FILES = (META_PROPERTIES_FILE, LOCK_FILE, *CHECKPOINT_FILES)


def inspect_directory(fs: FileSystem, path: str, context: PartitionContext) -> DirectoryFacts:
    """Checks a log directory and every partition in it, for callers that hold its lock."""
    return DirectoryCheck(fs, path.rstrip("/") or "/", context).run()


def inspect_partition(fs: FileSystem, directory: str, context: PartitionContext) -> DirectoryFacts:
    """Checks one partition with its log directory, or alone if it is not in one."""
    directory = directory.rstrip("/")
    parent = posixpath.dirname(directory) or "."
    partition = find_partition(directory)
    if partition is not None and is_log_directory(fs, parent):
        return DirectoryCheck(fs, parent, context).run(only=partition)
    facts = PartitionCheck(fs, directory, context).run()
    name = partition or TopicPartition(posixpath.basename(directory), 0)
    return DirectoryFacts(parent, facts.findings, {name: facts})


def find_partition(directory: str) -> TopicPartition | None:
    """The partition that a directory's name gives; None unless it is an active partition."""
    try:
        parsed = parse_partition_directory(posixpath.basename(directory.rstrip("/")))
    except Corrupt:
        return None
    return parsed.topic_partition if parsed.state is DirectoryState.ACTIVE else None


def is_log_directory(fs: FileSystem, path: str) -> bool:
    """Whether the directory has a file that only log directories have."""
    return any(fs.exists(f"{path}/{name}") for name in _OWN_FILES)


def is_partition_directory(fs: FileSystem, path: str) -> bool:
    """Whether a directory holds a partition's files rather than partitions."""
    if is_log_directory(fs, path):
        return False
    return any(
        parse_file_name(name) is not None or name in (PARTITION_METADATA_FILE, LEADER_EPOCH_FILE)
        for name in fs.names(path)
    )


@contextlib.contextmanager
def hold_lock(fs: FileSystem, log_directory: str, *, wanted: bool = True) -> Iterator[None]:
    """Holds the directory's lock during the block, unless `wanted` is False or no lock file exists.

    Raises Locked when an owner holds it.
    """
    path = f"{log_directory}/{LOCK_FILE}"
    if not wanted or not fs.exists(path):
        yield
        return
    lock = fs.lock(path)
    try:
        yield
    finally:
        lock.release()
