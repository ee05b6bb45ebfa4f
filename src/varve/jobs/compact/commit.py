"""Replaces the input segments of a compaction with its output segments in one manifest commit.

Invariant  a group is committed only if its input segments are still readable. Groups are committed
           oldest first; the commit stops at the first group that cannot be committed, because a
           tombstone must outlive the records that it deletes. The balances of all groups are
           checked and stored before the commit.
Crash      readers see the old segments before the commit and the new segments after it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum, auto

from varve.cleaning.compaction.plan import sum_by_reason
from varve.cleaning.compaction.segment_plan import RunRules, SegmentFigures
from varve.cleaning.removals.removal import Removal, RemovalKind, encode_removal, hex_digest
from varve.commit_log import LogSettings, TopicPartition
from varve.jobs.compact.tasks import WRITER, GroupOutput
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.manifest.store import ManifestStore


@dataclass(frozen=True, slots=True)
class WrittenGroup:
    """A group whose output segment is written and announced, but not yet committed.

    `plans` are the planned figures of the input segments; an erasure has none.
    """

    inputs: tuple[RemoteSegment, ...]
    plans: tuple[SegmentFigures, ...]
    output: GroupOutput

    @property
    def base_offset(self) -> int:
        return self.inputs[0].base_offset

    @property
    def last_offset(self) -> int:
        return self.inputs[-1].end_offset


def balance_group(
    group: WrittenGroup,
    *,
    id: int,
    partition: TopicPartition,
    rules: RunRules,
    settings: LogSettings,
) -> Removal:
    """Computes and checks the balance of a group; raises Unbalanced."""
    balance = Removal(
        id=id,
        partition=partition,
        kind=RemovalKind.COMPACTION,
        at_ms=rules.now_ms,
        inputs=tuple(figures.summary for figures in group.plans),
        outputs=(group.output.summary,),
        records=sum_by_reason([figures.records for figures in group.plans]),
        bytes=sum_by_reason([figures.bytes for figures in group.plans]),
        keys_before=hex_digest(*(figures.digest for figures in group.plans)),
        keys_after=hex_digest(group.output.digest),
        rule=(
            f"cleanup.policy {','.join(settings.cleanup_policy)} in remote segments: the latest "
            f"record of each key below offset {rules.first_uncleanable_offset}; tombstones and "
            f"markers delete.retention.ms={settings.delete_retention_ms} after they are first "
            "cleaned"
        ),
        end_offset=rules.first_uncleanable_offset,
    )
    balance.check()
    return balance


def encode_evidence(job_id: str, balances: Sequence[Removal]) -> bytes:
    """Encodes the evidence of a job: the balances of its removals from one partition."""
    document = {"job": job_id, "balances": [encode_removal(removal) for removal in balances]}
    return json.dumps(document, separators=(",", ":")).encode()


class GroupState(Enum):
    """The state of a group in the manifest that the commit is applied to."""

    READY = auto()
    ALREADY_COMMITTED = auto()
    EXPIRED = auto()
    CHANGED = auto()


@dataclass
class CompactCommit:
    """One commit, and after `run` its `committed` and `voided` groups.

    A group is voided, not committed, if its segments have expired or changed since it was planned.
    `stale` maps the ids of segments that were not worth rewriting to their stale bytes. `clean_end`
    is the end offset of the compacted part if every group is committed. The groups are within
    [`start_offset`, `end_offset`). The groups of an erasure are independent of each other
    (`is_ordered` is False).
    """

    manifests: ManifestStore
    groups: Sequence[WrittenGroup]
    _: KW_ONLY
    start_offset: int
    end_offset: int
    now_ms: int
    replaced_retention_ms: int
    stale: Mapping[str, int] = field(default_factory=dict)
    clean_end: int = 0
    writer: str = WRITER
    is_ordered: bool = True
    committed: list[WrittenGroup] = field(init=False)
    voided: list[WrittenGroup] = field(init=False)

    def run(self) -> Manifest:
        return self.manifests.commit(
            self._change, leader_epoch=None, writer=self.writer, now_ms=self.now_ms
        )

    def _change(self, manifest: Manifest) -> Manifest:
        # The segments of the range may be in pages of the manifest: `unfold` lists them in it.
        unfolded = self.manifests.unfold(
            manifest, start_offset=self.start_offset, end_offset=self.end_offset
        )
        self.committed, self.voided = [], []
        clean_end = self.clean_end
        for number, group in enumerate(self.groups):
            state = _find_group_state(unfolded, group, is_ordered=self.is_ordered)
            if state is GroupState.CHANGED and self.is_ordered:
                clean_end = min(clean_end, group.base_offset)
                self.voided += self.groups[number:]
                break
            if state in (GroupState.EXPIRED, GroupState.CHANGED):
                self.voided.append(group)
                continue
            self.committed.append(group)
            if state is GroupState.READY:
                unfolded = self._replace_inputs(unfolded, group)
        return self._update_stale_bytes(unfolded).raise_cleaned_up_to(clean_end)

    def _replace_inputs(self, manifest: Manifest, group: WrittenGroup) -> Manifest:
        changed = manifest.start_delete(
            [segment.id for segment in group.inputs],
            at_ms=self.now_ms,
            replaced_until_ms=self.now_ms + self.replaced_retention_ms,
        )
        announced = changed.get_segment(group.output.segment.id)
        return changed.finish(
            replace(announced, state=SegmentState.COPY_FINISHED, at_ms=self.now_ms)
        )

    def _update_stale_bytes(self, manifest: Manifest) -> Manifest:
        for segment in manifest.segments:
            stale = self.stale.get(segment.id)
            if segment.is_readable and stale is not None and stale != segment.stale_bytes:
                manifest = manifest.update(replace(segment, stale_bytes=stale))
        return manifest


def _find_group_state(manifest: Manifest, group: WrittenGroup, *, is_ordered: bool) -> GroupState:
    output = manifest.find_segment(group.output.segment.id)
    if output is not None and output.is_readable:
        return GroupState.ALREADY_COMMITTED
    # Expired segments need no compaction; an erasure rewrites them until they are deleted.
    if is_ordered and group.last_offset < manifest.log_start_offset:
        return GroupState.EXPIRED
    segments = [manifest.find_segment(segment.id) for segment in group.inputs]
    is_same = all(segment is not None and segment.is_readable for segment in segments)
    is_announced = output is not None and output.state is SegmentState.COPY_STARTED
    return GroupState.READY if is_same and is_announced else GroupState.CHANGED


def add_key_indexes(
    manifests: ManifestStore, indexed: Mapping[str, RemoteSegment], *, now_ms: int
) -> None:
    """Adds new key indexes to the manifest; `indexed` maps segment ids to segments with them."""
    if not indexed:
        return
    start = min(segment.base_offset for segment in indexed.values())
    end = max(segment.end_offset for segment in indexed.values()) + 1

    def change(manifest: Manifest) -> Manifest:
        unfolded = manifests.unfold(manifest, start_offset=start, end_offset=end)
        for segment in unfolded.segments:
            if segment.is_readable and segment.id in indexed:
                new = indexed[segment.id]
                unfolded = unfolded.update(
                    replace(segment, parts=new.parts, key_count=new.key_count)
                )
        return unfolded

    manifests.commit(change, leader_epoch=None, writer=WRITER, now_ms=now_ms)
