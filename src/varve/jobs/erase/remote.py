"""Erases records from one partition of the remote tier, stage by stage.

1. Tasks search every readable segment, and every replaced segment whose objects still exist, by its
   key index or by a scan. Nothing is changed before all partitions have been searched.
2. The run deletes leftovers of earlier runs. One task per segment with a match rewrites it and
   uploads it under an announced id.
3. The driver checks and stores the balances, and one manifest commit makes the new segments
   readable.
4. The objects of replaced segments are deleted, unless the request has a grace time.

Invariant  only the third step changes what readers see, in one commit. A segment that another
           writer replaced after the search is left to the next pass. Tasks return counts of
           matches; those that rewrite a segment find its records themselves.
Crash      before the third step readers see the old segments; the next run deletes announced ones.
Threads    one on the driver; the runner decides where tasks run.
"""

import json
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from varve.cleaning.removals.removal import Removal, encode_removal
from varve.foundation.clock import Clock
from varve.foundation.errors import ObjectNotFound, StoreError, Unavailable
from varve.foundation.units import format_duration
from varve.jobs.compact.cleanable import find_chain, find_leftovers, read_aborted, read_producers
from varve.jobs.compact.commit import CompactCommit, WrittenGroup
from varve.jobs.erase.receipt import ObjectChange, StoredObject
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.result import ErasureCost, OffsetSpool, PartitionErasure, TierFindings
from varve.jobs.erase.scan import Matcher, Scan
from varve.jobs.erase.tasks import WRITER, EraseTask, LogObject, make_scan_tasks
from varve.jobs.source.record_blocks import CHUNK_BYTES, aborted_within
from varve.jobs.tasks import Stage, Stages, TaskError, run_stage
from varve.jobs.tier.bucket import BucketAccess
from varve.jobs.tier.remote_files import open_files
from varve.object_store import ObjectStore
from varve.object_store.metering import PriceTable, RequestKind
from varve.tiering.history_check import ERASURE_PREFIX
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.pages import new_id
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import LOG_PART, RemoteSegment, SegmentState
from varve.tiering.partition_lease import HeldLease, hold_lease

_REWRITE_READS: Final = 5
"""Reads of a segment with a match: to search it, find its records, plan it, copy it, and verify the
output."""
_REWRITE_REQUESTS: Final = 30
"""Estimated: seven objects are written, checked and read back, announced and committed."""


@dataclass(slots=True)
class RemoteChanges:
    """The results of rewriting a partition.

    `is_waiting` is True while replaced objects are retained for their grace time. `removed_keys`
    are the log objects of all deleted segments, leftovers of other jobs included.
    """

    figures: PartitionErasure
    replaced_ids: list[str] = field(default_factory=list)
    removed_keys: list[str] = field(default_factory=list)
    is_waiting: bool = False
    error: StoreError | None = None


