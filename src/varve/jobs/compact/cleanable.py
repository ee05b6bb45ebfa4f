"""The cleanable part of a partition's remote log, its dirty ratio, and leftover segments.

Invariant  the cleanable part is a chain of readable segments without gaps, all of one lineage;
           every transaction with records in it ends within the remote log. A log that a new leader
           truncated continues under a higher epoch: until segments of that epoch are copied, only
           the epochs of the local log show the truncation.
Crash      objects are deleted after the manifest marks their segment as deleted, and before the
           segment leaves the manifest: the next run completes an interrupted deletion.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from varve.cleaning.compaction.cleanable_log import CleanableLog, CleaningBound, judge_cleanable
from varve.cleaning.retention.segments import NO_TIMESTAMP, SegmentInfo, SegmentList, SegmentTimes
from varve.commit_log import LogSettings, TopicPartition
from varve.commit_log.directory_files import decode_partition_metadata, encode_topic_id
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE
from varve.commit_log.producer_snapshots import decode_producer_snapshot
from varve.commit_log.producer_state import LastRecord
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt
from varve.foundation.settings import LONG_MAX
from varve.jobs.tier.remote_files import RemoteInput, TierFiles
from varve.records import HEADER_BYTES, decode_header
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    SNAPSHOT_PART,
    Epochs,
    RemoteSegment,
    SegmentState,
    is_in_lineage,
)
from varve.tiering.manifest.store import ManifestStore


@dataclass(frozen=True, slots=True)
class Scope:
    """A chain of readable segments, and how far it is cleanable."""

    chain: tuple[RemoteSegment, ...]
    cleanable: CleanableLog

    @property
    def end_offset(self) -> int:
        return self.cleanable.first_uncleanable_offset

    @property
    def segments(self) -> tuple[RemoteSegment, ...]:
        """The segments that may be compacted."""
        return tuple(segment for segment in self.chain if segment.base_offset < self.end_offset)

    @property
    def blocked_by(self) -> str:
        """The reason why later segments may not be compacted; empty if all segments may."""
        if self.cleanable.blocker is CleaningBound.ACTIVE_SEGMENT:
            return ""
        return self.cleanable.blocked_by


def find_chain(
    manifest: Manifest, segments: Iterable[RemoteSegment], history: Epochs | None = None
) -> tuple[RemoteSegment, ...]:
    """Returns the readable segments from the log start on, up to a gap or a diverging lineage.

    A truncated log continues under a higher leader epoch, while the segments that it copied from
    beyond the truncation have a lower one. They are detected once newer segments are copied, or by
    `history`, the leader epochs of the local log.
    """
    chain: list[RemoteSegment] = []
    for segment in segments:
        if not segment.is_readable or segment.end_offset < manifest.log_start_offset:
            continue
        if chain and (
            segment.base_offset != chain[-1].end_offset + 1
            or segment.epochs[0][0] < chain[-1].epochs[-1][0]
        ):
            break
        if history is not None and is_truncated(segment, history):
            break
        chain.append(segment)
    return tuple(chain)


def is_truncated(segment: RemoteSegment, history: Epochs) -> bool:
    """Whether a log with these leader epochs has truncated the segment's records."""
    if segment.end_offset < history[0][1]:
        return False  # The epochs of offsets below the log start are no longer recorded.
    return not is_in_lineage(segment, history, log_end_offset=LONG_MAX)


def find_scope(
    partition: RemotePath,
    manifest: Manifest,
    chain: tuple[RemoteSegment, ...],
    files: TierFiles,
    settings: LogSettings,
    now_ms: int,
) -> Scope:
    """Determines which segments of a chain, which must not be empty, may be compacted."""
    end_offset = chain[-1].end_offset + 1
    undecided = chain[-1].undecided_from
    # Records after the chain are not compacted, like the active segment of a local log.
    active = _ActiveSegmentInfo(
        base_offset=end_offset, next_offset=end_offset, size=0, is_active=True
    )
    segment_list = SegmentList(
        partition=TopicPartition(partition.topic, partition.partition),
        settings=settings,
        log_start_offset=max(manifest.log_start_offset, chain[0].base_offset),
        last_stable_offset=end_offset if undecided is None else min(undecided, end_offset),
        high_watermark=end_offset + 1,
        end_offset=end_offset,
        segments=(
            *(_segment_info(RemoteInput(partition, segment, files)) for segment in chain),
            active,
        ),
    )
    return Scope(chain, judge_cleanable(segment_list, manifest.cleaned_up_to, now_ms))


