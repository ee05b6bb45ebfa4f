"""What the cold tier of a partition holds for a read: its segments, bounds and aborted data.

Invariant  all answers are of one manifest. Indexes are checked against it before they are used.
Threads    a few fetch at once, for one who plans.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from varve.commit_log.sparse_index import OffsetIndex
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.jobs.source.options import SourceOptions, for_partition
from varve.jobs.source.pieces import SLACK, RemotePiece, SegmentSize, cut_positions
from varve.jobs.source.record_blocks import aborted_within
from varve.jobs.tier.bucket import Bucket
from varve.jobs.tier.remote_files import RemoteInput, open_files
from varve.object_store import ObjectStore
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import KEYS_PART, RemoteSegment
from varve.tiering.manifest.store import ObjectManifestStore
from varve.tiering.read.extent_cache import FetchMeter
from varve.tiering.read.read_caches import ReadCaches
from varve.tiering.read.remote_log import RemoteLog
from varve.tiering.settings import TierSettings

T = TypeVar("T")
R = TypeVar("R")

INDEX_PART: Final = "index"
TXN_PART: Final = "txnindex"
_THREADS: Final = 16
_READ_SETTINGS: Final = TierSettings(
    remote_log_reader_threads=2,
    remote_log_reader_max_pending_tasks=8,
    varve_tier_cache_bytes=64 << 20,
)


class RemotePartitionLog:
    """The cold part of one partition, as of the manifest that the options name."""

    def __init__(self, address: Bucket, home: RemotePath, options: SourceOptions) -> None:
        self.home = home
        self._objects = address.objects()
        self._options = options
        self._manifests = address.manifests(home)
        self.manifest = self._load(self._manifests)
        self.requests = 3  # the hint, the list after it and the manifest

    def _load(self, manifests: ObjectManifestStore) -> Manifest:
        version = for_partition(self._options.version, self.home.partition)
        if version is not None:
            return manifests.at(version=version)
        if self._options.as_of_ms is not None:
            return manifests.at(time_ms=self._options.as_of_ms)
        return manifests.load()

    @property
    def start_offset(self) -> int:
        """The first offset that may be read: log start, or what is left of it."""
        first = next(self.segments(0), None)
        base = 0 if first is None else first.base_offset
        return max(self.manifest.log_start_offset, base)

    @property
    def end_offset(self) -> int:
        return max(self.manifest.highest_offset + 1, self.manifest.log_start_offset)

    @property
    def stable_offset(self) -> int:
        """Below it every transaction is decided, and its marker is in the tier."""
        *_, last = (None, *self.segments(self.manifest.highest_offset))
        if last is None or last.undecided_from is None:
            return self.end_offset
        return min(last.undecided_from, self.end_offset)

    def segments(self, from_offset: int) -> Iterator[RemoteSegment]:
        remote_segments = self._manifests.segments(self.manifest, from_offset=from_offset)
        return (segment for segment in remote_segments if segment.is_readable)

    def segment_sizes(self, start_offset: int, end_offset: int) -> Iterator[SegmentSize]:
        """The segments from an offset on."""
        for segment in self.segments(start_offset):
            yield SegmentSize(segment.base_offset, segment.end_offset + 1, segment.size)

    def find_by_time(self, timestamp: int, *, start_offset: int) -> int | None:
        """The first offset of a record of this time or later."""
        caches = ReadCaches.open(self._objects, SystemClock(), _READ_SETTINGS)
        meter = FetchMeter()
        manifests = _Pinned(self._objects, self.manifest)
        with caches:
            reader = RemoteLog(self.home, manifests, caches, read_ahead_max_bytes=0, meter=meter)
            offset = reader.find_offset_by_time(
                timestamp, start_offset=start_offset, end_offset=self.end_offset
            )
        self.requests += meter.request_count
        return None if offset is None else offset.offset

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that touch [start, end); their markers lie in it or behind."""
        wanted = []
        for segment in self.segments(start_offset):
            if segment.has_aborted:
                wanted.append(segment)
            open_from = segment.undecided_from
            is_last = open_from is None or open_from >= end_offset
            if is_last and segment.end_offset + 1 >= end_offset:
                break
        aborted: dict[AbortedTransaction, None] = {}
        for index in self._fetch(self._read_txn_index, wanted):
            entries = index.entries()
            for transaction in aborted_within(
                entries, start_offset=start_offset, end_offset=end_offset
            ):
                aborted[transaction] = None
        return list(aborted)

    def pieces(
        self,
        *,
        start_offset: int,
        end_offset: int,
        min_ms: int,
        is_keyed: bool,
        aborted: Sequence[AbortedTransaction],
    ) -> list[RemotePiece]:
        """All of [start, end) that may hold a record of the time or later.

        Segments with a key index stay whole where keys are looked for.
        """
        segments = [
            segment
            for segment in self._joined(start_offset, end_offset)
            if segment.max_timestamp >= min_ms and segment.size
        ]
        pieces: list[RemotePiece] = []
        cut = [
            remote_segment
            for remote_segment in segments
            if self._is_cut(remote_segment, start_offset, end_offset, is_keyed)
        ]
        indexes = dict(
            zip(
                [remote_segment.id for remote_segment in cut],
                self._fetch(self._read_offset_index, cut),
                strict=True,
            )
        )
        for segment in segments:
            places = [(0, segment.size)]
            if segment.id in indexes:
                places = cut_positions(
                    indexes[segment.id],
                    size=segment.size,
                    start_offset=start_offset,
                    end_offset=end_offset,
                    piece_bytes=self._options.split_bytes,
                )
            touching = aborted_within(
                aborted, start_offset=segment.base_offset, end_offset=segment.end_offset + 1
            )
            pieces += [
                RemotePiece(
                    home=self.home,
                    segment=segment,
                    start=start,
                    end=end,
                    start_offset=max(start_offset, segment.base_offset),
                    end_offset=min(end_offset, segment.end_offset + 1),
                    aborted=touching,
                )
                for start, end in places
            ]
        return pieces

    def _joined(self, start_offset: int, end_offset: int) -> Iterator[RemoteSegment]:
        """The segments of a range; raises Corrupt where some of it is in none."""
        expected = start_offset
        for segment in self.segments(start_offset):
            if segment.base_offset >= end_offset:
                break
            if segment.base_offset > expected:
                raise Corrupt(
                    f"{self.home}: offsets {expected} to {segment.base_offset - 1} are in no "
                    f"segment of manifest version {self.manifest.version}; `varve tier fsck` shows "
                    f"more. Read on from {segment.base_offset} with startingOffset"
                )
            expected = segment.end_offset + 1
            yield segment

    def _is_cut(self, segment: RemoteSegment, start: int, end: int, is_keyed: bool) -> bool:
        if is_keyed and segment.find_part(KEYS_PART) is not None:
            return False
        is_partial = segment.base_offset < start or segment.end_offset >= end
        return is_partial or segment.size > SLACK * self._options.split_bytes

    def _read_offset_index(self, segment: RemoteSegment) -> OffsetIndex:
        return read_offset_index(self._objects, self.home, segment)

    def _read_txn_index(self, segment: RemoteSegment) -> TransactionIndex:
        data = read_part(self._objects, self.home, segment, TXN_PART)
        return TransactionIndex.decode(data, segment.base_offset)

    def _fetch(self, read: Callable[[T], R], wanted: Sequence[T]) -> list[R]:
        self.requests += len(wanted)
        if len(wanted) < 2:
            return [read(part) for part in wanted]
        with ThreadPoolExecutor(min(_THREADS, len(wanted))) as pool:
            return list(pool.map(read, wanted))


