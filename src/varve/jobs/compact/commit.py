"""Makes what a compaction wrote readable in the place of what it read, by one manifest.

Invariant  a group takes its inputs' place only if these are still the readable ones. Groups go
           oldest first: behind one that cannot, none does, for a tombstone must outlive what it
           deletes. Every group was balanced, and the balances are in the store, before the commit.
Crash      before the commit the old segments are read, after it the new ones.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum, auto

from varve.cleaning.compaction.plan import sum_by_reason
from varve.cleaning.compaction.segment_plan import RunRules, SegmentFigures
from varve.cleaning.removals.removal import Removal, RemovalKind, encode_removal, hex_digest
from varve.commit_log import LogSettings, TopicPartition
from varve.jobs.compact.tasks import WRITER, WrittenGroup
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.manifest.store import ManifestStore


@dataclass(frozen=True, slots=True)
class DoneGroup:
    """A group that was written, with what it was planned from."""

    inputs: tuple[RemoteSegment, ...]
    plans: tuple[SegmentFigures, ...]
    written: WrittenGroup

    @property
    def base_offset(self) -> int:
        return self.inputs[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.inputs[-1].end_offset


def balance_group(
    group: DoneGroup, *, id: int, partition: TopicPartition, rules: RunRules, settings: LogSettings
) -> Removal:
    """The balance of a group, checked; raises Unbalanced."""
    balance = Removal(
        id=id,
        partition=partition,
        kind=RemovalKind.COMPACTION,
        at_ms=rules.now_ms,
        inputs=tuple(figures.summary for figures in group.plans),
        outputs=(group.written.summary,),
        records=sum_by_reason([figures.records for figures in group.plans]),
        bytes=sum_by_reason([figures.bytes for figures in group.plans]),
        keys_before=hex_digest(*(figures.digest for figures in group.plans)),
        keys_after=hex_digest(group.written.digest),
        rule=(
            f"cleanup.policy {','.join(settings.cleanup_policy)} in the cold tier: the latest "
            f"record of each key below offset {rules.first_uncleanable_offset}; tombstones and "
            f"markers delete.retention.ms={settings.delete_retention_ms} after they are first "
            "cleaned"
        ),
        end_offset=rules.first_uncleanable_offset,
    )
    balance.check()
    return balance


def encode_evidence(job_id: str, balances: Sequence[Removal]) -> bytes:
    """What a job removed from a partition, as its evidence holds it."""
    document = {"job": job_id, "balances": [encode_removal(removal) for removal in balances]}
    return json.dumps(document, separators=(",", ":")).encode()


class GroupState(Enum):
    """What became of a group's inputs since they were read."""

    READY = auto()
    DONE = auto()
    EXPIRED = auto()
    CHANGED = auto()


@dataclass
class CompactCommit:
    """One commit, with its `committed` and `voided` groups.

    `stale` has the bytes that are stale in segments which were not worth rewriting, by their ids.
    `clean_end` is how far the partition is compacted if every group goes in. The groups lie in
    [`start_offset`, `end_offset`). Those of an erasure stand each for itself (`is_ordered` false).
    """

    manifests: ManifestStore
    groups: Sequence[DoneGroup]
    _: KW_ONLY
    start_offset: int
    end_offset: int
    now_ms: int
    replaced_ms: int
    stale: Mapping[str, int] = field(default_factory=dict)
    clean_end: int = 0
    writer: str = WRITER
    is_ordered: bool = True
    committed: list[DoneGroup] = field(init=False)
    voided: list[DoneGroup] = field(init=False)

    def run(self) -> Manifest:
        return self.manifests.commit(
            self._change, leader_epoch=None, writer=self.writer, now_ms=self.now_ms
        )

    def _change(self, manifest: Manifest) -> Manifest:
        near = self.manifests.unfold(
            manifest, start_offset=self.start_offset, end_offset=self.end_offset
        )
        self.committed, self.voided = [], []
        clean_end = self.clean_end
        for number, group in enumerate(self.groups):
            standing = _judge(near, group, is_ordered=self.is_ordered)
            if standing is GroupState.CHANGED and self.is_ordered:
                clean_end = min(clean_end, group.base_offset)
                self.voided += self.groups[number:]
                break
            if standing in (GroupState.EXPIRED, GroupState.CHANGED):
                self.voided.append(group)
                continue
            self.committed.append(group)
            if standing is GroupState.READY:
                near = self._put(near, group)
        return self._note_stale(near).raise_cleaned_up_to(clean_end)

    def _put(self, manifest: Manifest, group: DoneGroup) -> Manifest:
        changed = manifest.start_delete(
            [segment.id for segment in group.inputs],
            at_ms=self.now_ms,
            replaced_until_ms=self.now_ms + self.replaced_ms,
        )
        announced = changed.get_segment(group.written.segment.id)
        return changed.finish(
            replace(announced, state=SegmentState.COPY_FINISHED, at_ms=self.now_ms)
        )

    def _note_stale(self, manifest: Manifest) -> Manifest:
        for segment in manifest.segments:
            stale = self.stale.get(segment.id)
            if segment.is_readable and stale is not None and stale != segment.stale_bytes:
                manifest = manifest.update(replace(segment, stale_bytes=stale))
        return manifest


def _judge(manifest: Manifest, group: DoneGroup, *, is_ordered: bool) -> GroupState:
    output = manifest.find_segment(group.written.segment.id)
    if output is not None and output.is_readable:
        return GroupState.DONE
    # What is expired need not be compacted any more; an erasure reaches it until it is gone.
    if is_ordered and group.end_offset < manifest.log_start_offset:
        return GroupState.EXPIRED
    segments = [manifest.find_segment(segment.id) for segment in group.inputs]
    is_same = all(segment is not None and segment.is_readable for segment in segments)
    is_announced = output is not None and output.state is SegmentState.COPY_STARTED
    return GroupState.READY if is_same and is_announced else GroupState.CHANGED


def add_parts(
    manifests: ManifestStore, indexed: Mapping[str, RemoteSegment], *, now_ms: int
) -> None:
    """Adds new key indexes to the manifest, by segment id."""
    if not indexed:
        return
    start = min(segment.base_offset for segment in indexed.values())
    end = max(segment.end_offset for segment in indexed.values()) + 1

    def change(manifest: Manifest) -> Manifest:
        near = manifests.unfold(manifest, start_offset=start, end_offset=end)
        for segment in near.segments:
            if segment.is_readable and segment.id in indexed:
                known = indexed[segment.id]
                near = near.update(replace(segment, parts=known.parts, key_count=known.key_count))
        return near

    manifests.commit(change, leader_epoch=None, writer=WRITER, now_ms=now_ms)
