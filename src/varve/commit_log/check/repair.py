"""Repairs the findings of a check with the recovery that opening a log uses.

Layout     `<quarantine>/<partition>/<file>.cut-<position>`; a name in use gets `.1`, `.2`.
Invariant  data is removed only if that is allowed, and copied to the quarantine before. A data file
           is truncated, renamed or removed only from an allowed position, or if only zeros are
           lost. A partition whose repair is refused or fails keeps its files.
Crash      every step may be repeated: files are replaced atomically, recovery truncates and
           rebuilds. A copy and its name are synced before the original is touched.
"""

import contextlib
import posixpath
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from varve.commit_log.check.directory import CHECKPOINT_FILES, DirectoryFacts
from varve.commit_log.check.partition import NEEDS_PERMISSION, Loss, PartitionFacts
from varve.commit_log.directory_files import (
    DirectoryMetadata,
    decode_meta_properties,
    decode_properties,
    encode_meta_properties,
    encode_partition_metadata,
    encode_topic_id,
    random_topic_id,
)
from varve.commit_log.log_loader import LoadedLog, LoadRequest, LogLoader
from varve.commit_log.names import (
    CLEANER_OFFSET_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
)
from varve.commit_log.offset_checkpoints import (
    INT32_MAX,
    INT64_MAX,
    CheckpointLine,
    decode_offsets,
    encode_offsets,
)
from varve.commit_log.segment import SegmentFiles
from varve.commit_log.settings import LogSettings
from varve.disk import FileSystem, copy_range, write_atomically
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, StoreError


