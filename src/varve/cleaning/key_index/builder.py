"""Builds the key index of a segment from its batches. docs/reference/formats/keys.md

Memory     `buffer_bytes`, and one decompressed batch. Entries beyond the buffer are sorted and
           spilled to `<path>.run` in runs, which are merged by ranges of the hash.
Invariant  the data file is checked on the way: offsets ascend, batches follow each other without a
           gap, records fill their batches exactly. A run lists a key once; of two runs the later
           one has the later records.
Crash      written to `<path>.tmp`, synced, renamed, directory synced: no file or a whole one. The
           spill file is never synced; the next build overwrites it.
Threads    one.
"""

import contextlib
import posixpath
import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.batch_tables import BatchReader, batch_name
from varve.cleaning.key_index.key_index import (
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    NO_HORIZON,
    Entries,
    InputSegment,
    KeyIndexHeader,
    find_lower_bound,
    read_entries_at,
)
from varve.cleaning.work_budget import UNLIMITED, WorkBudget
from varve.commit_log.names import KEYS, LOG
from varve.commit_log.segment_reader import BatchTable, BatchWalk
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import TEMPORARY_SUFFIX, File, FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import (
    CODEC_MASK,
    BatchColumn,
    RecordStatus,
    ScanStatus,
    status_text,
)
from varve.kernels.batch_layout import HEADER_BYTES as BATCH_HEADER_BYTES
from varve.kernels.crc import extend_crc32c
from varve.kernels.key_entries import (
    ENTRY_WORDS,
    digest_entries,
    scan_keys,
    scan_payload_keys,
)
from varve.kernels.key_sort import sort_entries
from varve.records.batch_format import CODEC_MAX, Codec
from varve.records.compression import decompress

RUN_SUFFIX: Final = ".run"
_HASH_END: Final = 1 << 64
_COPY_BYTES: Final = 1 << 20


class _Slice(NamedTuple):
    """The entries [start, end) of a run, whose entry 0 lies at `position`."""

    position: int
    start: int
    end: int


class SpillFile:
    """The spill file of a build, created by the first write."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self._file: File | None = None
        self._size = 0

    def write(self, rows: npt.NDArray[Any]) -> int:
        """Writes rows; returns their position."""
        if self._file is None:
            self._file = self._fs.open_writable(self.path)
            self._file.truncate(0)
        position = self._size
        self._file.write_at(position, rows.reshape(-1).view(np.uint8).data)
        self._size += rows.nbytes
        return position

    @property
    def file(self) -> File:
        assert self._file is not None
        return self._file

    def remove(self) -> None:
        """Closes and removes the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._fs.remove(self.path)
            self._file = None


class EntryRuns:
    """Sorted runs of entries, merged to one sorted sequence without duplicates."""

    def __init__(self, spill: SpillFile) -> None:
        self._spill = spill
        self._slices: list[_Slice] = []

    def __len__(self) -> int:
        return len(self._slices)

    def add(self, entries: Entries) -> None:
        self._slices.append(_Slice(self._spill.write(entries), 0, len(entries)))

    def merge(self, entries: Entries, scratch: Entries) -> Iterator[Entries]:
        """The entries in pieces, through the two arrays, which are of one size."""
        yield from self._merge(0, _HASH_END, self._slices, entries, scratch)

    def _merge(
        self, low: int, high: int, slices: list[_Slice], entries: Entries, scratch: Entries
    ) -> Iterator[Entries]:
        """The entries with `low` <= first word < `high`: at once if they fit, else in halves."""
        total = sum(part.end - part.start for part in slices)
        if total > len(entries) and high - low > 1:
            middle = (low + high) // 2
            file = self._spill.file
            cuts = [find_lower_bound(file, *part, middle) for part in slices]
            below = [part._replace(end=cut) for part, cut in zip(slices, cuts, strict=True)]
            above = [part._replace(start=cut) for part, cut in zip(slices, cuts, strict=True)]
            yield from self._merge(low, middle, below, entries, scratch)
            yield from self._merge(middle, high, above, entries, scratch)
            return
        if total > len(entries):
            # One hash is in more runs than the buffer has entries; its size is the number of runs.
            entries, scratch = np.empty((total, 4), np.uint64), np.empty((total, 4), np.uint64)
        filled = 0
        for position, start, end in slices:
            part = entries[filled : filled + end - start]
            read_entries_at(self._spill.file, position + start * ENTRY_BYTES, part)
            filled += end - start
        if filled:
            yield entries[: sort_entries(entries[:filled], scratch)]


