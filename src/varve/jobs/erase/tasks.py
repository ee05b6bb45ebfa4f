"""The work of an erasure that runs anywhere: search segments, rewrite one, read objects again.

A re-scan is the proof that a receipt stands on. In the cold tier it reads every log object below
the topic's prefix, whatever names it: live, of an older manifest, announced, replaced and in its
grace time, or named by nothing.

Invariant  a task carries all it needs and changes nothing that a reader sees; run twice it writes
           the same objects. A key index that cannot be used costs a scan, never a match. A receipt
           is issued only after a re-scan found nothing (G8): an object that cannot be read ends the
           erasure; one that is gone since it was listed holds nothing. What comes back of records
           that are found by their keys is bounded for each segment.
Crash      what a rewrite uploads is announced in the manifest first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

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
from varve.commit_log.names import CLEANED, DELETED, KEYS, LOG, SWAP, parse_file_name
from varve.commit_log.producer_state import LastRecord
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import FileSystem, RealFileSystem
from varve.foundation.errors import ObjectNotFound, StoreError
from varve.jobs.compact.tasks import (
    GroupRewrite,
    WrittenGroup,
    find_key_index,
    find_whole_index,
    is_whole,
)
from varve.jobs.erase.request import RescanMode
from varve.jobs.erase.scan import Matcher, Scan, scan_index, scan_log
from varve.jobs.source.local_log import FileSource
from varve.jobs.source.piece_reading import ObjectSource
from varve.jobs.tasks import TaskRunner, pack_by_size
from varve.jobs.tier.bucket import BucketAccess
from varve.jobs.tier.remote_files import RemoteInput, open_files, scratch
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import LOG_PART, RemoteSegment

WRITER: Final = "varve erase"
RECORDS_SENT_MAX: Final = 10_000
"""Records of one segment whose places a task sends to the driver, at 24 bytes each."""
_TASK_BYTES: Final = 256 << 20
"""About how much of a log one task reads."""
_TASK_ITEMS: Final = 256
_SHOWN: Final = 3
_FILE_STATES: Final = ("", CLEANED, SWAP, DELETED)


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

    bucket: BucketAccess
    partition: RemotePath
    logs: tuple[LogObject, ...]
    is_proof: bool

    def run(self, shared: Matcher) -> list[Scan | None]:
        return [_slim(self._scan(log, shared), shared) for log in self.logs]

    def _scan(self, log: LogObject, matcher: Matcher) -> Scan | None:
        source = ObjectSource(self.bucket.objects(), log.key)
        try:
            if log.segment is not None and matcher.is_by_key:
                scan = self._scan_index(log.segment, source, matcher)
                if scan is not None and not scan.is_matched:
                    return scan
            return scan_log(source, log.size, matcher)
        except ObjectNotFound:
            return None

    def _scan_index(
        self, segment: RemoteSegment, source: ObjectSource, matcher: Matcher
    ) -> Scan | None:
        """What a key index says; None where there is none that can be used."""
        topic_id = decode_topic_id(self.partition.topic_id).bytes
        with (
            open_files(self.bucket.objects, self.partition, [segment]) as files,
            find_key_index(RemoteInput(self.partition, segment, files), topic_id) as index,
        ):
            if index is None or (self.is_proof and not is_whole(index)):
                return None
            scan = scan_index(index, source, matcher)
            if not self.is_proof:
                return scan
            return replace(scan, read_bytes=scan.read_bytes + index.header.file_size)


def make_scan_tasks(
    bucket: BucketAccess, partition: RemotePath, logs: Sequence[LogObject], *, is_proof: bool
) -> list[ScanTask]:
    parts = pack_by_size(
        logs, lambda log: log.size, target_bytes=_TASK_BYTES, max_items=_TASK_ITEMS
    )
    return [ScanTask(bucket, partition, tuple(part), is_proof) for part in parts]


def _slim(scan: Scan | None, matcher: Matcher) -> Scan | None:
    """Without many records, which are found again by their keys where they are erased.

    Those that a field was found in travel all the same: their offsets are looked for in copies.
    """
    if scan is None or not matcher.is_by_key or scan.match_count <= RECORDS_SENT_MAX:
        return scan
    return replace(scan, found=None)


@dataclass(frozen=True, slots=True)
class ErasedGroup:
    """A segment that was rewritten and uploaded, not readable yet, and its balance."""

    written: WrittenGroup
    balance: Removal


@dataclass(frozen=True, slots=True)
class EraseTask:
    """Rewrites one segment without some records, uploads it, and reads it back.

    `records` are found again by the shared Matcher where they are not given.
    `aborted` are the transactions that touch it; `is_decided` where all of them are known.
    """

    bucket: BucketAccess
    partition: RemotePath
    id: str
    number: int
    segment: RemoteSegment
    records: ErasedRecords | None
    aborted: tuple[AbortedTransaction, ...]
    is_decided: bool
    shells: dict[int, LastRecord]
    request: str
    buffer_bytes: int
    now_ms: int

    def run(self, shared: Matcher) -> ErasedGroup:
        topic_id = decode_topic_id(self.partition.topic_id).bytes
        with (
            scratch() as directory,
            open_files(self.bucket.objects, self.partition, [self.segment]) as files,
        ):
            source = RemoteInput(self.partition, self.segment, files)
            header = find_whole_index(source, topic_id)
            plan, digest = plan_rewrite(
                source,
                None if header is None else source.keys(header),
                self._find_records(shared),
                directory,
                topic_id=topic_id,
                next_offset=source.next_offset,
                aborted=self.aborted,
                producers=self.shells,
                buffer_bytes=self.buffer_bytes,
                now_ms=self.now_ms,
            )
            written = GroupRewrite(
                self.bucket,
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

    def _find_records(self, matcher: Matcher) -> ErasedRecords:
        if self.records is not None:
            return self.records
        key = self.partition.part_key(self.segment, LOG_PART)
        scan = scan_log(ObjectSource(self.bucket.objects(), key), self.segment.size, matcher)
        assert scan.found is not None, "data was scanned"
        return scan.found

    def _read_back(self, written: WrittenGroup, digest: KeyDigest) -> tuple[int, int]:
        """The digest of what the store holds now."""
        with open_files(self.bucket.objects, self.partition, [written.segment]) as files:
            return digest.of(RemoteInput(self.partition, written.segment, files))


# The re-scan


class NotErased(StoreError):
    """Records are still there that were to be erased; no receipt is issued."""


@dataclass(slots=True)
class Rescan:
    """What was read again, and where records were found that should be gone."""

    objects: int = 0
    files: int = 0
    bytes: int = 0
    records: int = 0
    outputs: int = 0
    found: dict[str, int] = field(default_factory=dict)
    """How many records by object, file or output."""

    def add(self, name: str, scan: Scan) -> None:
        self.bytes += scan.read_bytes
        self.records += scan.record_count
        if scan.is_matched:
            self.found[name] = scan.match_count

    def to_json(self) -> dict[str, object]:
        return {
            "objects": self.objects,
            "files": self.files,
            "outputs": self.outputs,
            "bytes": self.bytes,
            "records": self.records,
            "found": sum(self.found.values()),
        }

    def check(self) -> None:
        """Raises NotErased if anything was found."""
        if not self.found:
            return
        places = [f"{name} ({count} records)" for name, count in self.found.items()]
        more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        raise NotErased(
            f"records that were to be erased are still in {', '.join(places[:_SHOWN])}{more}; no "
            "receipt is issued. Run the job again; what no manifest names is removed by `varve "
            "tier fsck --sweep`, and a copy under way must end first"
        )


def rescan_remote(
    rescan: Rescan,
    bucket: BucketAccess,
    partitions: Sequence[RemotePath],
    matcher: Matcher,
    *,
    mode: RescanMode,
    runner: TaskRunner,
) -> None:
    """All log objects below the prefixes of these partitions of one topic."""
    tasks = [
        task
        for partition in partitions
        for task in make_scan_tasks(
            bucket, partition, _list_logs(bucket, partition, mode), is_proof=True
        )
    ]
    for task, scans in zip(tasks, runner.run("re-scan", tasks, matcher), strict=True):
        for log, scan in zip(task.logs, scans, strict=True):
            if scan is not None:
                rescan.objects += 1
                rescan.add(log.key, scan)


def _list_logs(bucket: BucketAccess, partition: RemotePath, mode: RescanMode) -> list[LogObject]:
    """Every log object of a partition; in the mode `keys` the live ones with their segments."""
    live = {}
    if mode is RescanMode.KEYS:
        manifests = bucket.manifests(partition)
        for segment in manifests.segments(manifests.load()):
            if segment.is_readable:
                live[partition.part_key(segment, LOG_PART)] = segment
    return [
        LogObject(info.key, info.size, live.get(info.key))
        for info in bucket.objects().list(partition.segment_folder)
        if info.key.rpartition("/")[2] == LOG_PART
    ]


def rescan_local(rescan: Rescan, fs: FileSystem, directory: str, matcher: Matcher) -> None:
    """All data files of a partition's directory as a whole, also those set aside."""
    for name in fs.names(directory):
        file_name = parse_file_name(name)
        if file_name is None or file_name.kind != LOG or file_name.state not in _FILE_STATES:
            continue
        path = f"{directory}/{name}"
        with fs.open(path) as file:
            scan = scan_log(FileSource(file), file.size(), matcher)
        rescan.files += 1
        rescan.add(path, scan)
