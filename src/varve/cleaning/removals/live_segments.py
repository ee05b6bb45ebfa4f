"""The segments that a partition's directory holds now, measured from their bytes.

Invariant  reads only, whether a store has the directory open or not. A swap whose new files are all
           in place counts as carried out, as it does at the next open.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from varve.cleaning.key_index.builder import KeyIndexBuilder
from varve.cleaning.key_index.segment_indexes import LEFT_ALONE
from varve.cleaning.removals.removal import SegmentSummary, SegmentSummaryBuilder
from varve.commit_log.names import (
    CLEANED,
    KEYS,
    LOG,
    SWAP,
    TXN_INDEX,
    SegmentFileName,
    log_name,
    parse_file_name,
)
from varve.commit_log.segment_reader import BatchWalk
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import FileSystem, MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.kernels.batch_layout import status_text

_DIGEST_BUFFER_BYTES: Final = 16 << 20

Listing = tuple[tuple[str, int], ...]
"""Names and sizes of data files."""


@dataclass(frozen=True, slots=True)
class LiveSegment:
    """A data file that counts; `state` is `.swap` while the swap is not finished, else empty."""

    base_offset: int
    size: int
    state: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What a data file holds; `damage` says where and why reading stopped, empty if it did not."""

    figure: SegmentSummary
    damage: str


class LiveSegments:
    """What a directory held when it was listed; each file is measured once."""

    def __init__(self, fs: FileSystem, directory: str, *, advance: Callable[[int], None]) -> None:
        self._fs = fs
        self._directory = directory
        self._advance = advance
        self._measured: dict[int, Measured] = {}
        self._segments = _choose(list_data(fs, directory), self._measure)

    @property
    def first_offset(self) -> int | None:
        """The base offset of the first segment; None without one."""
        return min(self._segments, default=None)

    def find(self, base_offset: int) -> LiveSegment | None:
        return self._segments.get(base_offset)

    def path(self, segment: LiveSegment, kind: str = LOG) -> str:
        return f"{self._directory}/{log_name(segment.base_offset, kind)}{segment.state}"

    def measure(self, segment: LiveSegment) -> Measured:
        """Reads the whole file, with its CRCs."""
        known = self._measured.get(segment.base_offset)
        if known is None:
            known = self._measured[segment.base_offset] = self._measure(segment)
        return known

    def has_size(self, figure: SegmentSummary) -> bool:
        """Whether the segment is there with the size of its figure, whatever it holds."""
        segment = self.find(figure.base_offset)
        return segment is not None and segment.size == figure.size

    def holds(self, figure: SegmentSummary) -> bool:
        """Whether this generation of the segment is there, as far as its figure tells."""
        segment = self.find(figure.base_offset)
        if segment is None or segment.size != figure.size:
            return False
        return self.measure(segment).figure.is_same(figure)

    def digest(
        self, segment: LiveSegment, topic_id: bytes, *, with_aborted: bool = False
    ) -> tuple[int, int]:
        """The digest of its keys, from its records; raises Corrupt when they cannot be read.

        Records of aborted transactions are left out unless they are asked for. Memory for its key
        index is needed, as nothing is written to the directory.
        """
        memory = MemoryFileSystem(ManualClock())
        builder = KeyIndexBuilder(
            memory,
            f"/{log_name(segment.base_offset, KEYS)}",
            base_offset=segment.base_offset,
            topic_id=topic_id,
            buffer_bytes=_DIGEST_BUFFER_BYTES,
            aborted=() if with_aborted else self._aborted(segment),
        )
        with self._fs.open(self.path(segment)) as file:
            walk = BatchWalk(file, start=0, end=segment.size, verify_crc=True)
            for table in walk:
                builder.add(table)
                self._advance(table.end - table.start)
            walk.check_ended(self.path(segment), remedy=LEFT_ALONE)
        builder.finish(segment.size)
        return builder.digest

    def _aborted(self, segment: LiveSegment) -> Sequence[AbortedTransaction]:
        path = self.path(segment, TXN_INDEX)
        if not self._fs.exists(path):
            path = path.removesuffix(SWAP)
        if not self._fs.exists(path):
            return ()
        return TransactionIndex.decode(self._fs.read(path), segment.base_offset, path).entries()

    def _measure(self, segment: LiveSegment) -> Measured:
        builder = SegmentSummaryBuilder(segment.base_offset)
        with self._fs.open(self.path(segment)) as file:
            walk = BatchWalk(file, start=0, end=segment.size, verify_crc=True)
            for table in walk:
                builder.add(table)
                self._advance(table.end - table.start)
        is_whole = walk.position == segment.size
        damage = "" if is_whole else f"position {walk.position}: {status_text(walk.status)}"
        return Measured(builder.figure(), damage)


def list_data(fs: FileSystem, directory: str) -> Listing:
    """Names and sizes of the data files in any state, sorted by name."""
    return tuple(
        (entry.name, entry.size)
        for entry in fs.scan(directory)
        if (file := parse_file_name(entry.name)) is not None and file.kind == LOG
    )


def _choose(listing: Listing, measure: Callable[[LiveSegment], Measured]) -> dict[int, LiveSegment]:
    """The data files that the next open would keep, by base offset."""
    files: list[tuple[SegmentFileName, int]] = []
    for name, size in listing:
        file = parse_file_name(name)
        if file is not None:
            files.append((file, size))
    first_cleaned = min((file.offset for file, _ in files if file.state == CLEANED), default=None)
    swaps = [
        LiveSegment(file.offset, size, SWAP)
        for file, size in files
        if file.state == SWAP and (first_cleaned is None or file.offset < first_cleaned)
    ]
    swaps.sort(key=lambda segment: segment.base_offset)
    live = {
        file.offset: LiveSegment(file.offset, size, "") for file, size in files if not file.state
    }
    if swaps:
        ends = [measure(segment).figure.next_offset for segment in swaps]
        end = max(*ends, swaps[-1].base_offset + 1)
        live = {
            base: live_segment
            for base, live_segment in live.items()
            if not swaps[0].base_offset <= base < end
        }
        # An empty one behind the first only marks how far the swap reaches.
        live |= {
            live_segment.base_offset: live_segment
            for live_segment in swaps
            if live_segment is swaps[0] or live_segment.size
        }
    return live
