"""The work of a compaction that runs anywhere: index, plan ranges and segments, rewrite groups.

Invariant  a task carries all it needs and changes nothing that a reader sees. A task that is run
           twice, even at the same time, writes the same objects: its outcome follows from what it
           carries.
Crash      a group's objects are announced in the manifest, with sizes and checksums of all parts,
           before the first is written; what is never finished is taken back by the next run. A key
           index that was missing is put under its segment's own name: until the manifest names it
           the next run writes it again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from varve.cleaning.compaction.key_plan import HashRange, Integers, KeyPlan
from varve.cleaning.compaction.plan import PlanInput, find_latest_records, plan_segment
from varve.cleaning.compaction.rewrite import WrittenSegment, write_group
from varve.cleaning.compaction.segment_plan import RunRules, SegmentFigures, SegmentPlan
from varve.cleaning.compaction.transactions import TransactionTracker
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
from varve.tiering.copy import segment_upload as upload
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
    """The key index of a remote segment; None where there is none that can be used."""
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
    """Whether all of it is there, with the right checksum."""
    try:
        index.verify()
    except (Corrupt, UnsupportedFormat, ObjectNotFound):
        return False
    return True


def find_whole_index(source: remote_files.RemoteInput, topic_id: bytes) -> KeyIndexHeader | None:
    """The header of the segment's key index if all of it can be used."""
    with find_key_index(source, topic_id) as index:
        return index.header if index is not None and is_whole(index) else None


@dataclass(frozen=True, slots=True)
class IndexedSegment:
    """The key index of a segment; `part` if it was just built and the manifest must list it."""

    header: KeyIndexHeader
    part: ObjectPart | None


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Verifies the key index of a segment as a whole; makes one where there is none to use.

    Raises Corrupt for a segment whose data is damaged. In a dry run nothing is made: then the
    outcome is None.
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
    """Segments as planning takes them; one without a header is held."""
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
    """What all ranges of one partition are planned over; sent once per stage.

    The bits of records go to `area`, or to the driver where there is none.
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
        """The segments, open as long as this is, and the latest records of keys in a range."""
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
    """A segment, the counts of all ranges for it, and what judges its transactions."""

    segment: RemoteSegment
    header: KeyIndexHeader
    is_dirty: bool
    tally: Integers
    transactions: TransactionTracker

    @property
    def plan_bytes(self) -> int:
        """About what it takes to plan it: the tables of its key index, and its bits."""
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
        # Copies, because a task may run twice and planning changes both.
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
    """What all segments and groups of one partition are planned and written by; sent once."""

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
        """The plans of consecutive segments, the first of which has a number."""
        found = self.bits.read(first, [segment.header.record_count for segment in segments])
        return tuple(
            segment.plan(self.partition, files, bits, self.rules)
            for segment, bits in zip(segments, found, strict=True)
        )


@dataclass(frozen=True, slots=True)
class SegmentsTask:
    """Plans consecutive segments, once it is known which records are the latest."""

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
class WrittenGroup:
    """A group in the store under an announced id, not readable yet."""

    segment: RemoteSegment
    summary: SegmentSummary
    digest: tuple[int, int]
    bytes_read: int


@dataclass(frozen=True, slots=True)
class GroupRewrite:
    """Rewrites planned segments as one: into scratch, announced, uploaded, looked up.

    The plans read through one TierFiles of their own. `aborted` are the transactions that the key
    index leaves out, if they are not those that stay listed; `is_decided` tells that all of them
    are known. Of an erasure stale records stay: `stale_bytes` are those of the input.
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

    def run(self) -> WrittenGroup:
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
        return WrittenGroup(segment, written.summary, written.digest, written.bytes_read)

    def _list_contents(
        self, fs: FileSystem, directory: str, written: WrittenSegment
    ) -> list[upload.PartContent]:
        """The objects of the new segment; producers and leader epochs are those of its last input.

        It goes without its key index while a transaction in it is not decided.
        """

        def measure(kind: str) -> upload.PartContent:
            path = f"{directory}/{log_name(written.base_offset, kind)}{CLEANED}"
            return upload.measure_file(fs, kind.removeprefix("."), path)

        kinds = [LOG, INDEX, TIME_INDEX, *([TXN_INDEX] if written.has_txn_index else [])]
        contents = [measure(kind) for kind in kinds]
        last = remote_files.RemoteInput(self.partition, self.inputs[-1], self.files)
        for name in (SNAPSHOT_PART, EPOCHS_PART):
            data, part = last.read_part(name), last.remote.find_part(name)
            assert part is not None, "it was read by it"
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
    """Plans the consecutive segments of a group again, and rewrites them as one."""

    id: str
    first: int
    segments: tuple[JudgedSegment, ...]

    @property
    def inputs(self) -> tuple[RemoteSegment, ...]:
        return tuple(segment.segment for segment in self.segments)

    @property
    def read_bytes(self) -> int:
        return sum(segment.segment.size for segment in self.segments)

    def run(self, shared: PassInputs) -> WrittenGroup:
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
    """The leader epochs of segments that follow each other, each from its first offset on."""
    starts: dict[int, int] = {}
    for segment in segments:
        for epoch, start in segment.epochs:
            starts.setdefault(epoch, start)
    return tuple(starts.items())
