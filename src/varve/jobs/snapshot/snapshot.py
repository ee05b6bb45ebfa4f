"""Takes snapshots: the latest record of each key of a topic below an offset, as Parquet files.

1. The driver plans the offsets of each partition, and the snapshot to continue from.
2. One task per range of hashes finds the latest records by key indexes.
3. One task per few pieces of the log reads them, and stages the rows by bucket.
4. One task per few buckets merges the staged rows with the previous file and writes the new one.
5. One document publishes the snapshot.

Invariant  only the last step changes what readers see, in one conditional write.
Crash      before the last step no document names the new files; a later run deletes them. Of two
           concurrent runs, the first that creates its document wins.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

import numpy as np

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, StoreError, Unavailable
from varve.foundation.settings import GivenValue
from varve.jobs.derived_outputs import register_output
from varve.jobs.key_plans import INLINE_BYTES, WorkArea
from varve.jobs.results import JSON_NAME, JobResult, encode_fields
from varve.jobs.snapshot.document import WORK_FOLDER, SnapshotDocument, SnapshotFile
from varve.jobs.snapshot.plan import Receipts, SnapshotPlan, find_receipts, plan_snapshot
from varve.jobs.snapshot.store import SnapshotStore, check_apart, check_keep, create_store
from varve.jobs.snapshot.tasks import (
    BucketMerge,
    ReadTask,
    StagedBuckets,
    column_types,
    make_merge_tasks,
)
from varve.jobs.source.latest_plan import (
    LatestRequest,
    is_indexed,
    plan_latest,
    read_headers,
    with_areas,
)
from varve.jobs.source.options import Mode, Offsets, SourceFilters, SourceOptions
from varve.jobs.source.pieces import AnyPiece, Piece, pack
from varve.jobs.source.read import TaskRead
from varve.jobs.source.topic_source import PartitionSource, open_partitions
from varve.jobs.tasks import TaskRunner
from varve.jobs.tier.bucket import Bucket, BucketAccess
from varve.tiering.manifest.pages import new_id
from varve.topics.outputs import OutputKind

DAY_MS: Final = 86_400_000
_BUCKETS_MAX: Final = 4096
"""Buckets of a partition: at 64 MiB for each, enough for 256 GiB of rows."""
_OPEN_SETTINGS: Final = ("endpoint", "region", "allow.http")
"""Settings of a place that the output registry stores: those to find it, no credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """Settings of one snapshot.

    `bucket_bytes` is the approximate size of files; it determines the number of buckets when the
    first snapshot of a place is taken, unless `buckets` does. `keep` is the number of snapshots to
    retain, None for all. Leftover files are deleted when older than `grace_ms`. Plans with more
    than `inline_bytes` of bits are stored in the place instead of the driver's memory.
    """

    bucket_bytes: int = 64 << 20
    buckets: int | None = None
    split_bytes: int = 32 << 20
    range_bytes: int = 64 << 20
    inline_bytes: int = INLINE_BYTES
    is_full: bool = False
    keep: int | None = None
    grace_ms: int = DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition of a snapshot."""

    partition: int
    start_offset: int
    resume_offset: int
    read_from: int
    rows: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotResult(JobResult):
    """The result of a run; `is_new` is False if a snapshot of the same offsets already existed.

    `files_written` and `bytes_written` are those of this run, `rows_read` the records that it read
    from the log. `removed` are older snapshots and their files, `swept` leftovers of killed runs.
    """

    place: str
    document: SnapshotDocument = field(metadata={JSON_NAME: None})
    is_new: bool
    partitions: tuple[PartitionState, ...]
    files_written: int = 0
    bytes_written: int = 0
    rows_read: int = 0
    removed: tuple[str, ...] = ()
    swept: tuple[str, ...] = ()
    elapsed_ms: int = 0

    @property
    def snapshot(self) -> int:
        return self.document.snapshot

    @property
    def rows(self) -> int:
        return self.document.rows

    @property
    def resume_offsets(self) -> dict[int, int]:
        return self.document.resume_offsets

    def to_json(self) -> dict[str, object]:
        document = self.document
        return {
            **encode_fields(self),
            "snapshot": document.snapshot,
            "previous": document.previous,
            "topic": document.topic,
            "topic_id": document.topic_id,
            "taken_ms": document.taken_ms,
            "rows": document.rows,
            "bytes": document.size,
            "files": len(document.files),
        }


def take_snapshot(
    topic: str,
    place: str,
    *,
    address: Bucket | None = None,
    directories: Sequence[str] = (),
    at_offset: Offsets = None,
    at_ms: int | None = None,
    place_settings: dict[str, GivenValue] | None = None,
    settings: SnapshotSettings = SnapshotSettings(),  # noqa: B008  a value that never changes
    runner: TaskRunner,
    clock: Clock | None = None,
) -> SnapshotResult:
    """Takes a snapshot of a topic at an offset, at a time, or at its end, into `place`.

    The topic is in the object store of `address`, in log directories, or in both. The snapshot
    continues from an earlier snapshot in `place` if there is one.
    """
    options = SourceOptions(
        topic=topic,
        address=address,
        directories=tuple(directories),
        mode=Mode.LATEST,
        ending=at_offset,
        ending_ms=at_ms,
        split_bytes=settings.split_bytes,
    )
    if address is None and not directories:
        raise InvalidRequest("give the object store of the topic, its log directory, or both")
    check_apart(place, [*directories, *([] if address is None else [address.url])])
    if settings.keep is not None:
        check_keep(settings.keep)
    sources = open_partitions(options)
    opened = create_store(place, place_settings)
    return SnapshotRun(
        options,
        opened,
        opened.url,
        place_settings or {},
        settings,
        runner=runner,
        clock=clock or SystemClock(),
        random=random.Random(),
    ).run(sources)


@dataclass
class SnapshotRun:
    """One run that takes a snapshot; `place_settings` open the place."""

    options: SourceOptions
    place: BucketAccess
    url: str
    place_settings: Mapping[str, GivenValue]
    settings: SnapshotSettings
    _: KW_ONLY
    runner: TaskRunner
    clock: Clock
    random: random.Random

    def __post_init__(self) -> None:
        self._began_ms = self.clock.now_ms()
        self._id = new_id(self.random)
        self._store = SnapshotStore(self.place.objects())

    def run(self, sources: Sequence[PartitionSource]) -> SnapshotResult:
        documents = self._store.documents()
        receipts = find_receipts(self.options, sources)
        scope = plan_snapshot(sources, self.options, documents, is_full=self.settings.is_full)
        buckets = self._find_buckets(documents)
        if scope.previous is not None:
            self._store.check_files(scope.previous)
            if not scope.is_new:
                return self._finish(scope, scope.previous, is_new=False)
        names = sorted(name for name in self.place_settings if name in _OPEN_SETTINGS)
        register_output(
            self.options,
            sources,
            OutputKind.SNAPSHOT,
            place=self.url,
            name=sources[0].topic,
            noted_ms=self._began_ms,
            how=[(name, str(self.place_settings[name])) for name in names],
        )
        number = documents[-1].snapshot + 1 if documents else 1
        return self._take(scope, number, buckets, receipts)

    def _find_buckets(self, documents: Sequence[SnapshotDocument]) -> int | None:
        """Returns the number of buckets of the place; None if this run determines it."""
        requested = self.settings.buckets
        if requested is not None and not 1 <= requested <= _BUCKETS_MAX:
            raise InvalidRequest(f"buckets is {requested}, it must be from 1 to {_BUCKETS_MAX}")
        current = documents[-1].buckets if documents else requested
        if requested is not None and requested != current:
            raise InvalidRequest(
                f"{self.url} has {current} buckets for each partition, not {requested}: its first "
                "snapshot determines the number; choose another place"
            )
        return current

    def _take(
        self, scope: SnapshotPlan, number: int, bucket_count: int | None, receipts: Receipts
    ) -> SnapshotResult:
        source = scope.partitions[0].source
        try:
            pieces = self._plan(scope, source.topic_id)
            buckets = bucket_count or self._choose_buckets(pieces)
            staged = self._read(pieces, source.topic, source.topic_id, buckets)
            written, files = self._write(scope, staged, buckets)
            document = SnapshotDocument(
                snapshot=number,
                previous=None if scope.previous is None else scope.previous.snapshot,
                run=self._id,
                topic=source.topic,
                topic_id=source.topic_id,
                taken_ms=self._began_ms,
                buckets=buckets,
                columns=column_types(),
                partitions=tuple(plan.partition for plan in scope.partitions),
                files=tuple(sorted(files, key=lambda file: (file.partition, file.bucket))),
            )
            sources = [plan.source for plan in scope.partitions]
            if find_receipts(self.options, sources) != receipts:
                raise Unavailable(
                    f"{source.topic}: records were erased while the snapshot was taken, and it may "
                    "contain them: take it again"
                )
            self._store.publish(document, scope.previous)
        finally:
            with suppress(StoreError):  # a later run sweeps
                self._store.remove_work(self._id)
        return self._finish(
            scope,
            document,
            is_new=True,
            files_written=len(written),
            bytes_written=sum(file.size for file in written),
            rows_read=sum(part.row_count for part in staged),
        )

    # Stages

    def _plan(self, scope: SnapshotPlan, topic_id: str) -> dict[int, "_Pieces"]:
        """Plans the pieces to read of each partition."""
        reads: dict[int, _Pieces] = {}
        requests: dict[int, LatestRequest] = {}
        for partition in scope.partitions:
            pieces = partition.source.pieces(
                start_offset=partition.partition.read_from,
                end_offset=partition.partition.resume_offset,
                filters=SourceFilters(),
            )
            if sum(piece.size for piece in pieces) <= self.settings.split_bytes:
                reads[partition.number] = _Pieces((), tuple(pieces))
                continue
            headers = read_headers(self.options.address, topic_id, pieces)
            loose = tuple(piece for piece in pieces if not is_indexed(piece))
            reads[partition.number] = _Pieces((), loose)
            if headers:
                requests[partition.number] = LatestRequest(
                    self.options.address, tuple(headers.values())
                )
        area = WorkArea(self.place.objects, f"{WORK_FOLDER}/{self._id}/")
        planned = plan_latest(
            with_areas(list(requests.values()), area, self.settings.inline_bytes),
            runner=self.runner,
            split_bytes=self.settings.split_bytes,
            with_tombstones=True,
            range_bytes=self.settings.range_bytes,
        )
        for number, pieces_planned in zip(requests, planned, strict=True):
            reads[number] = replace(reads[number], planned=tuple(pieces_planned))
        return reads

    def _choose_buckets(self, pieces: dict[int, "_Pieces"]) -> int:
        """Chooses a power of two, so that small changes of the data keep the number of buckets."""
        largest = max((read.size for read in pieces.values()), default=0)
        count = 1
        while count * self.settings.bucket_bytes < largest and count < _BUCKETS_MAX:
            count *= 2
        return count

    def _read(
        self, pieces: dict[int, "_Pieces"], topic: str, topic_id: str, buckets: int
    ) -> list[StagedBuckets]:
        split_bytes = self.settings.split_bytes
        runs: list[tuple[AnyPiece, ...]] = []
        for partition in pieces.values():
            # One partition per task: a task distinguishes the keys of loose pieces by hash alone.
            runs += pack(partition.loose, split_bytes=split_bytes)
        planned = [piece for partition in pieces.values() for piece in partition.planned]
        runs += pack(planned, split_bytes=split_bytes)
        tasks = [
            ReadTask(
                TaskRead(topic, topic_id, run, with_tombstones=True),
                self.options,
                self.place,
                f"{WORK_FOLDER}/{self._id}/{number:06}",
                buckets,
            )
            for number, run in enumerate(runs)
        ]
        return self.runner.run("read", tasks)

    def _write(
        self, scope: SnapshotPlan, staged: Sequence[StagedBuckets], buckets: int
    ) -> tuple[list[SnapshotFile], list[SnapshotFile]]:
        """Returns the written files, and all files of the new snapshot."""
        merges, reused = _plan_merges(scope, staged, buckets)
        tasks = make_merge_tasks(self.place, merges, staged, split_bytes=self.settings.split_bytes)
        written = [file for part in self.runner.run("write", tasks) for file in part]
        return written, [*written, *reused]

    # Result

    def _finish(
        self,
        scope: SnapshotPlan,
        document: SnapshotDocument,
        *,
        is_new: bool,
        files_written: int = 0,
        bytes_written: int = 0,
        rows_read: int = 0,
    ) -> SnapshotResult:
        keep = self.settings.keep
        removed = [] if keep is None else self._store.keep(keep)
        swept = self._store.sweep(before_ms=self._began_ms - self.settings.grace_ms)
        rows: Counter[int] = Counter()
        for file in document.files:
            rows[file.partition] += file.rows
        return SnapshotResult(
            place=self.url,
            document=document,
            is_new=is_new,
            partitions=tuple(
                PartitionState(
                    partition=plan.number,
                    start_offset=plan.partition.start_offset,
                    resume_offset=plan.partition.resume_offset,
                    read_from=plan.partition.read_from,
                    rows=rows[plan.number],
                    note=plan.note,
                )
                for plan in scope.partitions
            ),
            files_written=files_written,
            bytes_written=bytes_written,
            rows_read=rows_read,
            removed=tuple(removed),
            swept=tuple(swept),
            elapsed_ms=self.clock.now_ms() - self._began_ms,
        )


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The pieces of one partition: planned by key indexes, and loose ones without a plan."""

    planned: tuple[AnyPiece, ...]
    loose: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in (*self.planned, *self.loose))


