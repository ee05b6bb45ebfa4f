"""Erases records from a local log: rewrites segments with a match and swaps them in.

Invariant  a rewritten segment is swapped in only after its balance is checked and stored. When the
           erasure ends, the files of replaced segments are deleted, and so are the .deleted files
           of earlier runs. The search reads and checks every segment and changes nothing. Memory
           holds the matching records of one segment at a time.
Crash      the next open completes or undoes an interrupted swap; the erasure is then run again.
Threads    one; the store is open in this process, and no other thread appends.
"""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Final

import numpy as np

from varve.cleaning.compaction.erasure import ErasedRecords, balance_erasure
from varve.cleaning.compaction.rewrite import WrittenSegment, remove_unfinished, write_group
from varve.cleaning.compaction.segment_plan import SegmentPlan
from varve.cleaning.key_index.key_index import SegmentKeys, open_key_index
from varve.cleaning.removals.removal_log import RemovalLog
from varve.cleaning.work_budget import UNLIMITED
from varve.commit_log import Log, Segment
from varve.commit_log.directory_files import decode_topic_id
from varve.commit_log.names import CLEANED, DELETED, KEYS, LOG, parse_file_name
from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, Unavailable
from varve.foundation.settings import LONG_MAX
from varve.jobs.erase.receipt import ObjectChange, StoredObject
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.result import OffsetSpool, PartitionErasure, TierFindings
from varve.jobs.erase.scan import Matcher, locate_records, scan_log
from varve.jobs.erase.tasks import plan_rewrite
from varve.jobs.source.local_log import FileSource
from varve.jobs.tier.remote_files import FileInput, scratch
from varve.kernels.crc import extend_crc32c

_CHUNK_BYTES: Final = 4 << 20
"""Bytes of a segment in memory at a time when its checksum is computed."""


@dataclass
class LocalErasure:
    """The search of one log of an open store, and the rewrite of its segments with a match."""

    log: Log
    matcher: Matcher
    request: ErasureRequest
    _: KW_ONLY
    fs: FileSystem
    clock: Clock

    def __post_init__(self) -> None:
        self._now_ms = self.clock.now_ms()
        self._topic_id = decode_topic_id(self.matcher.topic_id).bytes
        self._evidence = RemovalLog(self.fs, self.log.directory)

    def search(self, offsets: OffsetSpool | None = None) -> TierFindings:
        """Reads every segment; raises Corrupt. A key index rules out no data: damage shows here.

        Adds the offsets of matches to `offsets`.
        """
        self.log.flush()
        owner = self.log.topic_partition
        findings = TierFindings(
            PartitionErasure(topic=owner.topic, partition=owner.partition, tier="hot")
        )
        for segment in self.log.view:
            if not segment.size:
                continue
            source = FileSource(segment.file())
            scan = scan_log(source, segment.size, self.matcher, with_offsets=offsets is not None)
            findings.figures.add_scan(segment.size, scan)
            if scan.is_matched:
                findings.matched.append(segment.path(LOG))
                if offsets is not None:
                    offsets.add(owner.topic, owner.partition, scan.offsets)
        return findings

    def rewrite(self, matched: Collection[str]) -> list[ObjectChange]:
        """Rewrites the segments at these paths; returns the changed files."""
        remove_unfinished(self.fs, self.log.directory)
        self.log.flush()
        if self.log.view.active.path(LOG) in matched:
            self.log.roll()
        changes = [
            self._erase(segment) for segment in self.log.view.closed if segment.path(LOG) in matched
        ]
        self.log.delete_expired_files(LONG_MAX)
        self._remove_deleted_files()
        return changes

    def _remove_deleted_files(self) -> None:
        """Deletes files with the suffix .deleted that earlier runs have left."""
        for name in self.fs.names(self.log.directory):
            file = parse_file_name(name)
            if file is not None and file.state == DELETED:
                self.fs.remove(f"{self.log.directory}/{name}")

    def _next_offset(self, segment: Segment) -> int:
        bases = [other.base_offset for other in self.log.view]
        return bases[bases.index(segment.base_offset) + 1]

    def _erase(self, segment: Segment) -> ObjectChange:
        before = _describe_file(segment)
        records = locate_records(FileSource(segment.file()), segment.size, self.matcher)
        with scratch() as directory:
            plan, written, digest_after = self._write(segment, records, directory)
        with self._evidence.removal_lock:
            try:
                balance = balance_erasure(
                    plan,
                    written.summary,
                    id=self._evidence.next_id(),
                    partition=self.log.topic_partition,
                    digest_after=digest_after,
                    request=self.request.id,
                )
                self._evidence.append(balance)
            except Exception:
                written.discard(self.fs, self.log.directory)
                raise
            new = self.log.replace_segments(
                [segment],
                base_offset=written.base_offset,
                size=written.size,
                has_txn_index=written.has_txn_index,
            )
            if new is None:
                raise Unavailable(
                    f"{self.log.topic_partition}: segment {segment.base_offset} was removed "
                    "during the erasure: erase again"
                )
            self._evidence.mark_done(balance.id)
        self.log.delete_expired_files(LONG_MAX)
        return ObjectChange(before, _describe_file(new))

    def _write(
        self, segment: Segment, records: ErasedRecords, directory: str
    ) -> tuple[SegmentPlan, WrittenSegment, tuple[int, int]]:
        log = self.log
        next_offset = self._next_offset(segment)
        aborted = log.collect_aborted(segment.base_offset, next_offset)
        plan, digest = plan_rewrite(
            segment,
            self._find_valid_keys(segment),
            records,
            directory,
            topic_id=self._topic_id,
            next_offset=next_offset,
            aborted=aborted,
            producers=log.active_producers(),
            buffer_bytes=self.request.buffer_bytes,
            now_ms=self._now_ms,
        )
        written = write_group(
            self.fs,
            log.directory,
            [plan],
            settings=log.settings,
            topic_id=self._topic_id,
            buffer_bytes=self.request.buffer_bytes,
            modified_ms=self.fs.info(segment.path(LOG)).modified_ms,
            budget=UNLIMITED,
            aborted=aborted,
        )
        if next_offset > log.last_stable_offset:
            # Some of its transactions are still open, so the key index would be incomplete.
            self.fs.remove(f"{segment.path(KEYS)}{CLEANED}")
        path = f"{segment.path(LOG)}{CLEANED}"
        with self.fs.open(path) as file:
            digest_after = digest.of(FileInput(written.base_offset, written.size, path, file))
        return plan, written, digest_after

    def _find_valid_keys(self, segment: Segment) -> SegmentKeys | None:
        """Returns the key index of a segment; None if it is missing or an entry is invalid."""
        with suppress(Corrupt):
            index = open_key_index(self.fs, segment, topic_id=self._topic_id)
            if index is not None:
                with index:
                    index.verify()
                    return SegmentKeys(self.fs, segment.path(KEYS), index.header)
        return None


def _describe_file(segment: Segment) -> StoredObject:
    crc, file, size = 0, segment.file(), segment.size
    for start in range(0, size, _CHUNK_BYTES):
        data = np.frombuffer(file.read_at(start, min(_CHUNK_BYTES, size - start)), np.uint8)
        crc = int(extend_crc32c(crc, data, 0, data.size))
    return StoredObject(segment.path(LOG), size, f"{crc:08x}")
