"""Tasks of a compaction: build key indexes, plan ranges and segments, rewrite groups.

Invariant  a task contains all its inputs and changes nothing that a reader sees. A task that runs
           twice, even concurrently, writes the same objects: its output depends on its inputs
           alone.
Crash      the manifest announces a group's objects, with sizes and checksums of all parts, before
           the first is written; the next run deletes announced segments that were never finished.
           A missing key index is stored under the name of its segment: until the manifest lists it,
           the next run writes it again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from varve.cleaning.compaction.key_plan import HashRange, Integers, KeyPlan
from varve.cleaning.compaction.plan import PlanInput, find_latest_records, plan_segment
from varve.cleaning.compaction.rewrite import WrittenSegment, write_group
from varve.cleaning.compaction.segment_plan import (
    RunRules,
    SegmentFigures,
    SegmentPlan,
    TransactionTracker,
)
from varve.cleaning.key_index.builder import build_key_index
from varve.cleaning.key_index.key_index import KeyIndex, KeyIndexHeader
from varve.cleaning.removals.removal import SegmentSummary
from varve.cleaning.work_budget import UNLIMITED
from varve.commit_log import LogSettings
from varve.commit_log.names import CLEANED, INDEX, KEYS, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt, ObjectNotFound, UnsupportedFormat
from varve.jobs.key_plans import LatestBits, RangeOutcome, SegmentBits, WorkArea
from varve.jobs.tier import remote_files
from varve.jobs.tier.bucket import BucketAccess
from varve.kernels.key_merge import Tally
from varve.tiering import segment_upload as upload
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    EPOCHS_PART,
    KEYS_PART,
    SNAPSHOT_PART,
    ObjectPart,
    RemoteSegment,
    SegmentState,
)

WRITER: Final = "varve compact"


@contextmanager
def find_key_index(source: remote_files.RemoteInput, topic_id: bytes) -> Iterator[KeyIndex | None]:
    """Opens the key index of a remote segment; None if it is missing or unusable."""
    if source.remote.find_part(KEYS_PART) is None:
        yield None
        return
    try:
        index = KeyIndex(source.files.open(source.path(KEYS_PART)))
        is_usable = index.is_of(source, topic_id)
    except (Corrupt, UnsupportedFormat, ObjectNotFound):
        yield None
        return
    with index:
        yield index if is_usable else None


def is_whole(index: KeyIndex) -> bool:
    """Whether the key index is complete and its checksum matches."""
    try:
        index.verify()
    except (Corrupt, UnsupportedFormat, ObjectNotFound):
        return False
    return True


def find_whole_index(source: remote_files.RemoteInput, topic_id: bytes) -> KeyIndexHeader | None:
    """Returns the header of the segment's key index; None if it is missing or damaged."""
    with find_key_index(source, topic_id) as index:
        return index.header if index is not None and is_whole(index) else None


@dataclass(frozen=True, slots=True)
class IndexedSegment:
    """The key index of a segment; `part` is set if it is new and the manifest must list it."""

    header: KeyIndexHeader
    part: ObjectPart | None


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Verifies the whole key index of a segment; builds it if it is missing or unusable.

    Raises Corrupt for a segment whose data is damaged. A dry run builds no index and returns None.
    """

    bucket: BucketAccess
    partition: RemotePath
    segment: RemoteSegment
    aborted: tuple[AbortedTransaction, ...]
    topic_id: bytes
    buffer_bytes: int
    is_dry_run: bool = False

    @property
    def read_bytes(self) -> int:
        keys = self.segment.find_part(KEYS_PART)
        return self.segment.size if keys is None else keys.size

    def run(self, shared: None) -> IndexedSegment | None:
        with remote_files.open_files(self.bucket.objects, self.partition, [self.segment]) as files:
            remote_input = remote_files.RemoteInput(self.partition, self.segment, files)
            header = find_whole_index(remote_input, self.topic_id)
            if header is not None:
                return IndexedSegment(header, None)
            return None if self.is_dry_run else self._build(remote_input)

    def _build(self, remote_input: remote_files.RemoteInput) -> IndexedSegment:
        fs = remote_files.ScratchFileSystem()
        with remote_files.scratch() as directory:
            path = f"{directory}/keys"
            header = build_key_index(
                fs,
                remote_input,
                topic_id=self.topic_id,
                aborted=self.aborted,
                buffer_bytes=self.buffer_bytes,
                path=path,
            )
            data = fs.read(path)
        self.bucket.objects().put(remote_input.path(KEYS_PART), data)
        return IndexedSegment(header, ObjectPart(KEYS_PART, len(data), remote_files.checksum(data)))


def make_sources(
    partition: RemotePath,
    segments: Sequence[RemoteSegment],
    headers: Sequence[KeyIndexHeader | None],
    files: remote_files.TierFiles,
    *,
    first_dirty_offset: int,
) -> list[PlanInput]:
    """Converts segments to inputs of a plan; a segment without a header is held."""
    sources = []
    for segment, header in zip(segments, headers, strict=True):
        remote_input = remote_files.RemoteInput(partition, segment, files)
        keys = None if header is None else remote_input.keys(header)
        sources.append(
            PlanInput(
                remote_input,
                remote_input.next_offset,
                remote_input.next_offset > first_dirty_offset,
                keys,
            )
        )
    return sources


@dataclass(frozen=True, slots=True)
class RangeInputs:
    """The shared inputs of all range tasks of one partition; sent once per stage.

    The bits of records are stored in `area`, or returned to the driver if it is None.
    """

    bucket: BucketAccess
    partition: RemotePath
    segments: tuple[RemoteSegment, ...]
    headers: tuple[KeyIndexHeader | None, ...]
    rules: RunRules
    buffer_bytes: int
    area: WorkArea | None = None

    @contextmanager
    def find_latest(self, hashes: HashRange) -> Iterator[tuple[list[PlanInput], KeyPlan]]:
        """Yields the open segments, and the latest records of the keys in a range."""
        objects, segments = self.bucket.objects, self.segments
        with remote_files.open_files(objects, self.partition, segments) as files:
            sources = make_sources(
                self.partition, segments, self.headers, files, first_dirty_offset=0
            )
            plan = find_latest_records(
                sources,
                rules=self.rules,
                buffer_bytes=self.buffer_bytes,
                budget=UNLIMITED,
                hashes=hashes,
            )
            yield sources, plan


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Finds the latest records of the keys in one range of hashes, over all segments of a run."""

    number: int
    hashes: HashRange
    read_bytes: int

    def run(self, shared: RangeInputs) -> RangeOutcome:
        with shared.find_latest(self.hashes) as (_, plan):
            return RangeOutcome.store(plan, shared.area, self.number)