@dataclass
class RemoteErasure:
    """The search of one partition, and the rewrite of its segments with a match.

    `owns_copies` says that no other process copies to the partition, so that an unfinished copy is
    searched too.
    """

    partition: RemotePath
    bucket: BucketAccess
    matcher: Matcher
    request: ErasureRequest
    _: KW_ONLY
    clock: Clock
    random: random.Random
    owns_copies: bool = False

    def __post_init__(self) -> None:
        self._lease: HeldLease | None = None
        self._now_ms = self.clock.now_ms()
        self._manifests = self.bucket.manifests(self.partition)
        self._changes = RemoteChanges(self._new_figures())

    def _new_figures(self) -> PartitionErasure:
        topic, partition = self.partition.topic, self.partition.partition
        return PartitionErasure(topic=topic, partition=partition, tier="cold")

    # Search

    def search(
        self,
        only: Collection[str] | None = None,
        *,
        waits_for_grace: bool = False,
        offsets: OffsetSpool | None = None,
    ) -> Stages[TierFindings]:
        """Searches the segments that a rewrite keeps; changes nothing.

        `only` restricts the search to the segments with these log objects, and scans their data
        instead of their key indexes. With `waits_for_grace` it raises Unavailable while readers may
        still use replaced objects. Adds the offsets of matches to `offsets`.
        """
        chosen = self._choose(only)
        logs = [
            LogObject(self._log_key(segment), segment.size, segment if only is None else None)
            for segment in chosen
        ]
        tasks = make_scan_tasks(self.bucket, self.partition, logs, with_offsets=offsets is not None)
        fold = _SearchFold(self.partition, iter(chosen), TierFindings(self._new_figures()), offsets)
        yield from run_stage(Stage("find", tasks, self.matcher, fold))
        if fold.error is not None:
            raise fold.error
        if waits_for_grace:
            self._check_grace(fold.replaced)
        return fold.findings

    def _choose(self, only: Collection[str] | None) -> list[RemoteSegment]:
        """Lists the segments to search: not leftovers, which the rewrite deletes first."""
        manifest = self._manifests.load()
        leftovers = find_leftovers(self._manifests, manifest, now_ms=self._now_ms)
        left_ids = {segment.id for segment in leftovers}
        return [
            segment
            for segment in self._manifests.segments(manifest)
            if segment.id not in left_ids
            and (self.owns_copies or segment.state is not SegmentState.COPY_STARTED)
            and (only is None or self._log_key(segment) in only)
        ]

    def _check_grace(self, replaced: Sequence[RemoteSegment]) -> None:
        ends_ms = [
            segment.replaced_until_ms
            for segment in replaced
            if segment.replaced_until_ms is not None
        ]
        if ends_ms and max(ends_ms) > self._now_ms:
            raise Unavailable(
                f"{self.partition}: readers may rely on replaced objects for another "
                f"{format_duration(max(ends_ms) - self._now_ms)}; finish the erasure after that"
            )

    def _log_key(self, segment: RemoteSegment) -> str:
        return self.partition.part_key(segment, LOG_PART)

    # Rewrite

    def rewrite(self, matched: Collection[str]) -> Stages[RemoteChanges]:
        """Rewrites the segments with these log objects, and deletes leftovers.

        A StoreError is in the changes, and other partitions continue.
        """
        try:
            with hold_lease(
                self.bucket.objects(),
                self.partition,
                f"erase-{self.request.id}",
                clock=self.clock,
                takes_over=self.request.takes_over,
            ) as self._lease:
                yield from self._rewrite(matched)
        except StoreError as error:
            self._changes.error = error
        return self._changes

    def _rewrite(self, matched: Collection[str]) -> Stages[None]:
        manifest = self._sweep()
        listed = list(self._manifests.segments(manifest))
        chosen = [segment for segment in listed if self._log_key(segment) in matched]
        live = [segment for segment in chosen if segment.is_readable]
        if live:
            yield from self._replace(manifest, listed, live)
        self._release([segment for segment in chosen if not segment.is_readable])

    def _sweep(self) -> Manifest:
        manifest = self._manifests.load()
        leftovers = find_leftovers(self._manifests, manifest, now_ms=self._now_ms)
        self._remove(leftovers)
        self._changes.figures.swept += len(leftovers)
        return self._manifests.load() if leftovers else manifest

    def _remove(self, segments: Sequence[RemoteSegment]) -> None:
        removed = self._manifests.remove(
            segments, leader_epoch=None, writer=WRITER, now_ms=self._now_ms
        )
        self._changes.removed_keys += [self._log_key(segment) for segment in removed]

    def _replace(
        self, manifest: Manifest, listed: Sequence[RemoteSegment], live: Sequence[RemoteSegment]
    ) -> Stages[None]:
        tasks = self._plan(find_chain(manifest, listed), listed, live)
        done = yield from run_stage(Stage("rewrite", tasks, self.matcher))
        if self._lease is not None:
            self._lease.renew()
        groups = [
            WrittenGroup((task.segment,), (), group.written)
            for task, group in zip(tasks, done, strict=True)
        ]
        changes = [self._describe(group) for group in groups]
        self._put_evidence([group.balance for group in done], changes)
        commit = CompactCommit(
            self._manifests,
            groups,
            start_offset=live[0].base_offset,
            end_offset=max(segment.end_offset for segment in live) + 1,
            now_ms=self._now_ms,
            replaced_retention_ms=self.request.grace_ms,
            writer=WRITER,
            is_ordered=False,
        )
        commit.run()
        self._release([group.inputs[0] for group in commit.committed])

    def _plan(
        self,
        chain: Sequence[RemoteSegment],
        listed: Sequence[RemoteSegment],
        live: Sequence[RemoteSegment],
    ) -> list[EraseTask]:
        start, end = live[0].base_offset, max(segment.end_offset for segment in live) + 1
        later = [
            segment for segment in listed if segment.is_readable and segment.end_offset >= start
        ]
        with open_files(self.bucket.objects, self.partition, {*later, *chain[-1:]}) as files:
            aborted = read_aborted(self.partition, later, files, end_offset=end)
            producers = read_producers(self.partition, chain[-1], files) if chain else {}
        undecided = chain[-1].undecided_from if chain else None
        return [
            EraseTask(
                self.bucket,
                self.partition,
                new_id(self.random),
                number,
                segment,
                aborted_within(
                    aborted, start_offset=segment.base_offset, end_offset=segment.end_offset + 1
                ),
                undecided is None or undecided > segment.end_offset,
                producers,
                self.request.id,
                self.request.buffer_bytes,
                self._now_ms,
            )
            for number, segment in enumerate(live, 1)
        ]

    def _describe(self, group: WrittenGroup) -> ObjectChange:
        objects = self.bucket.objects()
        return ObjectChange(
            find_stored(objects, self.partition, group.inputs[0]),
            find_stored(objects, self.partition, group.output.segment),
        )

    def _put_evidence(self, balances: Sequence[Removal], changes: Sequence[ObjectChange]) -> None:
        job = f"{ERASURE_PREFIX}{self.request.id}"
        document = {
            "job": job,
            "balances": [encode_removal(balance) for balance in balances],
            "objects": [change.to_json() for change in changes],
        }
        key = self.partition.evidence_key(f"{job}-{new_id(self.random)}")
        self.bucket.objects().put(key, json.dumps(document, separators=(",", ":")).encode())

    def _release(self, replaced: Sequence[RemoteSegment]) -> None:
        self._changes.replaced_ids += [segment.id for segment in replaced]
        if self.request.grace_ms and replaced:
            self._changes.is_waiting = True
        else:
            self._remove(replaced)