class SpilledTable:
    """Rows of one table in the order of insertion; spilled to the file beyond a bound."""

    def __init__(self, spill: SpillFile, bytes_max: int) -> None:
        self._spill = spill
        self._bytes_max = bytes_max
        self._buffered: list[npt.NDArray[Any]] = []
        self._buffered_bytes = 0
        self._pieces: list[tuple[int, int]] = []
        self.count = 0

    def add(self, rows: npt.NDArray[Any]) -> None:
        if not len(rows):
            return
        self._buffered.append(rows)
        self._buffered_bytes += rows.nbytes
        self.count += len(rows)
        if self._buffered_bytes > self._bytes_max:
            rows = np.concatenate(self._buffered)
            self._pieces.append((self._spill.write(rows), rows.nbytes))
            self._buffered, self._buffered_bytes = [], 0

    def pieces(self) -> Iterator[npt.NDArray[np.uint8]]:
        """All rows as bytes."""
        for position, size in self._pieces:
            for start in range(0, size, _COPY_BYTES):
                length = min(_COPY_BYTES, size - start)
                data = self._spill.file.read_at(position + start, length)
                if len(data) != length:
                    raise Corrupt(f"{self._spill.path}: the file was cut while in use")
                yield np.frombuffer(data, np.uint8)
        for rows in self._buffered:
            yield rows.view(np.uint8)


Bytes = npt.NDArray[np.uint8]

DEFAULT_BUFFER_BYTES: Final = 128 << 20
NO_PAYLOADS: Final[Mapping[int, Bytes]] = MappingProxyType({})
_CAPACITY_MIN: Final = 8
# Plain numbers: a member of an enumeration costs a look-up for every field of every batch.
_POSITION: Final = int(BatchColumn.POSITION)
_SIZE: Final = int(BatchColumn.SIZE)
_BASE: Final = int(BatchColumn.BASE_OFFSET)
_LAST: Final = int(BatchColumn.LAST_OFFSET)
_ATTRIBUTES: Final = int(BatchColumn.ATTRIBUTES)
_COUNT: Final = int(BatchColumn.RECORD_COUNT)
_SECRET = struct.Struct("<QQ")
_WRAP: Final = (1 << 64) - 1