class Quarantine:
    """A directory beside the log directory for removed data; created when first needed."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def keep(self, path: str, *, position: int = 0) -> str:
        """Copies a file from a position to its end; returns the path of the copy."""
        parent, name = posixpath.split(path)
        directory = f"{self._path}/{posixpath.basename(parent)}"
        self._fs.make_directory(directory)
        target = self._free_name(f"{directory}/{name}.cut-{position}")
        with self._fs.open(path) as source, self._fs.open_writable(target) as copy:
            copy_range(source, copy, start=position, end=source.size())
            copy.sync()
        self._fs.sync_directory(directory)
        self._fs.sync_directory(self._path)
        return target

    def _free_name(self, path: str) -> str:
        name, number = path, 0
        while self._fs.exists(name):
            number += 1
            name = f"{path}.{number}"
        return name


_NEVER_MS: Final = 2**62
_NODE_ID: Final = 1
_LISTED_LOSSES_MAX: Final = 20


@dataclass(slots=True)
class RepairReport:
    """The repairs that were made, and those that were refused with the reason."""

    done: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTools:
    """Dependencies and options of a repair."""

    fs: FileSystem
    clock: Clock
    random: random.Random
    quarantine: Quarantine
    allow_data_loss: bool = False
    settings: LogSettings = field(default_factory=LogSettings)


def repair_directory(
    facts: DirectoryFacts, tools: RepairTools, *, has_own_files: bool = True
) -> RepairReport:
    """Repairs a checked log directory; the caller holds its lock.

    Without `has_own_files` the path is not a log directory, and only the partitions are repaired.
    """
    report = RepairReport()
    ends: dict[TopicPartition, int] = {}
    log_starts = _read_valid_lines(tools.fs, f"{facts.path}/{LOG_START_OFFSET_FILE}")
    for partition, checked in sorted(facts.partitions.items()):
        repair = _PartitionRepair(partition, checked, tools, report)
        repair.repair_topic_id(facts)
        start = min(max(log_starts.get(partition, 0), 0), checked.end_offset)
        end = repair.run(log_start_offset=start)
        if end is not None:
            ends[partition] = end
    if has_own_files:
        _repair_metadata(facts, tools, report)
        _repair_checkpoints(facts, ends, tools, report)
    return report


class _PartitionRepair:
    """The repair of one partition."""

    def __init__(
        self,
        partition: TopicPartition,
        facts: PartitionFacts,
        tools: RepairTools,
        report: RepairReport,
    ) -> None:
        self._partition = partition
        self._facts = facts
        self._tools = tools
        self._fs = tools.fs
        self._report = report

    def repair_topic_id(self, directory: DirectoryFacts) -> None:
        """Writes the topic id of another partition of the topic, if there is one."""
        facts, topic = self._facts, self._partition.topic
        if facts.topic_id is not None:
            return
        ids = {
            other.topic_id
            for partition, other in directory.partitions.items()
            if partition.topic == topic and other.topic_id is not None
        }
        path = f"{facts.directory}/{PARTITION_METADATA_FILE}"
        if len(ids) != 1:
            if any(f.rule == "partition-metadata-corrupt" for f in facts.findings):
                self._report.refused.append(f"{path}: no other partition has the topic's id")
            return
        topic_id = ids.pop()
        assert topic_id is not None
        write_atomically(self._fs, path, encode_partition_metadata(topic_id))
        self._report.done.append(f"{path}: topic id {encode_topic_id(topic_id)} rewritten")

    def run(self, *, log_start_offset: int) -> int | None:
        """Returns the log end offset after the repair; None if the partition was not changed."""
        facts, report = self._facts, self._report
        if all(finding.repair is None for finding in facts.findings):
            return facts.end_offset
        if facts.losses and not self._tools.allow_data_loss:
            report.refused.append(f"{facts.directory}: {_describe_losses(facts.losses)}")
            return None
        rules = {finding.rule for finding in facts.findings}
        if "offset-overflow" in rules and (facts.losses or "segments-overlap" in rules):
            # A split would create segments from damaged offsets.
            message = f"{facts.directory}: offsets are damaged beyond the range of their segment"
            report.refused.append(message)
            return None
        try:
            self._keep_losses()
            self._remove_files()
            self._write_epochs()
            loaded = self._load(log_start_offset)
        except (StoreError, OSError) as error:
            report.refused.append(f"{facts.directory}: {error}")
            return None
        report.done += [f"{facts.directory}: {message}" for message in loaded.recovered]
        report.done.append(f"{facts.directory}: recovered, indexes and producer state rebuilt")
        return loaded.active.next_offset

    def _keep_losses(self) -> None:
        for loss in self._facts.losses:
            kept = self._tools.quarantine.keep(loss.path, position=loss.position)
            self._report.done.append(
                f"{loss.path}: {loss.size} bytes from position {loss.position} on kept as {kept}"
            )

    def _remove_files(self) -> None:
        unfinished = [f.path for f in self._facts.findings if f.rule == "leftover-tmp"]
        for path in [*self._facts.bad_snapshots, *unfinished]:
            self._fs.remove(path)
            self._report.done.append(f"{path}: removed")

    def _write_epochs(self) -> None:
        facts = self._facts
        if facts.has_bad_epochs:
            path = f"{facts.directory}/{LEADER_EPOCH_FILE}"
            write_atomically(self._fs, path, facts.epochs.encode())
            self._report.done.append(f"{path}: rebuilt from the batches")

    def _load(self, log_start_offset: int) -> LoadedLog:
        """Recovers every segment and syncs the result."""
        request = LoadRequest(
            files=SegmentFiles(self._fs),
            directory=self._facts.directory,
            topic_partition=self._partition,
            settings=self._tools.settings,
            clock=self._tools.clock,
            random=self._tools.random,
            clean=False,
            recovery_point=0,
            log_start_offset=log_start_offset,
            producer_expiration_ms=_NEVER_MS,
            allowed_losses={loss.path: loss.position for loss in self._facts.losses},
        )
        loaded = LogLoader(request).load()
        loaded.active.close_indexes()
        # Recovery of a compacted segment writes one where its batches end, before the next base.
        bases = [segment.base_offset for segment in loaded.closed]
        loaded.snapshots.remove_stray([*bases, loaded.active.base_offset])
        for segment in loaded.closed:
            segment.sync()
        loaded.active.sync()
        for offset in loaded.snapshots.take_unsynced():
            loaded.snapshots.sync(offset)
        loaded.active.writer.close()
        self._fs.sync_directory(self._facts.directory)
        return loaded


def _describe_losses(losses: Sequence[Loss]) -> str:
    """The data that a repair would drop, by segment."""
    parts = []
    for loss in losses[:_LISTED_LOSSES_MAX]:
        name = posixpath.basename(loss.path)
        parts.append(f"{name} {f'from position {loss.position} on' if loss.position else 'whole'}")
    if len(losses) > _LISTED_LOSSES_MAX:
        parts.append(f"and {len(losses) - _LISTED_LOSSES_MAX} later ones whole")
    lost = sum(loss.size for loss in losses)
    count = "1 segment" if len(losses) == 1 else f"{len(losses)} segments"
    return (
        f"{lost} bytes of data would be dropped ({NEEDS_PERMISSION}), of {count}: "
        f"{', '.join(parts)}; restore them from a copy instead if there is one"
    )


def _repair_metadata(facts: DirectoryFacts, tools: RepairTools, report: RepairReport) -> None:
    """Keeps the valid lines of a corrupt `meta.properties` and generates the others."""
    if not any(finding.rule == "meta-properties-corrupt" for finding in facts.findings):
        return
    path = f"{facts.path}/{META_PROPERTIES_FILE}"
    kept = tools.quarantine.keep(path)
    properties: dict[str, str] = {}
    for line in tools.fs.read(path).decode("iso-8859-1").splitlines():
        with contextlib.suppress(Corrupt):
            properties |= decode_properties(line, path)
    metadata = DirectoryMetadata(
        cluster_id=properties.get("cluster.id") or encode_topic_id(random_topic_id(tools.random)),
        node_id=_parse_node_id(properties.get("node.id", properties.get("broker.id", ""))),
        directory_id=random_topic_id(tools.random),
    )
    with contextlib.suppress(Corrupt):
        text = f"version=0\ndirectory.id={properties.get('directory.id', '')}\n"
        old = decode_meta_properties(text.encode("iso-8859-1", "replace"), path)
        metadata = DirectoryMetadata(
            cluster_id=metadata.cluster_id,
            node_id=metadata.node_id,
            directory_id=old.directory_id,
        )
    write_atomically(tools.fs, path, encode_meta_properties(metadata))
    report.done.append(
        f"{path}: rewritten for cluster {metadata.cluster_id}, node {metadata.node_id}; "
        f"the old one is {kept}"
    )


def _parse_node_id(text: str) -> int:
    is_number = text.isascii() and text.isdigit() and int(text[:12]) <= INT32_MAX
    return int(text) if is_number else _NODE_ID


def _read_valid_lines(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
    """The entries of an offset checkpoint's valid lines; the others are ignored."""
    offsets: dict[TopicPartition, int] = {}
    try:
        lines = fs.read(path).splitlines()
    except FileNotFoundError:
        return offsets
    for number, text in enumerate(lines, start=1):
        line = CheckpointLine(text, number, path)
        with contextlib.suppress(Corrupt):
            line.require_fields(3, "topic partition offset")
            partition = line.integer(1, at_least=0, at_most=INT32_MAX)
            offset = line.integer(2, at_least=0, at_most=INT64_MAX)
            offsets[TopicPartition(line.text(0), partition)] = offset
    return offsets


def _repair_checkpoints(
    facts: DirectoryFacts,
    ends: dict[TopicPartition, int],
    tools: RepairTools,
    report: RepairReport,
) -> None:
    """Rewrites corrupt checkpoints with their valid lines, limited to the log end offsets.

    Corrupt recovery points and cleaner offsets are dropped: the next open recovers everything, the
    next cleaning starts from the beginning.
    """
    for name in CHECKPOINT_FILES:
        path = f"{facts.path}/{name}"
        if not tools.fs.exists(path):
            continue
        offsets, stored = _read_valid_lines(tools.fs, path), _read_offsets(tools.fs, path)
        if stored is None and name in (RECOVERY_POINT_FILE, CLEANER_OFFSET_FILE):
            offsets = {}
        limited = {
            partition: min(offset, ends.get(partition, offset))
            for partition, offset in offsets.items()
        }
        if limited != stored:
            write_atomically(tools.fs, path, encode_offsets(limited))
            report.done.append(f"{path}: rewritten with {len(limited)} entries")


def _read_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int] | None:
    try:
        return decode_offsets(fs.read(path), where=path)
    except Corrupt:
        return None
