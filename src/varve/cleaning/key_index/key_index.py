"""The key index of a closed segment: the latest record of each key in it, by hash.

Layout     a header of 128 bytes; entries of 32 sorted by hash; batches of 32 and marks of 16 in the
           order of the data file; little-endian. docs/reference/formats/keys.md
Invariant  belongs to one generation of its data file, identified by size and last batch. The header
           is checked when it is opened, the rest by `verify`. Hashes are uniformly distributed, so
           a search guesses the position of a hash from its value; after some wrong guesses it
           bisects, so the number of reads is bounded whatever the file holds.
Crash      written to a temporary file that is renamed. The file may be deleted at any time.
Threads    any; the file is read by position.
"""

import struct
from dataclasses import astuple, dataclass
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from varve.commit_log.names import KEYS, LOG
from varve.commit_log.segment import Segment
from varve.disk import File, FileSystem
from varve.foundation.closing import Closing
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.crc import crc32c, extend_crc32c
from varve.records import HEADER_BYTES as BATCH_HEADER_BYTES
from varve.records import decode_header

Entries = npt.NDArray[np.uint64]

ENTRY_BYTES: Final = 32
_WORDS: Final = ENTRY_BYTES // 8
_BLOCK_ENTRIES: Final = 128
"""Entries per read of a search: 4 KiB, one page."""
_GUESSES_MAX: Final = 6
"""Interpolation of uniform hashes nearly always ends within three reads; then bisection."""
_HASH_END: Final = 1 << 64


def read_entries_at(file: File, position: int, out: Entries) -> None:
    """Fills `out` from the file; raises Corrupt when the file is shorter."""
    if not len(out):
        return
    view = out.reshape(-1).view(np.uint8).data
    filled = file.read_into(position, view)
    if filled != view.nbytes:
        raise Corrupt(
            f"{file.path}: {filled} of {view.nbytes} bytes at position {position}, the file was cut"
            " while in use: delete it, it is rebuilt"
        )


