"""From where to where each partition is read for a snapshot, and which snapshot it continues from.

Invariant  a snapshot ends at or below the last stable offset. It continues from another only where
           that gives the same rows as a full one: the log has the same history, and no tombstone
           may have left it unseen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from varve.disk import RealFileSystem
from varve.foundation.errors import InconsistentTopicId, InvalidRequest, OffsetOutOfRange
from varve.foundation.settings import LONG_MAX
from varve.jobs.derived_outputs import is_remote
from varve.jobs.snapshot.document import SnapshotDocument, SnapshotPartition
from varve.jobs.source.options import SourceFilters, SourceOptions, for_partition
from varve.jobs.source.topic_source import PartitionSource
from varve.jobs.tier.bucket import find_cluster

_EVERYTHING = SourceFilters()


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition as it will be read; `note` says what a user may wonder about.

    `is_reread`: the previous snapshot of it is missing, or no longer the state of the log.
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
    """All partitions, and the snapshot that they continue from, if any."""

    partitions: tuple[PartitionPlan, ...]
    previous: SnapshotDocument | None

    @property
    def is_new(self) -> bool:
        """Whether there is anything that the previous snapshot does not have."""
        if self.previous is None:
            return True
        known = {partition.partition: partition for partition in self.previous.partitions}
        return known.keys() != {plan.number for plan in self.partitions} or any(
            (plan.partition.resume_offset, plan.partition.start_offset)
            != (known[plan.number].resume_offset, known[plan.number].start_offset)
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
    """The scope of a snapshot of these partitions among the snapshots of its place."""
    _check_topic(sources, documents)
    _check_partitions(sources, options)
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
                f"this is {topic} with id {topic_id}: give it a place of its own"
            )


def _check_partitions(sources: Sequence[PartitionSource], options: SourceOptions) -> None:
    numbers = [source.number for source in sources]
    named = options.ending if isinstance(options.ending, Mapping) else {}
    unknown = sorted(set(named) - set(numbers))
    if unknown:
        raise InvalidRequest(
            f"an offset is given for partition {unknown[0]}, which {sources[0].topic} does not "
            f"have (partitions: {', '.join(map(str, numbers)):.200})"
        )


def _find_bounds(source: PartitionSource, options: SourceOptions) -> PartitionPlan:
    first, last = source.bounds()
    start, end = source.wanted(_EVERYTHING)
    asked = for_partition(options.ending, source.number)
    if asked is not None and asked < first:
        raise OffsetOutOfRange(
            f"{source.topic}-{source.number} begins at offset {first}: its state at offset {asked} "
            "is not known any more"
        )
    if options.ending_ms is not None and 0 < first == end < last:
        raise OffsetOutOfRange(
            f"{source.topic}-{source.number} begins at offset {first}, with a record of time "
            f"{options.ending_ms} or later: its state before that time is not known any more"
        )
    note = ""
    if asked is not None and last < asked < LONG_MAX:
        note = f"ends at offset {last}, behind which nothing is decided yet, not at {asked}"
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
    """The newest snapshot of the same offsets; else the newest that ends nowhere after them."""
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
    known, now = previous.find_partition(scope.number), scope.partition
    if known is None:
        return scope
    if known.is_thinned:
        note = (
            f"read in full: single records of keys were erased from snapshot {previous.snapshot}, "
            "and older ones may be the latest now"
        )
        return replace(scope, note=note, is_reread=True)
    broken = scope.source.find_break(known.resume_offset, known.mark)
    if broken is not None:
        note = (
            f"read in full: {broken}: since snapshot {previous.snapshot} the log has lost records "
            "and gone on with others"
        )
        return replace(scope, note=note, is_reread=True)
    if not has_all_tombstones(known, now):
        note = (
            f"read in full: compacted up to offset {now.cleaned_up_to}, and tombstones behind "
            f"offset {known.resume_offset} may have left the log since snapshot "
            f"{previous.snapshot}"
        )
        return replace(scope, note=note)
    read_from = max(now.start_offset, known.resume_offset)
    return replace(scope, partition=replace(now, read_from=read_from))


def has_all_tombstones(known: SnapshotPartition, now: SnapshotPartition) -> bool:
    """Whether every tombstone written since is still in the log: one goes only when compacted.

    How long it stayed is not asked: a compaction may have run with another `delete.retention.ms`
    than the topic has now. Where less is noted as compacted than before, the note was lost.
    """
    if known.resume_offset in (now.resume_offset, now.start_offset):
        return True
    if (known.manifest_version is None) != (now.manifest_version is None):
        return False
    return known.cleaned_up_to <= now.cleaned_up_to <= known.resume_offset


# Receipts


Receipts = frozenset[tuple[str, int]]
"""Receipts of erasures, which a snapshot must not undo: their names, and when each was written."""


def find_receipts(options: SourceOptions, sources: Sequence[PartitionSource]) -> Receipts:
    """All of a topic: in the bucket for one that is there, else in the log directories."""
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
