"""The remote part of a partition's log: its bounds, segments, pieces and aborted transactions.

Invariant  all results are of one version of the manifest. Indexes are checked against it when read.
Threads    one thread plans; up to `_THREADS` fetch indexes for it.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from varve.tiering.manifest.segment import INDEX_PART, KEYS_PART, RemoteSegment
from varve.tiering.manifest.store import ObjectManifestStore
from varve.tiering.read.extent_cache import FetchMeter
from varve.tiering.read.remote_log import ReadCaches, RemoteLog
from varve.tiering.settings import TierSettings

R = TypeVar("R")

_THREADS: Final = 16
"""Indexes fetched at once; a request waits for the object store, not for the CPU."""
_READ_SETTINGS: Final = TierSettings(
    remote_log_reader_threads=2,
    remote_log_reader_max_pending_tasks=8,
    varve_tier_cache_bytes=64 << 20,
)


class RemotePartitionLog:
    """The remote part of one partition, as of the manifest that the options select."""

    def __init__(self, address: Bucket, remote_path: RemotePath, options: SourceOptions) -> None:
        self.remote_path = remote_path
        self._objects = address.objects()
        self._options = options
        self._manifests = address.manifests(remote_path)
        self.manifest = self._load(self._manifests)
        self.requests = 3  # the hint, the list after it and the manifest

    def _load(self, manifests: ObjectManifestStore) -> Manifest:
        version = for_partition(self._options.version, self.remote_path.partition)
        if version is not None:
            return manifests.at(version=version)
        if self._options.as_of_ms is not None:
            return manifests.at(time_ms=self._options.as_of_ms)
        return manifests.load()

    def is_newest(self) -> bool:
        """Whether the bucket has no newer manifest by now."""
        return self._load(self._manifests).version == self.manifest.version

    @property
    def start_offset(self) -> int:
        """The log start offset, or the base offset of the first readable segment if higher."""
        first = next(self.segments(0), None)
        base = 0 if first is None else first.base_offset
        return max(self.manifest.log_start_offset, base)

    @property
    def end_offset(self) -> int:
        return max(self.manifest.highest_offset + 1, self.manifest.log_start_offset)

    @property
    def stable_offset(self) -> int:
        """Every transaction below it is committed or aborted, by a marker in the remote tier."""
        *_, last = (None, *self.segments(self.manifest.highest_offset))
        if last is None or last.undecided_from is None:
            return self.end_offset
        return min(last.undecided_from, self.end_offset)

    def segments(self, from_offset: int) -> Iterator[RemoteSegment]:
        remote_segments = self._manifests.segments(self.manifest, from_offset=from_offset)
        return (segment for segment in remote_segments if segment.is_readable)

    def segment_sizes(self, start_offset: int, end_offset: int) -> Iterator[SegmentSize]:
        """The sizes of the segments from an offset on."""
        for segment in self.segments(start_offset):
            yield SegmentSize(segment.base_offset, segment.end_offset + 1, segment.size)

    def find_by_time(self, timestamp: int, *, start_offset: int) -> int | None:
        """The first offset of a record with this timestamp or a later one, if any."""
        caches = ReadCaches.open(self._objects, SystemClock(), _READ_SETTINGS)
        meter = FetchMeter()
        manifests = _PinnedManifestStore(self._objects, self.manifest)
        with caches:
            reader = RemoteLog(
                self.remote_path, manifests, caches, read_ahead_max_bytes=0, meter=meter
            )
            offset = reader.find_offset_by_time(
                timestamp, start_offset=start_offset, end_offset=self.end_offset
            )
        self.requests += meter.request_count
        return None if offset is None else offset.offset

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [start, end), whose markers may be after it."""
        segments = []
        for segment in self.segments(start_offset):
            if segment.has_aborted:
                segments.append(segment)
            undecided_from = segment.undecided_from
            is_last = undecided_from is None or undecided_from >= end_offset
            if is_last and segment.end_offset + 1 >= end_offset:
                break
        indexes = self._fetch(_read_txn_index, segments)
        entries = dict.fromkeys(entry for index in indexes for entry in index.entries())
        return list(aborted_within(list(entries), start_offset=start_offset, end_offset=end_offset))

    def pieces(
        self,
        *,
        start_offset: int,
        end_offset: int,
        min_ms: int,
        is_keyed: bool,
        aborted: Sequence[AbortedTransaction],
    ) -> list[RemotePiece]:
        """The pieces of [start, end) that may hold a record with timestamp `min_ms` or later.

        With `is_keyed`, segments with a key index are not cut.
        """
        segments = [
            segment
            for segment in self._contiguous_segments(start_offset, end_offset)
            if segment.max_timestamp >= min_ms and segment.size
        ]
        cut = [
            segment
            for segment in segments
            if self._is_cut(segment, start_offset, end_offset, is_keyed)
        ]
        fetched = zip(cut, self._fetch(read_offset_index, cut), strict=True)
        indexes = {segment.id: index for segment, index in fetched}
        pieces: list[RemotePiece] = []
        for segment in segments:
            positions = [(0, segment.size)]
            if segment.id in indexes:
                positions = cut_positions(
                    indexes[segment.id],
                    size=segment.size,
                    start_offset=start_offset,
                    end_offset=end_offset,
                    piece_bytes=self._options.split_bytes,
                )
            overlapping = aborted_within(
                aborted, start_offset=segment.base_offset, end_offset=segment.end_offset + 1
            )
            pieces += [
                RemotePiece(
                    remote_path=self.remote_path,
                    segment=segment,
                    start=start,
                    end=end,
                    start_offset=max(start_offset, segment.base_offset),
                    end_offset=min(end_offset, segment.end_offset + 1),
                    aborted=overlapping,
                )
                for start, end in positions
            ]
        return pieces

    def _contiguous_segments(self, start_offset: int, end_offset: int) -> Iterator[RemoteSegment]:
        """The segments of a range; raises Corrupt for a gap between them."""
        expected = start_offset
        for segment in self.segments(start_offset):
            if segment.base_offset >= end_offset:
                break
            if segment.base_offset > expected:
                version = self.manifest.version
                raise Corrupt(
                    f"{self.remote_path}: offsets {expected} to {segment.base_offset - 1} are in "
                    f"no segment of manifest version {version}; `varve tier fsck` shows details. "
                    f"To skip them read from {segment.base_offset} with startingOffset"
                )
            expected = segment.end_offset + 1
            yield segment

    def _is_cut(self, segment: RemoteSegment, start: int, end: int, is_keyed: bool) -> bool:
        if is_keyed and segment.find_part(KEYS_PART) is not None:
            return False
        is_partial = segment.base_offset < start or segment.end_offset >= end
        return is_partial or segment.size > SLACK * self._options.split_bytes

    def _fetch(
        self,
        read: Callable[[ObjectStore, RemotePath, RemoteSegment], R],
        segments: Sequence[RemoteSegment],
    ) -> list[R]:
        self.requests += len(segments)
        with ThreadPoolExecutor(min(_THREADS, max(len(segments), 1))) as pool:
            read_segment = partial(read, self._objects, self.remote_path)
            return list(pool.map(read_segment, segments))