def _segment_info(remote_input: RemoteInput) -> "_InputSegmentInfo":
    return _InputSegmentInfo(
        base_offset=remote_input.remote.base_offset,
        next_offset=remote_input.next_offset,
        size=remote_input.remote.size,
        input=remote_input,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _InputSegmentInfo(SegmentInfo):
    """A remote segment whose first timestamp is read from its object."""

    input: RemoteInput

    def times(self) -> SegmentTimes:
        return SegmentTimes(self.input.remote.max_timestamp, *self.input.remote.append_ms)

    def first_timestamp(self) -> int:
        if self.input.size < HEADER_BYTES:
            return NO_TIMESTAMP
        with self.input.file() as file:
            data = file.read_at(0, HEADER_BYTES)
        try:
            return decode_header(data, where=file.path).max_timestamp
        except Corrupt:
            return NO_TIMESTAMP


class _ActiveSegmentInfo(SegmentInfo):
    """Represents the active segment, which is not in the remote log."""

    def times(self) -> SegmentTimes:
        return SegmentTimes(NO_TIMESTAMP, NO_TIMESTAMP, NO_TIMESTAMP)

    def first_timestamp(self) -> int:
        return NO_TIMESTAMP


def read_aborted(
    partition: RemotePath, chain: Iterable[RemoteSegment], files: TierFiles, *, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Reads the aborted transactions of a chain that begin before `end_offset`.

    Their abort markers may be at or after it.
    """
    aborted: list[AbortedTransaction] = []
    for segment in chain:
        if segment.has_aborted:
            aborted += RemoteInput(partition, segment, files).read_txn_index().entries()
    return tuple(transaction for transaction in aborted if transaction.first_offset < end_offset)


def read_producers(
    partition: RemotePath, segment: RemoteSegment, files: TierFiles
) -> dict[int, LastRecord]:
    """Reads the producer snapshot of a segment: the last record of each producer id."""
    remote = RemoteInput(partition, segment, files)
    entries = decode_producer_snapshot(remote.read_part(SNAPSHOT_PART), remote.path(SNAPSHOT_PART))
    return {
        entry.producer_id: LastRecord(
            entry.epoch, None if entry.last_offset < 0 else entry.last_offset
        )
        for entry in entries
    }


# Leftovers


def find_leftovers(
    manifests: ManifestStore, manifest: Manifest, *, now_ms: int
) -> list[RemoteSegment]:
    """Returns the segments whose objects may be deleted now.

    An announced segment whose offsets are all readable is the output of an interrupted compaction:
    a copy announces only offsets above the highest readable one.
    """
    segments = []
    for segment in manifests.pending(manifest):
        if segment.state is SegmentState.COPY_STARTED:
            if segment.end_offset <= manifest.highest_offset:
                segments.append(segment)
        elif segment.may_be_deleted(now_ms):
            segments.append(segment)
    return segments


# Leader epochs of a local log


def find_history(fs: FileSystem, directory: str, partition: RemotePath) -> Epochs | None:
    """Reads the leader epochs of a partition's local log; None if the directory has no such log."""
    path = f"{directory}/{TopicPartition(partition.topic, partition.partition)}"
    metadata, epochs = f"{path}/{PARTITION_METADATA_FILE}", f"{path}/{LEADER_EPOCH_FILE}"
    if not fs.exists(metadata) or not fs.exists(epochs):
        return None
    if (
        encode_topic_id(decode_partition_metadata(fs.read(metadata), metadata))
        != partition.topic_id
    ):
        return None
    return LeaderEpochs.decode(fs.read(epochs), epochs).entries or None
