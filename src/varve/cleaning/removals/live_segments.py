"""The segments that a partition's directory holds now, measured from their bytes.

Invariant  reads only, whether a store has the directory open or not. A swap whose new files are all
           in place counts as carried out, as it does at the next open.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from varve.cleaning.key_index.builder import KeyIndexBuilder
from varve.cleaning.key_index.segment_indexes import HELD_REMEDY
from varve.cleaning.removals.removal import MeasuredSegment, SegmentSummary, measure_segment
from varve.commit_log.names import (
    CLEANED,
    KEYS,
    LOG,
    SWAP,
    TXN_INDEX,
    log_name,
    parse_file_name,
)
from varve.commit_log.segment_reader import BatchWalk
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import FileSystem, MemoryFileSystem
from varve.foundation.clock import ManualClock

_DIGEST_BUFFER_BYTES: Final = 16 << 20

Listing = tuple[tuple[str, int], ...]
"""Names and sizes of data files."""


@dataclass(frozen=True, slots=True)
class LiveSegment:
    """A data file that counts; `state` is `.swap` while the swap is not finished, else empty."""

    base_offset: int
    size: int
    state: str


class LiveSegments:
    """The segments that a directory held when it was listed; each file is measured once."""

    def __init__(self, fs: FileSystem, directory: str, *, advance: Callable[[int], None]) -> None:
        self._fs = fs
        self._directory = directory
        self._advance = advance
        self._measured: dict[int, MeasuredSegment] = {}
        self._segments = _choose(list_data(fs, directory), self._measure)

    @property
    def first_offset(self) -> int | None:
        """The base offset of the first segment; None without one."""
        return min(self._segments, default=None)

    def find(self, base_offset: int) -> LiveSegment | None:
        return self._segments.get(base_offset)

    def path(self, segment: LiveSegment, kind: str = LOG) -> str:
        return f"{self._directory}/{log_name(segment.base_offset, kind)}{segment.state}"

    def measure(self, segment: LiveSegment) -> MeasuredSegment:
        """Reads the whole file, with its CRCs."""
        measured = self._measured.get(segment.base_offset)
        if measured is None:
            measured = self._measured[segment.base_offset] = self._measure(segment)
        return measured

    def has_size(self, summary: SegmentSummary) -> bool:
        """Whether the segment exists with the size of its summary; its content is not read."""
        segment = self.find(summary.base_offset)
        return segment is not None and segment.size == summary.size

    def holds(self, summary: SegmentSummary) -> bool:
        """Whether the segment exists with the size, records and CRC of its summary."""
        segment = self.find(summary.base_offset)
        if segment is None or segment.size != summary.size:
            return False
        measured = self.measure(segment)
        return not measured.damage and measured.summary.is_same(summary)

    def digest(
        self, segment: LiveSegment, topic_id: bytes, *, with_aborted: bool = False
    ) -> tuple[int, int]:
        """The digest of a segment's keys; raises Corrupt when its records cannot be read.

        Records of aborted transactions are left out unless `with_aborted`. The key index is built
        in memory, because an audit writes nothing to the directory.
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
            walk.check_ended(self.path(segment), remedy=HELD_REMEDY)
        builder.finish(segment.size)
        return builder.digest

    def _aborted(self, segment: LiveSegment) -> Sequence[AbortedTransaction]:
        path = self.path(segment, TXN_INDEX)
        if not self._fs.exists(path):
            path = path.removesuffix(SWAP)
        if not self._fs.exists(path):
            return ()
        return TransactionIndex.decode(self._fs.read(path), segment.base_offset, path).entries()

    def _measure(self, segment: LiveSegment) -> MeasuredSegment:
        with self._fs.open(self.path(segment)) as file:
            return measure_segment(
                file,
                base_offset=segment.base_offset,
                size=segment.size,
                verify_crc=True,
                advance=self._advance,
            )


def list_data(fs: FileSystem, directory: str) -> Listing:
    """Names and sizes of the data files in any state, sorted by name."""
    return tuple(
        (entry.name, entry.size)
        for entry in fs.scan(directory)
        if (file := parse_file_name(entry.name)) is not None and file.kind == LOG
    )


def _choose(
    listing: Listing, measure: Callable[[LiveSegment], MeasuredSegment]
) -> dict[int, LiveSegment]:
    """The data files that the next open would keep, by base offset."""
    files = [(file, size) for name, size in listing if (file := parse_file_name(name)) is not None]
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
    if not swaps:
        return live
    ends = [measure(segment).summary.next_offset for segment in swaps]
    start, end = swaps[0].base_offset, max(*ends, swaps[-1].base_offset + 1)
    kept = {base: segment for base, segment in live.items() if not start <= base < end}
    # An empty segment after the first only marks the end of the swap.
    kept |= {
        segment.base_offset: segment for segment in swaps if segment is swaps[0] or segment.size
    }
    return kept