def find_lower_bound(file: File, position: int, start: int, end: int, hash_high: int) -> int:
    """The first of the entries [start, end) with a first word of at least `hash_high`, else `end`.

    Entry 0 lies at `position`.
    """
    if hash_high >= _HASH_END:
        return end
    low_hash, high_hash = 0, _HASH_END
    block = np.empty((_BLOCK_ENTRIES, _WORDS), np.uint64)
    guesses = 0
    while start < end:
        middle = (start + end) // 2
        if guesses < _GUESSES_MAX and low_hash <= hash_high < high_hash:
            middle = start + (hash_high - low_hash) * (end - start) // (high_hash - low_hash)
        guesses += 1
        first = max(start, min(middle - _BLOCK_ENTRIES // 2, end - _BLOCK_ENTRIES))
        rows = block[: min(end - first, _BLOCK_ENTRIES)]
        read_entries_at(file, position + first * ENTRY_BYTES, rows)
        hashes = rows[:, 0]
        if int(hashes[0]) >= hash_high:
            end, high_hash = first, int(hashes[0])
        elif int(hashes[-1]) < hash_high:
            start, low_hash = first + len(rows), int(hashes[-1])
        else:
            return first + int(np.searchsorted(hashes, np.uint64(hash_high)))
    return start


class InputSegment(Protocol):
    """A segment as the input of a run; its files may lie anywhere."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    def file(self) -> File:
        """The data file; the owner of the segment closes it."""

    def path(self, kind: str) -> str:
        """The path of the file of a kind, for messages and for opening it."""


class FileOpener(Protocol):
    """Opens files for reading: a file system, or an object store read as one."""

    def open(self, path: str) -> File: ...


ENTRY: Final = np.dtype(
    [
        ("hash_high", "<u8"),
        ("hash_low", "<u8"),
        ("offset", "<u4"),
        ("record", "<u4"),
        ("size", "<u4"),
        ("flags", "<u4"),
    ]
)
BATCH: Final = np.dtype(
    [
        ("position", "<u4"),
        ("size", "<u4"),
        ("base", "<u4"),
        ("last", "<u4"),
        ("count", "<u4"),
        ("attributes", "<u2"),
        ("flags", "<u2"),
        ("horizon", "<i8"),
    ]
)
MARK: Final = np.dtype(
    [("batch", "<u4"), ("epoch", "<i2"), ("control", "<i2"), ("producer_id", "<i8")]
)
BATCH_ABORTED: Final = 1
CONTROL_NONE: Final = -1
"""The control type in the mark of a data batch."""
CONTROL_EMPTY: Final = -2
"""The control type of a control batch whose record a cleaning has removed."""
NO_HORIZON: Final = -1

Table = npt.NDArray[Any]

HEADER_BYTES: Final = 128
_MAGIC: Final = b"VKEY"
_VERSION: Final = 1
_PREFIX = struct.Struct("<4sHH")
_FIELDS = struct.Struct("<16sqqQIIIIIIIQqI")
_CRC = struct.Struct("<I")
_CRC_AT: Final = _PREFIX.size + _FIELDS.size
NO_TOPIC_ID: Final = bytes(16)
"""Stands in for the topic id of a topic that has none; it keys the hash."""
REMEDY: Final = "delete the file, it is rebuilt"
_VERIFY_BYTES: Final = 1 << 20
_SUM_ENTRIES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class KeyIndexHeader:
    """The header of a key index; its fields are in the order of the file."""

    topic_id: bytes
    base_offset: int
    last_offset: int
    """Of the last batch; base offset - 1 when there is none."""
    log_size: int
    last_batch_crc: int
    entry_count: int
    batch_count: int
    mark_count: int
    record_count: int
    null_key_count: int
    tombstone_count: int
    record_bytes: int
    earliest_horizon: int
    sections_crc: int

    @property
    def file_size(self) -> int:
        return self.marks_at + self.mark_count * MARK.itemsize

    @property
    def batches_at(self) -> int:
        """Where in the file the batches begin."""
        return HEADER_BYTES + self.entry_count * ENTRY.itemsize

    @property
    def marks_at(self) -> int:
        """Where in the file the marks begin."""
        return self.batches_at + self.batch_count * BATCH.itemsize

    def encode(self) -> bytes:
        data = _PREFIX.pack(_MAGIC, _VERSION, 0) + _FIELDS.pack(*astuple(self))
        data += _CRC.pack(crc32c(np.frombuffer(data, np.uint8), 0, len(data)))
        return data.ljust(HEADER_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes, where: str = "key index") -> Self:
        """Raises UnsupportedFormat for another version, Corrupt for a damaged header."""
        if len(data) < HEADER_BYTES:
            raise Corrupt(
                f"{where}: {len(data)} bytes, the header alone takes {HEADER_BYTES}: {REMEDY}"
            )
        magic, version, flags = _PREFIX.unpack_from(data)
        if magic != _MAGIC:
            raise Corrupt(f"{where}: begins with {magic!r}, a key index with {_MAGIC!r}: {REMEDY}")
        (stored,) = _CRC.unpack_from(data, _CRC_AT)
        computed = crc32c(np.frombuffer(data, np.uint8), 0, _CRC_AT)
        if stored != computed or any(data[_CRC_AT + _CRC.size : HEADER_BYTES]):
            raise Corrupt(
                f"{where}: the header has CRC {stored:#010x}, its bytes give {computed:#010x} or"
                f" do not end in zeros: {REMEDY}"
            )
        if version != _VERSION or flags:
            raise UnsupportedFormat(
                f"{where}: version {version} with flags {flags:#x}, known is {_VERSION} without:"
                f" {REMEDY}"
            )
        return cls(*_FIELDS.unpack_from(data, _PREFIX.size))


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """The latest record of a key within its segment; the offset is absolute."""

    offset: int
    record: int
    size: int
    is_tombstone: bool


class KeyIndex(Closing):
    """An open key index; its header is checked, and its size against the header."""

    __slots__ = ("_file", "header", "path")

    def __init__(self, file: File) -> None:
        self._file = file
        self.path = file.path
        self.header = KeyIndexHeader.decode(file.read_at(0, HEADER_BYTES), file.path)
        if file.size() != self.header.file_size:
            raise Corrupt(
                f"{self.path}: {file.size()} bytes, by its header {self.header.file_size}: {REMEDY}"
            )

    def batches(self) -> Table:
        """All batches, as BATCH."""
        return self._section(self.header.batches_at, self.header.batch_count, BATCH)

    def marks(self) -> Table:
        """All marks, as MARK."""
        return self._section(self.header.marks_at, self.header.mark_count, MARK)

    def _section(self, position: int, count: int, layout: np.dtype[Any]) -> Table:
        size = count * layout.itemsize
        data = self._file.read_at(position, size)
        if len(data) != size:
            raise Corrupt(f"{self.path}: {len(data)} of {size} bytes at {position}: {REMEDY}")
        return np.frombuffer(data, layout)

    def read_entries(self, start: int, end: int, out: Entries) -> None:
        """Reads the entries [start, end) into out[: end - start]."""
        assert 0 <= start <= end <= self.header.entry_count
        read_entries_at(self._file, HEADER_BYTES + start * ENTRY.itemsize, out[: end - start])

    def listed_bytes(self) -> int:
        """Encoded bytes of all listed records; the others of the segment are superseded in it."""
        total, count = 0, self.header.entry_count
        for start in range(0, count, _SUM_ENTRIES):
            end = min(start + _SUM_ENTRIES, count)
            entries = self._section(HEADER_BYTES + start * ENTRY.itemsize, end - start, ENTRY)
            total += int(entries["size"].sum(dtype=np.int64))
        return total

    def lower_bound(self, hash_high: int, *, start: int = 0) -> int:
        """The first entry from `start` on whose first word is at least `hash_high`."""
        count = self.header.entry_count
        return find_lower_bound(self._file, HEADER_BYTES, min(start, count), count, hash_high)

    def find(self, hash_high: int, hash_low: int) -> KeyEntry | None:
        """The entry of a key by its hash; None when the segment has no record of it."""
        row = np.empty((1, ENTRY.itemsize // 8), np.uint64)
        for number in range(self.lower_bound(hash_high), self.header.entry_count):
            self.read_entries(number, number + 1, row)
            high, low, offset_and_record, size_and_flags = row[0].tolist()
            if high != hash_high or low > hash_low:
                return None
            if low == hash_low:
                return KeyEntry(
                    offset=self.header.base_offset + (offset_and_record & 0xFFFFFFFF),
                    record=offset_and_record >> 32,
                    size=size_and_flags & 0xFFFFFFFF,
                    is_tombstone=bool(size_and_flags >> 32 & 1),
                )
        return None

    def verify(self) -> None:
        """Reads everything after the header; raises Corrupt when its CRC is wrong."""
        crc = 0
        buffer = np.empty(_VERIFY_BYTES, np.uint8)
        for position in range(HEADER_BYTES, self.header.file_size, _VERIFY_BYTES):
            crc = extend_crc32c(crc, buffer, 0, self._file.read_into(position, buffer.data))
        if crc != self.header.sections_crc:
            raise Corrupt(
                f"{self.path}: CRC {crc:#010x} over its content, the header has"
                f" {self.header.sections_crc:#010x}: {REMEDY}"
            )

    def check_tables(self) -> None:
        """Raises Corrupt unless the batches fill the data file and the marks name batches.

        A wrong record number of an entry is found when entries are merged.
        """
        batches, marks = self.batches(), self.marks()
        ends = np.cumsum(batches["size"], dtype=np.int64)
        starts = ends - batches["size"]
        if (
            not np.array_equal(batches["position"], starts)
            or ends[-1:].sum() != self.header.log_size
        ):
            fault = f"its batches do not fill the {self.header.log_size} bytes of the data file"
        elif int(batches["count"].sum(dtype=np.int64)) != self.header.record_count:
            fault = f"its batches do not hold {self.header.record_count} records"
        elif np.any(marks["batch"] >= len(batches)):
            fault = f"a mark names a batch beyond the {len(batches)} there are"
        else:
            return
        raise Corrupt(f"{self.path}: {fault}: {REMEDY}")

    def is_of(self, segment: InputSegment, topic_id: bytes) -> bool:
        """Whether it was built from this generation of the segment's data file."""
        header = self.header
        if (header.topic_id, header.base_offset) != (topic_id, segment.base_offset):
            return False
        if header.log_size != segment.size:
            return False
        if not header.batch_count:
            return header.log_size == 0
        position, size = self._last_batch_extent()
        if position + size != header.log_size:
            raise Corrupt(
                f"{self.path}: the last batch ends at {position + size}, the data file at"
                f" {header.log_size}: {REMEDY}"
            )
        data = segment.file().read_at(position, BATCH_HEADER_BYTES)
        try:
            batch = decode_header(data, where=segment.path(LOG))
        except Corrupt:
            return False
        return batch.crc == header.last_batch_crc and batch.size == size

    def _last_batch_extent(self) -> tuple[int, int]:
        """Position and size of the data file's last batch; there must be one."""
        row = self._section(self.header.marks_at - BATCH.itemsize, 1, BATCH)[0]
        return int(row["position"]), int(row["size"])

    def close(self) -> None:
        self._file.close()


def open_key_index(fs: FileSystem, segment: Segment, *, topic_id: bytes) -> KeyIndex | None:
    """Opens the key index of a segment; None without one, or with one of another generation.

    Raises Corrupt when it is damaged.
    """
    try:
        file = fs.open(segment.path(KEYS))
    except FileNotFoundError:
        return None
    try:
        index = KeyIndex(file)
        if index.is_of(segment, topic_id):
            return index
    except BaseException:
        file.close()
        raise
    file.close()
    return None


class SegmentKeys:
    """The header and path of a key index that is not open; `open` opens it for a moment."""

    __slots__ = ("_fs", "header", "path")

    def __init__(self, fs: FileOpener, path: str, header: KeyIndexHeader) -> None:
        self._fs = fs
        self.path = path
        self.header = header

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def entry_count(self) -> int:
        return self.header.entry_count

    @property
    def record_count(self) -> int:
        return self.header.record_count

    def open(self) -> KeyIndex:
        file = self._fs.open(self.path)
        try:
            index = KeyIndex(file)
            if index.header != self.header:
                raise FileNotFoundError(2, "replaced meanwhile", self.path)
        except BaseException:
            file.close()
            raise
        return index