class KeyIndexBuilder:
    """Takes a segment's batches in file order, then writes the index."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        *,
        base_offset: int,
        topic_id: bytes,
        buffer_bytes: int,
        aborted: Sequence[AbortedTransaction],
        dropped: Bytes | None = None,
    ) -> None:
        """`dropped` has the bits of the records that are left out of the index."""
        self._fs = fs
        self._path = path
        self._dropped = dropped
        self._topic_id = topic_id
        self._base_offset = base_offset
        k0, k1 = _SECRET.unpack(topic_id)
        self._secret = np.uint64(k0), np.uint64(k1)
        # Three quarters for the entries and a scratch array to sort them, the rest for the tables.
        capacity = max(buffer_bytes * 3 // 4 // (2 * ENTRY.itemsize), _CAPACITY_MIN)
        self._entries: Entries = np.empty((capacity, ENTRY_WORDS), np.uint64)
        self._scratch: Entries = np.empty((capacity, ENTRY_WORDS), np.uint64)
        self._filled = 0
        self._spill = SpillFile(fs, path + RUN_SUFFIX)
        self._runs = EntryRuns(self._spill)
        self._batches = SpilledTable(self._spill, buffer_bytes // 8)
        self._marks = SpilledTable(self._spill, buffer_bytes // 8)
        self._reader = BatchReader(path, base_offset, aborted)
        self._record_count = 0
        self._null_keys = 0
        self._record_bytes = 0
        self._horizon = NO_HORIZON
        self.digest = (0, 0)
        """Over all listed entries with absolute offsets; after `finish`."""

    @property
    def log_size(self) -> int:
        """The bytes of the batches taken so far."""
        return self._reader.log_size

    def add(self, table: BatchTable, payloads: Mapping[int, Bytes] = NO_PAYLOADS) -> None:
        """Adds the next batches; their CRC is not checked again.

        `payloads` has the uncompressed records of batches, by position, if they are in memory.
        """
        if not len(table.rows):
            return
        findings = self._reader.read(table)
        self._batches.add(findings.batches)
        self._marks.add(findings.marks)
        self._note_horizon(findings.batches["horizon"])
        row = 0
        numbers = findings.compressed
        for compressed, fields in zip(numbers.tolist(), table.rows[numbers].tolist(), strict=True):
            if row < compressed:
                self._scan_plain(table, findings.skip, row, compressed)
            payload = payloads.get(fields[_POSITION])
            if payload is None:
                payload = self._decompress(table, fields)
            self._scan_payload(fields, payload, 0, len(payload))
            row = compressed + 1
        self._scan_plain(table, findings.skip, row, len(table.rows))

    def _note_horizon(self, horizons: npt.NDArray[np.int64]) -> None:
        horizons = horizons[horizons != NO_HORIZON]
        if horizons.size:
            earliest = int(horizons.min())
            self._horizon = earliest if self._horizon < 0 else min(self._horizon, earliest)

    def _scan_plain(self, table: BatchTable, skip: Bytes, row: int, end: int) -> None:
        """Scans uncompressed rows[row:end] in place; a batch larger than the buffer in parts."""
        buffer = np.frombuffer(table.buffer, np.uint8)
        while row < end:
            entries, records, null_keys, record_bytes, status, row = scan_keys(
                buffer,
                table.start,
                table.rows,
                row,
                end,
                self._base_offset,
                self._record_count,
                skip,
                *self._secret,
                self._entries[self._filled :],
            )
            self._keep_scanned(entries)
            self._record_count += records
            self._null_keys += null_keys
            self._record_bytes += record_bytes
            if status == ScanStatus.FULL:
                self._make_room()
                fields = table.rows[row].tolist()
                if fields[_COUNT] > len(self._entries) - self._filled:
                    start = fields[_POSITION] - table.start
                    self._scan_payload(
                        fields, buffer, start + BATCH_HEADER_BYTES, start + fields[_SIZE]
                    )
                    row += 1
            elif status != RecordStatus.OK:
                raise self._corrupt(table.rows[row].tolist(), status_text(status))

    def _keep_scanned(self, count: int) -> None:
        """Keeps the entries just scanned, without those of dropped records."""
        if self._dropped is not None:
            rows = self._entries[self._filled : self._filled + count]
            numbers = (rows[:, 2] >> np.uint64(32)).astype(np.int64)
            is_dropped = self._dropped[numbers >> 3] >> (numbers & 7).astype(np.uint8) & 1
            kept = rows[is_dropped == 0]
            rows[: len(kept)] = kept
            count = len(kept)
        self._filled += count

    def _decompress(self, table: BatchTable, fields: list[int]) -> Bytes:
        number = fields[_ATTRIBUTES] & CODEC_MASK
        if number > CODEC_MAX:
            raise self._corrupt(fields, f"codec number {number} is unknown")
        start = fields[_POSITION] - table.start
        return decompress(
            Codec(number),
            table.buffer[start + BATCH_HEADER_BYTES : start + fields[_SIZE]],
            where=batch_name(self._path, fields[_POSITION]),
        )

    def _scan_payload(self, fields: list[int], payload: Bytes, position: int, end: int) -> None:
        """Scans the records of the batch with these fields, in parts that fit the buffer."""
        base, last, count = fields[_BASE], fields[_LAST], fields[_COUNT]
        self._record_bytes += end - position
        index, previous = 0, -1
        while True:
            entries, null_keys, status, position, index, previous = scan_payload_keys(
                payload,
                position,
                end,
                index,
                count,
                previous,
                last - base,
                base - self._base_offset,
                self._record_count,
                *self._secret,
                self._entries[self._filled :],
            )
            self._keep_scanned(entries)
            self._null_keys += null_keys
            if status != ScanStatus.FULL:
                break
            self._make_room()
        if status != RecordStatus.OK:
            raise self._corrupt(fields, f"record {index} of {count}: {status_text(status)}")
        self._record_count += count

    def _corrupt(self, fields: list[int], problem: str) -> Corrupt:
        name = batch_name(self._path, fields[_POSITION])
        return Corrupt(f"{name}: {problem}")

    def _make_room(self) -> None:
        """Drops superseded entries; spills a run unless that freed half of the buffer."""
        self._filled = sort_entries(self._entries[: self._filled], self._scratch)
        if self._filled > len(self._entries) // 2:
            self._runs.add(self._entries[: self._filled])
            self._filled = 0

    def finish(self, log_size: int) -> KeyIndexHeader:
        """Writes the index, durably; `log_size` is the size of the data file."""
        if log_size != self.log_size:
            raise Corrupt(
                f"data file of {self._path}: its batches end at position {self.log_size}, the"
                f" file has {log_size} bytes"
            )
        temporary = self._path + TEMPORARY_SUFFIX
        with self._fs.open_writable(temporary) as file:
            file.truncate(0)
            header = self._write(file, log_size)
            file.sync()
        self._spill.remove()
        self._fs.rename(temporary, self._path)
        self._fs.sync_directory(posixpath.dirname(self._path) or ".")
        return header

    def _write(self, file: File, log_size: int) -> KeyIndexHeader:
        out = _SectionWriter(file)
        entry_count, tombstones = 0, 0
        for entries in self._sorted_pieces():
            first, second = digest_entries(entries, self._base_offset)
            self.digest = ((self.digest[0] + first) & _WRAP, (self.digest[1] + second) & _WRAP)
            entry_count += len(entries)
            tombstones += int(np.count_nonzero(entries[:, 3] >> np.uint64(32)))
            out.write(entries.reshape(-1).view(np.uint8))
        for table in (self._batches, self._marks):
            for piece in table.pieces():
                out.write(piece)
        header = KeyIndexHeader(
            topic_id=self._topic_id,
            base_offset=self._base_offset,
            last_offset=self._reader.next_offset - 1,
            log_size=log_size,
            last_batch_crc=self._reader.last_crc,
            entry_count=entry_count,
            batch_count=self._batches.count,
            mark_count=self._marks.count,
            record_count=self._record_count,
            null_key_count=self._null_keys,
            tombstone_count=tombstones,
            record_bytes=self._record_bytes,
            earliest_horizon=self._horizon,
            sections_crc=out.crc,
        )
        file.write_at(0, header.encode())
        return header

    def _sorted_pieces(self) -> Iterator[Entries]:
        filled = self._entries[: self._filled]
        if not len(self._runs):
            yield filled[: sort_entries(filled, self._scratch)]
            return
        if self._filled:
            self._runs.add(filled[: sort_entries(filled, self._scratch)])
        yield from self._runs.merge(self._entries, self._scratch)

    def discard(self) -> None:
        """Removes temporary files; a finished index stays."""
        with contextlib.suppress(OSError):
            self._spill.remove()
        with contextlib.suppress(OSError):
            self._fs.remove(self._path + TEMPORARY_SUFFIX)


class _SectionWriter:
    """Writes the sections after the header, and computes their CRC."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._position = HEADER_BYTES
        self.crc = 0

    def write(self, data: Bytes) -> None:
        self._file.write_at(self._position, data.data)
        self._position += data.size
        self.crc = extend_crc32c(self.crc, data, 0, data.size)


