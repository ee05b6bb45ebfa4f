"""Plans a snapshot: the offsets to read of each partition, and the snapshot to continue from.

Invariant  a snapshot ends at or below the last stable offset. It continues from an earlier snapshot
           only if the result equals that of a full read: the log has the same history, and no
           tombstone was compacted away before a snapshot read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from varve.disk import RealFileSystem
from varve.foundation.errors import InconsistentTopicId, OffsetOutOfRange
from varve.foundation.settings import LONG_MAX
from varve.foundation.units import format_time
from varve.jobs.derived_outputs import is_remote
from varve.jobs.snapshot.document import SnapshotDocument, SnapshotPartition
from varve.jobs.source.options import SourceFilters, SourceOptions, for_partition
from varve.jobs.source.topic_source import PartitionSource, keeps_tombstones
from varve.jobs.tier.bucket import find_cluster

_NO_FILTERS = SourceFilters()


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The plan of one partition; `note` explains it to the user.

    `is_reread` is True if the previous snapshot is no longer the state of the log.
    """

    source: PartitionSource
    partition: SnapshotPartition
    note: str = ""
    is_reread: bool = False

    @property
    def number(self) -> int:
        return self.partition.partition


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The plans of all partitions, and the snapshot to continue from, None for a full read."""

    partitions: tuple[PartitionPlan, ...]
    previous: SnapshotDocument | None

    @property
    def is_new(self) -> bool:
        """Whether the snapshot differs from the previous one."""
        if self.previous is None:
            return True
        before = {partition.partition: partition for partition in self.previous.partitions}
        return before.keys() != {plan.number for plan in self.partitions} or any(
            (plan.partition.resume_offset, plan.partition.start_offset)
            != (before[plan.number].resume_offset, before[plan.number].start_offset)
            or plan.is_reread
            for plan in self.partitions
        )


def plan_snapshot(
    sources: Sequence[PartitionSource],
    options: SourceOptions,
    documents: Sequence[SnapshotDocument],
    *,
    is_full: bool,
) -> SnapshotPlan:
    """Plans a snapshot; `documents` are the existing snapshots of its place."""
    _check_topic(sources, documents)
    scopes = [_find_bounds(source, options) for source in sources]
    ends = {scope.number: scope.partition.resume_offset for scope in scopes}
    previous = None if is_full else _find_previous(documents, ends)
    if previous is not None:
        scopes = [_continue_from(scope, previous) for scope in scopes]
    return SnapshotPlan(tuple(scopes), previous)


def _check_topic(sources: Sequence[PartitionSource], documents: Sequence[SnapshotDocument]) -> None:
    topic, topic_id = sources[0].topic, sources[0].topic_id
    for document in documents:
        if document.topic_id != topic_id:
            raise InconsistentTopicId(
                f"the place holds snapshots of topic {document.topic} with id {document.topic_id}, "
                f"this is {topic} with id {topic_id}: choose another place"
            )


def _find_bounds(source: PartitionSource, options: SourceOptions) -> PartitionPlan:
    first, last = source.bounds()
    start, end = source.find_range(_NO_FILTERS)
    requested = for_partition(options.ending, source.number)
    if requested is not None and requested < first:
        raise OffsetOutOfRange(
            f"{source.topic}-{source.number} begins at offset {first}: its state at offset "
            f"{requested} is no longer known"
        )
    if options.ending_ms is not None and 0 < first == end < last:
        raise OffsetOutOfRange(
            f"{source.topic}-{source.number} begins at offset {first}, with a record of time "
            f"{format_time(options.ending_ms)} or later: its state before that time is no "
            "longer known"
        )
    note = ""
    if requested is not None and last < requested < LONG_MAX:
        note = f"ends at the last stable offset {last}, not at {requested}"
    return PartitionPlan(
        source,
        SnapshotPartition(
            partition=source.number,
            start_offset=start,
            resume_offset=end,
            read_from=start,
            manifest_version=source.manifest_version,
            cleaned_up_to=source.cleaned_up_to,
            mark=source.find_mark(end),
        ),
        note,
    )


def _find_previous(
    documents: Sequence[SnapshotDocument], ends: dict[int, int]
) -> SnapshotDocument | None:
    """Finds the newest snapshot of the same offsets, else the newest one that ends before them."""
    for document in reversed(documents):
        if document.resume_offsets == ends:
            return document
    for document in reversed(documents):
        resumes = document.resume_offsets
        if resumes.keys() <= ends.keys() and all(
            resume <= ends[number] for number, resume in resumes.items()
        ):
            return document
    return None


def _continue_from(scope: PartitionPlan, previous: SnapshotDocument) -> PartitionPlan:
    before, now = previous.find_partition(scope.number), scope.partition
    if before is None:
        return scope
    if before.is_thinned:
        note = (
            f"read in full: single records of keys were erased from snapshot {previous.snapshot}, "
            "and older ones may be the latest now"
        )
        return replace(scope, note=note, is_reread=True)
    history_break = scope.source.find_break(before.resume_offset, before.mark)
    if history_break is not None:
        note = (
            f"read in full: {history_break}: since snapshot {previous.snapshot} the log was "
            "truncated and has continued with other records"
        )
        return replace(scope, note=note, is_reread=True)
    if not keeps_tombstones(
        before.resume_offset,
        bounds=(now.start_offset, now.resume_offset),
        cleaned_before=before.cleaned_up_to,
        cleaned_up_to=now.cleaned_up_to,
        is_same_tier=(before.manifest_version is None) == (now.manifest_version is None),
    ):
        note = (
            f"read in full: compacted up to offset {now.cleaned_up_to}, and tombstones after "
            f"offset {before.resume_offset} may have left the log since snapshot "
            f"{previous.snapshot}"
        )
        return replace(scope, note=note)
    read_from = max(now.start_offset, before.resume_offset)
    return replace(scope, partition=replace(now, read_from=read_from))


# Receipts


Receipts = frozenset[tuple[str, int]]
"""The names and modification times of receipts: a snapshot must not undo their erasures."""


def find_receipts(options: SourceOptions, sources: Sequence[PartitionSource]) -> Receipts:
    """Lists the receipts of a topic: in the bucket if it is there, else in the log directories."""
    if options.address is not None and is_remote(sources):
        topic = f"{sources[0].topic}.{sources[0].topic_id}"
        folder = f"{find_cluster(options.address)}/{topic}/receipt/"
        objects = options.address.objects().list(folder)
        return frozenset((entry.key, entry.modified_ms) for entry in objects)
    fs = RealFileSystem()
    return frozenset(
        (f"{directory}/{info.name}", info.modified_ms)
        for directory in options.directories
        for info in fs.scan(directory)
        if info.name.startswith("varve-receipt-")
    )