def _plan_merges(
    scope: SnapshotPlan, staged: Sequence[StagedBuckets], buckets: int
) -> tuple[list[BucketMerge], list[SnapshotFile]]:
    """Returns the buckets that change, and the files of the unchanged ones.

    A bucket changes if it has new rows, or rows below the log start offset.
    """
    starts = {plan.number: plan.partition.start_offset for plan in scope.partitions}
    full = {
        plan.number for plan in scope.partitions if plan.partition.read_from == starts[plan.number]
    }
    before = {
        file.partition * buckets + file.bucket: file
        for file in (() if scope.previous is None else scope.previous.files)
        if file.partition not in full
    }
    sizes = np.zeros((max(starts) + 1) * buckets, np.int64)
    for part in staged:
        sizes[part.codes] += np.diff(part.positions)
    staged_codes = set(np.flatnonzero(sizes).tolist())
    expired = {code for code, file in before.items() if file.min_offset < starts[file.partition]}
    merges = []
    for code in sorted(staged_codes | expired):
        number, bucket = divmod(code, buckets)
        previous = before.get(code)
        size = int(sizes[code]) + (0 if previous is None else previous.size)
        merges.append(BucketMerge(code, number, bucket, starts[number], previous, size))
    reused = [
        file for code, file in before.items() if code not in staged_codes and code not in expired
    ]
    return merges, reused