@dataclass(frozen=True, slots=True)
class JudgedSegment:
    """A segment, its counts over all ranges, and the state of transactions at its start."""

    segment: RemoteSegment
    header: KeyIndexHeader
    is_dirty: bool
    tally: Integers
    transactions: TransactionTracker

    @property
    def plan_bytes(self) -> int:
        """Approximate bytes read to plan it: the tables of its key index, and its bits."""
        tables = self.header.file_size - self.header.batches_at
        return tables + self.header.record_count // 4

    def plan(
        self,
        partition: RemotePath,
        files: remote_files.TierFiles,
        bits: SegmentBits,
        rules: RunRules,
    ) -> SegmentPlan:
        remote = remote_files.RemoteInput(partition, self.segment, files)
        source = PlanInput(remote, remote.next_offset, self.is_dirty, remote.keys(self.header))
        # Copies, because planning changes both and a task may run twice.
        return plan_segment(
            source,
            keep=bits.keep.copy(),
            tombstones=bits.tombstones,
            tally={column: int(self.tally[column]) for column in Tally},
            transactions=self.transactions.fork(remote.base_offset, remote.next_offset),
            rules=rules,
        )


@dataclass(frozen=True, slots=True)
class PassInputs:
    """The shared inputs of the segment and rewrite tasks of one partition; sent once per stage."""

    bucket: BucketAccess
    partition: RemotePath
    rules: RunRules
    bits: LatestBits
    settings: LogSettings
    topic_id: bytes
    buffer_bytes: int
    now_ms: int

    def plan(
        self, first: int, segments: Sequence[JudgedSegment], files: remote_files.TierFiles
    ) -> tuple[SegmentPlan, ...]:
        """Plans consecutive segments; `first` is the number of the first in the pass."""
        segment_bits = self.bits.read(first, [segment.header.record_count for segment in segments])
        return tuple(
            segment.plan(self.partition, files, bits, self.rules)
            for segment, bits in zip(segments, segment_bits, strict=True)
        )


@dataclass(frozen=True, slots=True)
class SegmentsTask:
    """Plans consecutive segments from the bits of the latest records."""

    first: int
    segments: tuple[JudgedSegment, ...]

    @property
    def read_bytes(self) -> int:
        return sum(segment.plan_bytes for segment in self.segments)

    def run(self, shared: PassInputs) -> list[SegmentFigures]:
        segments = [segment.segment for segment in self.segments]
        with remote_files.open_files(shared.bucket.objects, shared.partition, segments) as files:
            plans = shared.plan(self.first, self.segments, files)
        return [plan.figures() for plan in plans]


@dataclass(frozen=True, slots=True)
class GroupOutput:
    """An uploaded group under an announced id, not readable yet."""

    segment: RemoteSegment
    summary: SegmentSummary
    digest: tuple[int, int]
    bytes_read: int