def build_key_index(
    fs: FileSystem,
    segment: InputSegment,
    *,
    topic_id: bytes,
    aborted: Sequence[AbortedTransaction],
    buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    budget: WorkBudget = UNLIMITED,
    path: str | None = None,
) -> KeyIndexHeader:
    """Reads the whole data file, with its CRCs, and writes its key index beside it, or to `path`.

    `budget` is charged for each chunk and may raise; temporary files are then removed. Raises
    Corrupt when the data file is damaged; the caller adds the remedy.
    """
    builder = KeyIndexBuilder(
        fs,
        path or segment.path(KEYS),
        base_offset=segment.base_offset,
        topic_id=topic_id,
        buffer_bytes=buffer_bytes,
        aborted=aborted,
    )
    return index_segment(builder, segment, budget)


def index_segment(
    builder: KeyIndexBuilder, segment: InputSegment, budget: WorkBudget = UNLIMITED
) -> KeyIndexHeader:
    """Feeds the whole data file to a builder, checking CRCs; raises like `build_key_index`."""
    try:
        walk = BatchWalk(segment.file(), start=0, end=segment.size, verify_crc=True)
        for table in walk:
            done = builder.log_size
            builder.add(table)
            budget.spend(builder.log_size - done)
        walk.check_ended(segment.path(LOG), remedy=None)
        return builder.finish(segment.size)
    except BaseException:
        builder.discard()
        raise
