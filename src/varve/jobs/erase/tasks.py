"""Tasks of an erasure: search segments, rewrite a segment, re-scan objects.

A re-scan is the proof for the receipt. In the remote tier it reads every log object below the
topic's prefix: live, in an older manifest, announced, replaced and in its grace time, or
unreferenced.

Invariant  a task contains all its inputs and changes nothing that a reader sees; run twice, it
           writes the same objects. An unusable key index costs a scan, but never misses a match. A
           receipt is issued only after a re-scan without matches (G8): an object that cannot be
           read fails the erasure; an object deleted since it was listed has no matches. A task
           returns counts; offsets of matches only if outputs are erased by them.
Crash      the manifest announces a rewritten segment before it is uploaded.
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
    GroupOutput,
    GroupRewrite,
    find_key_index,
    find_whole_index,
    is_whole,
)
from varve.jobs.erase.request import RescanMode
from varve.jobs.erase.scan import Matcher, Scan, locate_records, scan_index, scan_log
from varve.jobs.source.local_log import FileSource
from varve.jobs.source.piece_reading import ObjectSource
from varve.jobs.tasks import TaskRunner, pack_by_size
from varve.jobs.tier.bucket import BucketAccess
from varve.jobs.tier.remote_files import RemoteInput, open_files, scratch
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import LOG_PART, RemoteSegment

WRITER: Final = "varve erase"
_TASK_BYTES: Final = 256 << 20
"""Approximate bytes of log objects that one task reads."""
_TASK_OBJECTS_MAX: Final = 256
_SHOWN_MAX: Final = 3
"""Objects with matches that the error of a re-scan names."""
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
    """Plans a segment without `records`; returns the plan and the digest of its keys.

    `keys` is the key index of the segment; if it is None, an index is built in `directory`.
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
    """A listed log object; with `segment` its key index may be searched first."""

    key: str
    size: int
    segment: RemoteSegment | None = None


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Searches log objects for the records of the shared Matcher.

    Returns a Scan for each object, None for an object that no longer exists. With `is_proof` a key
    index counts only if all of it is verified. `with_offsets` adds the offsets of all matches.
    """

    bucket: BucketAccess
    partition: RemotePath
    logs: tuple[LogObject, ...]
    is_proof: bool = False
    with_offsets: bool = False

    def run(self, shared: Matcher) -> list[Scan | None]:
        return [self._scan(log, shared) for log in self.logs]

    def _scan(self, log: LogObject, matcher: Matcher) -> Scan | None:
        source = ObjectSource(self.bucket.objects(), log.key)
        try:
            if log.segment is not None and matcher.is_by_key:
                scan = self._scan_index(log.segment, source, matcher)
                if scan is not None and not scan.is_matched:
                    return scan
            return scan_log(source, log.size, matcher, with_offsets=self.with_offsets)
        except ObjectNotFound:
            return None

    def _scan_index(
        self, segment: RemoteSegment, source: ObjectSource, matcher: Matcher
    ) -> Scan | None:
        """Searches the key index of a segment; None if it is missing or unusable."""
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
    bucket: BucketAccess,
    partition: RemotePath,
    logs: Sequence[LogObject],
    *,
    is_proof: bool = False,
    with_offsets: bool = False,
) -> list[ScanTask]:
    parts = pack_by_size(
        logs, lambda log: log.size, target_bytes=_TASK_BYTES, max_items=_TASK_OBJECTS_MAX
    )
    return [ScanTask(bucket, partition, tuple(part), is_proof, with_offsets) for part in parts]


@dataclass(frozen=True, slots=True)
class ErasedGroup:
    """A rewritten and uploaded segment, not readable yet, and its balance."""

    written: GroupOutput
    balance: Removal


@dataclass(frozen=True, slots=True)
class EraseTask:
    """Rewrites one segment without the records of the shared Matcher, and reads it back.

    `aborted` are the aborted transactions with records in the segment; `is_decided` is False while
    one of its transactions is open. `producers` are the last records of the producers of the
    partition.
    """

    bucket: BucketAccess
    partition: RemotePath
    id: str
    number: int
    segment: RemoteSegment
    aborted: tuple[AbortedTransaction, ...]
    is_decided: bool
    producers: dict[int, LastRecord]
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
                producers=self.producers,
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
        key = self.partition.part_key(self.segment, LOG_PART)
        return locate_records(ObjectSource(self.bucket.objects(), key), self.segment.size, matcher)

    def _read_back(self, written: GroupOutput, digest: KeyDigest) -> tuple[int, int]:
        """Computes the digest of the keys in the uploaded segment."""
        with open_files(self.bucket.objects, self.partition, [written.segment]) as files:
            return digest.of(RemoteInput(self.partition, written.segment, files))


# The re-scan


class NotErased(StoreError):
    """Records to erase still exist; no receipt is issued."""


@dataclass(slots=True)
class Rescan:
    """The figures of a re-scan, and the objects and files that still have matches."""

    objects: int = 0
    files: int = 0
    bytes: int = 0
    records: int = 0
    outputs: int = 0
    matches: dict[str, int] = field(default_factory=dict)
    """Matching records by object or file."""

    def add(self, name: str, scan: Scan) -> None:
        self.bytes += scan.read_bytes
        self.records += scan.record_count
        if scan.is_matched:
            self.matches[name] = scan.match_count

    def to_json(self) -> dict[str, object]:
        return {
            "objects": self.objects,
            "files": self.files,
            "outputs": self.outputs,
            "bytes": self.bytes,
            "records": self.records,
            "found": sum(self.matches.values()),
        }

    def check(self) -> None:
        """Raises NotErased if there are matches."""
        if not self.matches:
            return
        names = [f"{name} ({count} records)" for name, count in self.matches.items()]
        others = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
        raise NotErased(
            f"records that were to be erased are still in {', '.join(names[:_SHOWN_MAX])}{others}; "
            "no receipt is issued. Run the job again once running copies have ended; `varve tier "
            "fsck --sweep` removes objects that no manifest names"
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
    """Re-scans all log objects below the prefixes of the partitions of one topic."""
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
    """Lists every log object of a partition; in mode `keys`, live objects have their segment."""
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
    """Re-scans all data files of a partition directory, .cleaned, .swap and .deleted ones too."""
    for name in fs.names(directory):
        file_name = parse_file_name(name)
        if file_name is None or file_name.kind != LOG or file_name.state not in _FILE_STATES:
            continue
        path = f"{directory}/{name}"
        with fs.open(path) as file:
            scan = scan_log(FileSource(file), file.size(), matcher)
        rescan.files += 1
        rescan.add(path, scan)