def read_offset_index(
    objects: ObjectStore, remote_path: RemotePath, segment: RemoteSegment
) -> OffsetIndex:
    """Reads the offset index of a segment; without entries if the segment has none."""
    part = segment.find_part(INDEX_PART)
    data = b""
    if part is not None and part.size:
        with open_files(lambda: objects, remote_path, [segment]) as files:
            data = RemoteInput(remote_path, segment, files).read_part(INDEX_PART)
    return OffsetIndex.decode(data, segment.base_offset, len(data))


def _read_txn_index(
    objects: ObjectStore, remote_path: RemotePath, segment: RemoteSegment
) -> TransactionIndex:
    with open_files(lambda: objects, remote_path, [segment]) as files:
        return RemoteInput(remote_path, segment, files).read_txn_index()


class _PinnedManifestStore(ObjectManifestStore):
    """Returns one manifest as the newest; read only."""

    def __init__(self, objects: ObjectStore, manifest: Manifest) -> None:
        super().__init__(objects, manifest.path, random=random.Random(0), wait=lambda wait_ms: None)
        self._manifest = manifest

    def load(self) -> Manifest:
        return self._manifest

    def find_known(self) -> Manifest | None:
        return self._manifest


def check_versions(options: SourceOptions, partitions: Sequence[int]) -> None:
    """Refuses one version for several partitions: each partition counts its own manifests."""
    if isinstance(options.version, int) and len(partitions) > 1:
        raise InvalidRequest(
            f"version={options.version} is ambiguous for {len(partitions)} partitions, each of "
            'which counts its own versions: give JSON such as {"0": 5}, or a time with asOf'
        )