@dataclass(frozen=True, slots=True)
class GroupRewrite:
    """Rewrites planned segments as one: writes it to scratch, announces it, uploads it.

    The plans read through `files`, which the run closes. `aborted` are the transactions that the
    key index leaves out, None for those that stay in the transaction index; `is_decided` is False
    while a transaction in the segments is open. An erasure keeps stale records, and passes the
    `stale_bytes` of its input.
    """

    bucket: BucketAccess
    partition: RemotePath
    id: str
    inputs: tuple[RemoteSegment, ...]
    plans: tuple[SegmentPlan, ...]
    files: remote_files.TierFiles
    settings: LogSettings
    topic_id: bytes
    buffer_bytes: int
    now_ms: int
    aborted: tuple[AbortedTransaction, ...] | None = None
    is_decided: bool = True
    stale_bytes: int | None = 0
    writer: str = WRITER

    def run(self) -> GroupOutput:
        fs = remote_files.ScratchFileSystem()
        with remote_files.scratch() as directory, self.files:
            written = write_group(
                fs,
                directory,
                self.plans,
                settings=self.settings,
                topic_id=self.topic_id,
                buffer_bytes=self.buffer_bytes,
                modified_ms=max(remote_segment.append_ms[1] for remote_segment in self.inputs),
                budget=UNLIMITED,
                aborted=self.aborted,
            )
            contents = self._list_contents(fs, directory, written)
            segment = self._describe(written, tuple(content.part for content in contents))
            self.bucket.manifests(self.partition).commit(
                lambda manifest: manifest.announce(segment),
                leader_epoch=None,
                writer=self.writer,
                now_ms=self.now_ms,
            )
            upload.upload_parts(self.bucket.objects(), self.partition, segment, contents)
        return GroupOutput(segment, written.summary, written.digest, written.bytes_read)

    def _list_contents(
        self, fs: FileSystem, directory: str, written: WrittenSegment
    ) -> list[upload.PartContent]:
        """Lists the parts of the new segment; producers and epochs are those of the last input.

        The key index is left out while a transaction in the segment is open.
        """

        def measure(kind: str) -> upload.PartContent:
            path = f"{directory}/{log_name(written.base_offset, kind)}{CLEANED}"
            return upload.measure_file(fs, kind.removeprefix("."), path)

        kinds = [LOG, INDEX, TIME_INDEX, *([TXN_INDEX] if written.has_txn_index else [])]
        contents = [measure(kind) for kind in kinds]
        last = remote_files.RemoteInput(self.partition, self.inputs[-1], self.files)
        for name in (SNAPSHOT_PART, EPOCHS_PART):
            data, part = last.read_part(name), last.remote.find_part(name)
            assert part is not None, "read_part has read it"
            contents.append(upload.BytesContent(data, part))
        return [*contents, measure(KEYS)] if self.is_decided else contents

    def _describe(self, written: WrittenSegment, parts: tuple[ObjectPart, ...]) -> RemoteSegment:
        first, last, header = self.inputs[0], self.inputs[-1], written.header
        return replace(
            last,
            id=self.id,
            base_offset=first.base_offset,
            size=written.size,
            record_count=written.summary.records,
            max_timestamp=written.max_timestamp,
            append_ms=(
                min(segment.append_ms[0] for segment in self.inputs),
                max(segment.append_ms[1] for segment in self.inputs),
            ),
            epochs=join_epochs(self.inputs),
            parts=parts,
            has_aborted=written.has_txn_index,
            state=SegmentState.COPY_STARTED,
            at_ms=self.now_ms,
            key_count=header.entry_count if self.is_decided else None,
            stale_bytes=self.stale_bytes,
            delete_horizon_ms=None if header.earliest_horizon < 0 else header.earliest_horizon,
            replaced_until_ms=None,
        )


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Plans the consecutive segments of a group again and rewrites them as one."""

    id: str
    first: int
    segments: tuple[JudgedSegment, ...]

    @property
    def inputs(self) -> tuple[RemoteSegment, ...]:
        return tuple(segment.segment for segment in self.segments)

    @property
    def read_bytes(self) -> int:
        return sum(segment.segment.size for segment in self.segments)

    def run(self, shared: PassInputs) -> GroupOutput:
        files = remote_files.open_files(shared.bucket.objects, shared.partition, self.inputs)
        return GroupRewrite(
            shared.bucket,
            shared.partition,
            self.id,
            self.inputs,
            shared.plan(self.first, self.segments, files),
            files,
            shared.settings,
            shared.topic_id,
            shared.buffer_bytes,
            shared.now_ms,
        ).run()


def join_epochs(segments: Sequence[RemoteSegment]) -> tuple[tuple[int, int], ...]:
    """Joins the leader epochs of consecutive segments, with the first offset of each epoch."""
    starts: dict[int, int] = {}
    for segment in segments:
        for epoch, start in segment.epochs:
            starts.setdefault(epoch, start)
    return tuple(starts.items())