def read_offset_index(
    objects: ObjectStore, home: RemotePath, segment: RemoteSegment
) -> OffsetIndex:
    """A segment's offset index from its object; one without entries where there is none."""
    data = read_part(objects, home, segment, INDEX_PART)
    return OffsetIndex.decode(data, segment.base_offset, len(data))


def read_part(objects: ObjectStore, home: RemotePath, segment: RemoteSegment, name: str) -> bytes:
    """A whole part, as the manifest describes it; nothing where the segment has no such part."""
    part = segment.find_part(name)
    if part is None or part.size == 0:
        return b""
    with open_files(lambda: objects, home, [segment]) as files:
        return RemoteInput(home, segment, files).read_part(name)


class _Pinned(ObjectManifestStore):
    """Manifests of which one counts as the newest; for reading alone."""

    def __init__(self, objects: ObjectStore, manifest: Manifest) -> None:
        super().__init__(objects, manifest.path, random=random.Random(0), wait=lambda wait_ms: None)
        self._manifest = manifest

    def load(self) -> Manifest:
        return self._manifest

    def find_known(self) -> Manifest | None:
        return self._manifest


def check_versions(options: SourceOptions, partitions: Sequence[int]) -> None:
    """Manifests are counted by partition: one number for several says nothing."""
    if isinstance(options.version, int) and len(partitions) > 1:
        raise InvalidRequest(
            f"version={options.version} is the manifest of which of {len(partitions)} partitions? "
            'Give JSON such as {"0": 5}, or a time as asOf'
        )
