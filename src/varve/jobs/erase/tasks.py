"""The work of an erasure that runs anywhere: search segments, rewrite one, read objects again.

Invariant  a task carries all it needs and changes nothing that a reader sees; run twice it writes
           the same objects. A key index that cannot be used costs a scan, never a match.
Crash      what a rewrite uploads is announced in the manifest first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from varve.cleaning.compaction.erasure import (
    ErasedRecords,
    KeyDigest,
    balance_erasure,
    plan_erasure,
)
from varve.cleaning.compaction.segment_plan import SegmentPlan
from varve.cleaning.key_index.builder import build_key_index
from varve.cleaning.key_index.key_index import InputSegment, SegmentKeys
from varve.cleaning.removals.removal import Removal
from varve.commit_log import LogSettings, TopicPartition
from varve.commit_log.directory_files import decode_topic_id
from varve.commit_log.names import KEYS
from varve.commit_log.producer_state import LastRecord
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import RealFileSystem
from varve.foundation.errors import ObjectNotFound
from varve.jobs.compact.tasks import (
    GroupRewrite,
    WrittenGroup,
    find_key_index,
    find_whole_index,
    is_whole,
)
from varve.jobs.erase.scan import Matcher, Scan, ask_index, scan_log
from varve.jobs.source.piece_reading import ObjectSource
from varve.jobs.tier.bucket import BucketAccess
from varve.jobs.tier.remote_files import RemoteInput, open_files, scratch
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment

WRITER = "varve erase"


def plan_rewrite(
    source: InputSegment,
    keys: SegmentKeys | None,
    records: ErasedRecords,
    directory: str,
    *,
    topic_id: bytes,
    next_offset: int,
    aborted: Sequence[AbortedTransaction],
    producers: Mapping[int, LastRecord],
    buffer_bytes: int,
    now_ms: int,
) -> tuple[SegmentPlan, KeyDigest]:
    """The plan of a segment without some records, and what takes the digest of its keys.

    `keys` are those of its key index; where it has none, one is built in `directory`.
    """
    fs = RealFileSystem()
    if keys is None:
        path = f"{directory}/input{KEYS}"
        header = build_key_index(
            fs, source, topic_id=topic_id, aborted=aborted, buffer_bytes=buffer_bytes, path=path
        )
        keys = SegmentKeys(fs, path, header)
    digest = KeyDigest(fs, f"{directory}/digest{KEYS}", topic_id, buffer_bytes)
    plan = plan_erasure(
        source,
        keys,
        records,
        next_offset=next_offset,
        aborted=aborted,
        producers=producers,
        now_ms=now_ms,
        digest=digest,
    )
    return plan, digest


@dataclass(frozen=True, slots=True)
class LogObject:
    """A log object as it is listed; with a segment its key index may be asked instead."""

    key: str
    size: int
    segment: RemoteSegment | None = None


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Looks for the records of a shared Matcher in log objects, whatever names them.

    Gives a Scan for each, None for one that is gone. As a proof only what was read as a whole
    counts, of a key index too.
    """

    reach: BucketAccess
    partition: RemotePath
    logs: tuple[LogObject, ...]
    is_proof: bool

    def run(self, shared: Matcher) -> list[Scan | None]:
        return [self._scan(log, shared) for log in self.logs]

    def _scan(self, log: LogObject, matcher: Matcher) -> Scan | None:
        source = ObjectSource(self.reach.objects(), log.key)
        try:
            if log.segment is not None and matcher.is_by_key:
                scan = self._ask_index(log.segment, source, matcher)
                if scan is not None and not scan.is_matched:
                    return scan
            return scan_log(source, log.size, matcher)
        except ObjectNotFound:
            return None

    def _ask_index(
        self, segment: RemoteSegment, source: ObjectSource, matcher: Matcher
    ) -> Scan | None:
        """What a key index says; None where there is none that can be used."""
        topic_id = decode_topic_id(self.partition.topic_id).bytes
        with (
            open_files(self.reach.objects, self.partition, [segment]) as files,
            find_key_index(RemoteInput(self.partition, segment, files), topic_id) as index,
        ):
            if index is None or (self.is_proof and not is_whole(index)):
                return None
            scan = ask_index(index, source, matcher)
            if not self.is_proof:
                return scan
            return replace(scan, read_bytes=scan.read_bytes + index.header.file_size)


@dataclass(frozen=True, slots=True)
class ErasedGroup:
    """A segment that was rewritten and uploaded, not readable yet, and its balance."""

    written: WrittenGroup
    balance: Removal


@dataclass(frozen=True, slots=True)
class EraseTask:
    """Rewrites one segment without some records, uploads it, and reads it back.

    `aborted` are the transactions that touch it; `is_decided` where all of them are known.
    """

    reach: BucketAccess
    partition: RemotePath
    id: str
    number: int
    segment: RemoteSegment
    records: ErasedRecords
    aborted: tuple[AbortedTransaction, ...]
    is_decided: bool
    shells: dict[int, LastRecord]
    request: str
    buffer_bytes: int
    now_ms: int

    def run(self, shared: None) -> ErasedGroup:
        topic_id = decode_topic_id(self.partition.topic_id).bytes
        with (
            scratch() as directory,
            open_files(self.reach.objects, self.partition, [self.segment]) as files,
        ):
            source = RemoteInput(self.partition, self.segment, files)
            header = find_whole_index(source, topic_id)
            plan, digest = plan_rewrite(
                source,
                None if header is None else source.keys(header),
                self.records,
                directory,
                topic_id=topic_id,
                next_offset=source.next_offset,
                aborted=self.aborted,
                producers=self.shells,
                buffer_bytes=self.buffer_bytes,
                now_ms=self.now_ms,
            )
            written = GroupRewrite(
                self.reach,
                self.partition,
                self.id,
                (self.segment,),
                (plan,),
                files,
                LogSettings(),
                topic_id,
                self.buffer_bytes,
                self.now_ms,
                aborted=self.aborted,
                is_decided=self.is_decided,
                stale_bytes=self.segment.stale_bytes,
                writer=WRITER,
            ).run()
            balance = balance_erasure(
                plan,
                written.summary,
                id=self.number,
                partition=TopicPartition(self.partition.topic, self.partition.partition),
                digest_after=self._read_back(written, digest),
                request=self.request,
            )
        return ErasedGroup(written, balance)

    def _read_back(self, written: WrittenGroup, digest: KeyDigest) -> tuple[int, int]:
        """The digest of what the store holds now."""
        with open_files(self.reach.objects, self.partition, [written.segment]) as files:
            return digest.of(RemoteInput(self.partition, written.segment, files))