@dataclass
class _SearchFold:
    """Adds up the scans of a partition as they arrive; `segments` are in the order of the tasks."""

    partition: RemotePath
    segments: Iterator[RemoteSegment]
    findings: TierFindings
    offsets: OffsetSpool | None
    replaced: list[RemoteSegment] = field(default_factory=list)
    error: StoreError | None = None

    def add(self, outcome: list[Scan | None] | TaskError) -> None:
        if isinstance(outcome, TaskError):
            self.error = self.error or outcome.error
        elif self.error is None:
            for scan in outcome:
                self._add_scan(next(self.segments), scan)

    def _add_scan(self, segment: RemoteSegment, scan: Scan | None) -> None:
        key = self.partition.part_key(segment, LOG_PART)
        if scan is None and segment.is_readable:
            raise ObjectNotFound(f"{key}, which the manifest names")
        scan = scan or Scan()
        findings = self.findings
        findings.log_bytes += segment.size
        findings.log_requests += -(-segment.size // CHUNK_BYTES)
        findings.figures.add_scan(segment.size, scan, is_live=segment.is_readable)
        if not scan.is_matched:
            return
        findings.matched.append(key)
        if not segment.is_readable:
            self.replaced.append(segment)
        if self.offsets is not None:
            self.offsets.add(self.partition.topic, self.partition.partition, scan.offsets)


def estimate_cost(findings: Sequence[TierFindings], prices: PriceTable) -> ErasureCost:
    """Estimates the cost after a dry run: the rewrite, and the re-scan of all log objects."""
    matched = sum(partition.figures.segments_matched for partition in findings)
    read_bytes = sum(
        partition.log_bytes + _REWRITE_READS * partition.figures.matched_bytes
        for partition in findings
    )
    reads = sum(partition.log_requests for partition in findings) + matched * _REWRITE_REQUESTS
    writes = matched * _REWRITE_REQUESTS
    requests = {RequestKind.READ: reads, RequestKind.WRITE: writes}
    return ErasureCost(
        requests=reads + writes,
        read_bytes=read_bytes,
        cost=prices.requests_cost(requests) + prices.transfer_cost(read_bytes),
        currency=prices.currency,
        prices=prices.name,
    )


def find_stored(
    objects: ObjectStore, partition: RemotePath, segment: RemoteSegment
) -> StoredObject:
    """Describes the log object of a segment; without etag and version if it no longer exists."""
    key = partition.part_key(segment, LOG_PART)
    part = segment.find_part(LOG_PART)
    crc = None if part is None else f"{part.crc32c:08x}"
    try:
        info = objects.head(key)
    except ObjectNotFound:
        return StoredObject(key, segment.size, crc, None, None)
    return StoredObject(key, info.size, crc, info.etag, info.version)
