"""The erasure in one partition's cold tier, stage by stage.

1. What earlier runs left is swept; every readable segment, and every replaced one whose objects
   are still there, is searched: by its key index, or by a scan.
2. One task per segment with a match rewrites it and uploads it under an announced id.
3. Balances are checked and put on record, and one manifest makes the new segments readable.
4. The objects of what was replaced go, unless readers are given a grace time.

Invariant  only the third step changes what is read, and it changes all at once. A segment that was
           replaced by another writer meanwhile is left for another pass.
Crash      before the third step the old state is read; what was announced is swept by the next run.
Threads    one; the tasks of a stage run wherever the runner has them run.
"""

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from varve.cleaning.removals.removal import Removal, encode_removal
from varve.commit_log.producer_state import LastRecord
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.clock import Clock
from varve.foundation.errors import ObjectNotFound, StoreError, Unavailable
from varve.jobs.compact.cleanable import find_chain, find_leftovers, read_aborted, read_shells
from varve.jobs.compact.commit import CompactCommit, DoneGroup
from varve.jobs.erase.receipt import ObjectChange, StoredObject
from varve.jobs.erase.result import ErasureCost, Integers, PartitionErasure
from varve.jobs.erase.scan import TASK_BYTES, TASK_ITEMS, Matcher, Scan
from varve.jobs.erase.tasks import WRITER, EraseTask, FindTask
from varve.jobs.source.record_blocks import CHUNK_BYTES, aborted_within
from varve.jobs.tasks import Stage, Stages, pack_by_size, run_stage
from varve.jobs.tier.bucket import BucketAccess
from varve.jobs.tier.remote_files import open_files
from varve.object_store import ObjectStore
from varve.object_store.prices import PriceTable, RequestKind
from varve.tiering.copy.history_check import ERASURE_PREFIX
from varve.tiering.copy.segment_upload import LOG_PART
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.pages import new_id
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.partition_lease import HeldLease, hold_lease

_REWRITE_READS: Final = 4
"""How often a segment with a match is read: to find, to plan, to copy, and back."""
_REWRITE_REQUESTS: Final = 30
"""About: seven objects written, looked up and read back, and their announcement and commit."""


@dataclass(slots=True)
class RemoteFindings:
    """What one pass over a partition found and did.

    `is_waiting` where replaced objects stay for their grace time. `removed_keys` are the log
    objects of all segments that were removed, leftovers of others among them. `log_bytes` and
    `log_requests` are what it takes to read all log objects once.
    """

    figures: PartitionErasure
    offsets: list[Integers] = field(default_factory=list)
    replaced_ids: list[str] = field(default_factory=list)
    removed_keys: list[str] = field(default_factory=list)
    is_waiting: bool = False
    log_bytes: int = 0
    log_requests: int = 0
    error: StoreError | None = None


class RemoteErasure:
    """One pass over one partition; `request` is the erasure's id.

    With `only` just the segments with these log objects are searched, and not by their indexes.
    With `waits_for_grace` what others may still rely on is not removed. With `owns_copies`
    nobody else copies to the partition, so that a copy which was cut short is a leftover.
    """

    def __init__(
        self,
        partition: RemotePath,
        reach: BucketAccess,
        matcher: Matcher,
        *,
        clock: Clock,
        random: random.Random,
        request: str,
        grace_ms: int,
        buffer_bytes: int,
        only: Collection[str] | None = None,
        waits_for_grace: bool = False,
        takes_over: bool = False,
        owns_copies: bool = False,
    ) -> None:
        self._partition = partition
        self._reach = reach
        self._matcher = matcher
        self._random = random
        self._request = request
        self._grace_ms = grace_ms
        self._buffer_bytes = buffer_bytes
        self._only = only
        self._waits_for_grace = waits_for_grace
        self._takes_over = takes_over
        self._owns_copies = owns_copies
        self._lease: HeldLease | None = None
        self._clock = clock
        self._now_ms = clock.now_ms()
        self._manifests = reach.manifests(partition)
        self._found = RemoteFindings(
            PartitionErasure(topic=partition.topic, partition=partition.partition, tier="cold")
        )

    def stages(self, *, is_dry_run: bool) -> Stages[RemoteFindings]:
        """The pass; a StoreError is in its findings, and other partitions go on."""
        try:
            if is_dry_run:
                yield from self._run(is_dry_run=True)
            else:
                yield from self._run_leased()
        except StoreError as error:
            self._found.error = error
        return self._found

    def _run_leased(self) -> Stages[None]:
        """The pass, while no other job rewrites the partition."""
        with hold_lease(
            self._reach.objects(),
            self._partition,
            f"erase-{self._request}",
            clock=self._clock,
            takes_over=self._takes_over,
        ) as self._lease:
            yield from self._run(is_dry_run=False)

    def _run(self, *, is_dry_run: bool) -> Stages[None]:
        """A dry run ends when it knows what there is to do."""
        manifest = self._manifests.load() if is_dry_run else self._sweep()
        listed = list(self._manifests.segments(manifest))
        scanned = yield from self._look(listed)
        matched = [(segment, scan) for segment, scan in scanned if len(scan.found)]
        self._note(scanned, matched)
        if is_dry_run or not matched:
            return
        going = [segment for segment, _ in matched if not segment.is_readable]
        self._check_grace(going)
        live = [(segment, scan) for segment, scan in matched if segment.is_readable]
        if live:
            yield from self._rewrite(manifest, listed, live)
        self._release(going)

    def _check_grace(self, going: Sequence[RemoteSegment]) -> None:
        ends = [
            segment.replaced_until_ms for segment in going if segment.replaced_until_ms is not None
        ]
        if self._waits_for_grace and ends and max(ends) > self._now_ms:
            raise Unavailable(
                f"{self._partition}: readers may rely on replaced objects for another "
                f"{max(ends) - self._now_ms} ms; finish the erasure then"
            )

    def _sweep(self) -> Manifest:
        manifest = self._manifests.load()
        leftovers = find_leftovers(self._manifests, manifest, now_ms=self._now_ms)
        self._remove(leftovers)
        self._found.figures.swept += len(leftovers)
        return self._manifests.load() if leftovers else manifest

    def _remove(self, segments: Sequence[RemoteSegment]) -> None:
        removed = self._manifests.remove(
            segments, leader_epoch=None, writer=WRITER, now_ms=self._now_ms
        )
        self._found.removed_keys += [self._log_key(segment) for segment in removed]

    def _look(self, listed: Sequence[RemoteSegment]) -> Stages[list[tuple[RemoteSegment, Scan]]]:
        """Every segment whose objects are there, with what was found in it."""
        chosen = [
            segment
            for segment in listed
            if self._owns_copies or segment.state is not SegmentState.COPY_STARTED
        ]
        if self._only is not None:
            chosen = [segment for segment in chosen if self._log_key(segment) in self._only]
        tasks = [
            FindTask(self._reach, self._partition, tuple(segments), self._only is None)
            for segments in pack_by_size(
                chosen,
                lambda segment: segment.size,
                target_bytes=TASK_BYTES,
                max_items=TASK_ITEMS,
            )
        ]
        parts = yield from run_stage(Stage("find", tasks, self._matcher))
        scans = [scan for part in parts for scan in part]
        return list(zip(chosen, scans, strict=True))

    def _log_key(self, segment: RemoteSegment) -> str:
        return self._partition.part_key(segment, LOG_PART)

    def _note(
        self,
        scanned: Sequence[tuple[RemoteSegment, Scan]],
        matched: Sequence[tuple[RemoteSegment, Scan]],
    ) -> None:
        found, figures = self._found, self._found.figures
        found.log_bytes = sum(segment.size for segment, _ in scanned)
        found.log_requests = sum(-(-segment.size // CHUNK_BYTES) for segment, _ in scanned)
        found.offsets += [scan.found.offsets for _, scan in matched]
        figures.segments += len(scanned)
        figures.bytes_read += sum(scan.read_bytes for _, scan in scanned)
        figures.unread_values += sum(
            scan.unread_count for segment, scan in scanned if segment.is_readable
        )
        figures.segments_matched += len(matched)
        figures.matched_bytes += sum(segment.size for segment, _ in matched)
        live = [scan.found for segment, scan in matched if segment.is_readable]
        figures.records += sum(len(records) for records in live)
        figures.record_bytes += sum(records.size for records in live)

    # The rewrite

    def _rewrite(
        self,
        manifest: Manifest,
        listed: Sequence[RemoteSegment],
        live: Sequence[tuple[RemoteSegment, Scan]],
    ) -> Stages[None]:
        tasks = self._plan(find_chain(manifest, listed), listed, live)
        done = yield from run_stage(Stage("rewrite", tasks))
        if self._lease is not None:
            self._lease.renew()
        groups = [
            DoneGroup((task.segment,), (), group.written)
            for task, group in zip(tasks, done, strict=True)
        ]
        changes = [self._describe(group) for group in groups]
        self._put_evidence([group.balance for group in done], changes)
        commit = CompactCommit(
            self._manifests,
            groups,
            stale={},
            clean_end=0,
            start_offset=live[0][0].base_offset,
            end_offset=max(segment.end_offset for segment, _ in live) + 1,
            now_ms=self._now_ms,
            replaced_ms=self._grace_ms,
            writer=WRITER,
            is_ordered=False,
        )
        commit.run()
        self._release([group.inputs[0] for group in commit.committed])

    def _plan(
        self,
        chain: Sequence[RemoteSegment],
        listed: Sequence[RemoteSegment],
        live: Sequence[tuple[RemoteSegment, Scan]],
    ) -> list[EraseTask]:
        start, end = live[0][0].base_offset, max(segment.end_offset for segment, _ in live) + 1
        behind = [
            segment for segment in listed if segment.is_readable and segment.end_offset >= start
        ]
        with open_files(self._reach.objects, self._partition, {*behind, *chain[-1:]}) as files:
            aborted = read_aborted(self._partition, behind, files, end_offset=end)
            shells = read_shells(self._partition, chain[-1], files) if chain else {}
        undecided = chain[-1].undecided_from if chain else None
        return [
            self._task(number, segment, scan, aborted, undecided, shells)
            for number, (segment, scan) in enumerate(live, 1)
        ]

    def _task(
        self,
        number: int,
        segment: RemoteSegment,
        scan: Scan,
        aborted: Sequence[AbortedTransaction],
        undecided: int | None,
        shells: dict[int, LastRecord],
    ) -> EraseTask:
        end = segment.end_offset + 1
        return EraseTask(
            self._reach,
            self._partition,
            new_id(self._random),
            number,
            segment,
            scan.found,
            aborted_within(aborted, start_offset=segment.base_offset, end_offset=end),
            undecided is None or undecided >= end,
            shells,
            self._request,
            self._buffer_bytes,
            self._now_ms,
        )

    def _describe(self, group: DoneGroup) -> ObjectChange:
        objects = self._reach.objects()
        return ObjectChange(
            find_stored(objects, self._partition, group.inputs[0]),
            find_stored(objects, self._partition, group.written.segment),
        )

    def _put_evidence(self, balances: Sequence[Removal], changes: Sequence[ObjectChange]) -> None:
        document = {
            "job": f"{ERASURE_PREFIX}{self._request}",
            "balances": [encode_removal(balance) for balance in balances],
            "objects": [change.to_json() for change in changes],
        }
        key = self._partition.evidence_key(
            f"{ERASURE_PREFIX}{self._request}-{new_id(self._random)}"
        )
        self._reach.objects().put(key, json.dumps(document, separators=(",", ":")).encode())

    def _release(self, replaced: Sequence[RemoteSegment]) -> None:
        self._found.replaced_ids += [segment.id for segment in replaced]
        if self._grace_ms and replaced:
            self._found.is_waiting = True
        else:
            self._remove(replaced)


def estimate_cost(findings: Sequence[RemoteFindings], prices: PriceTable) -> ErasureCost:
    """What is still to be requested after a look: the rewrite, and the re-scan of everything."""
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
    """The log object of a segment as the store lists it; without etag and version if it is gone."""
    key = partition.part_key(segment, LOG_PART)
    part = segment.find_part(LOG_PART)
    crc = None if part is None else f"{part.crc32c:08x}"
    try:
        info = objects.head(key)
    except ObjectNotFound:
        return StoredObject(key, segment.size, crc, None, None)
    return StoredObject(key, info.size, crc, info.etag, info.version)
