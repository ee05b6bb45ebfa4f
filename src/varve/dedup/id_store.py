"""The ids that one partition has kept, in time segments on disk.

Layout     a segment has one entry for each id and cell: the id and its kind as key, the least and
           the largest time with their offsets as value. docs/reference/formats/dedup-ids.md
Invariant  the store is a copy of the changelog, and may be deleted. Ids older than the stream time
           minus the retention are never looked up, and are dropped with their segment.
Crash      applying a changelog entry twice has no effect, so it does not matter which entries after
           the checkpoint are on disk already.
Threads    one thread at a time.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple, Self

import numpy as np

from varve.commit_log.settings import NO_ERASURE
from varve.dedup.ids import Arrivals, Numbers, Secret
from varve.dedup.kernels.time_spans import (
    NO_ROW,
    ONE_TIME_BYTES,
    ROW_WORDS,
    TWO_TIMES_BYTES,
    Rows,
    extend_spans,
    find_cells,
    make_spans,
    read_spans,
)
from varve.dedup.rules import DedupRules
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.record_columns import join_byte_strings
from varve.rocks.database import Databases, Put
from varve.rocks.segments import Segment, Segments
from varve.rocks.state_files import (
    NO_STREAM_TIME_MS,
    MetaChanged,
    StoreMeta,
    find_segment_ms,
)
from varve.topics import HistoryMark

logger = logging.getLogger(__name__)

STORE_NAME: Final = "ids"
_LAYOUT: Final = "dedup-spans-1"
_SEGMENTS_MAX: Final = 64
"""Live segments above which a store is restored with wider ones; each is an open database."""
_KEY: Final = np.dtype([("words", "<u8", 2), ("kind", "u1")])
_KEY_STRUCT: Final = Struct("<qqB")
_CELL_STRUCT: Final = Struct(">I")
_ONE_TIME_STRUCT: Final = Struct("<qq")
_TWO_TIMES_STRUCT: Final = Struct("<qqqq")
_KEY_AND_CELL: Final = np.dtype([("words", "<u8", 2), ("kind", "u1"), ("cell", ">u4")])


Cell = tuple[int, int, int, int]
"""The two words of an id as signed numbers, its kind, and the number of a time range."""
Span = tuple[int, int, int, int]
"""Least time and its offset, largest time and its offset."""


class SpanRows(NamedTuple):
    """Cells and their spans, row by row."""

    cells: Rows
    spans: Rows


@dataclass(slots=True)
class NewIds:
    """The new ids of a chunk: entries for the changelog, and the spans that they change.

    The changes are arrays if kernels judged the chunk, and a dictionary if Python did.
    """

    entries: Arrivals
    changes: SpanRows | dict[Cell, Span]
    version: int
    """The version of the store that they were judged by; they apply to no other."""


@dataclass(frozen=True, slots=True, order=True)
class KeptRecord:
    """A stored time of an id, and the offset of the record that was kept."""

    time_ms: int
    offset: int


class IdStore:
    """Spans by cell, read and written in batches."""

    def __init__(
        self,
        segments: Segments,
        meta: StoreMeta,
        rules: DedupRules,
        secret: Secret,
    ) -> None:
        self.rules = rules
        self.secret = secret
        self.stream_time_ms = NO_STREAM_TIME_MS
        self.changelog_offset: int | None = None
        """The changelog offset to restore from; None for the start."""
        self.changelog_mark: HistoryMark | None = None
        """The batch before that offset, to detect a changelog that lost its end."""
        self.version = 0
        self._segments = segments
        self._meta = meta
        self._cells_per_segment = segments.segment_ms // rules.cell_ms
        self._key_type = _KEY if self._cells_per_segment == 1 else _KEY_AND_CELL

    @classmethod
    def open(
        cls,
        *,
        directory: str,
        rules: DedupRules,
        secret: Secret,
        databases: Databases,
        file_system: FileSystem,
        erasure: str = NO_ERASURE,
    ) -> Self:
        """Opens the store of a directory; a damaged one, or one of other rules, is emptied.

        So is one from before `erasure`, the last erasure of the input: it may have erased ids.
        """
        layout = _layout(rules, secret, erasure)
        existing_ms = find_segment_ms(file_system, directory, engine=databases.name, layout=layout)
        segment_ms = _choose_width(rules, existing_ms)
        segments = Segments(
            name=STORE_NAME,
            directory=directory,
            databases=databases,
            file_system=file_system,
            segment_ms=segment_ms,
            retention_ms=rules.retention_ms,
        )
        meta = StoreMeta(
            engine=databases.name,
            layout=layout,
            segment_ms=segment_ms,
            # Not compared: it decides when segments expire, not what they hold.
            retention_ms=0,
        )
        store = cls(segments, meta, rules, secret)
        try:
            store._open()
        except Corrupt as error:
            # Before its first commit a partition draws a new secret at each start: nothing is lost.
            if segments.has_directories() or not isinstance(error, MetaChanged):
                logger.warning(
                    "ids are restored from the start of the changelog",
                    extra={"directory": directory, "error": str(error)},
                )
            store.reset()
        except BaseException:
            segments.close()
            raise
        return store

    def reset(self) -> None:
        """Removes all ids, also on disk; the next restore reads the whole changelog."""
        self._segments.wipe()
        self.stream_time_ms, self.changelog_offset = NO_STREAM_TIME_MS, None
        self.changelog_mark = None
        self.version += 1
        self._open()

    # Reading

    def probe(self, cells: Rows, rows: Numbers, spans: Rows) -> None:
        """Reads the spans of these rows of cells; rows without a stored span stay unchanged."""
        for id, part in self._group_by_segment(cells[rows]):
            segment = self._segments.find(id)
            if segment is not None:
                self._read(segment, cells, rows[part], spans)

    def find_span(self, cell: Cell) -> Span | None:
        """The span of one cell; None if none is stored."""
        segment = self._segments.find(cell[3] // self._cells_per_segment)
        value = None if segment is None else segment.database.get(self._encode_key(cell))
        if segment is None or value is None:
            return None
        if len(value) == ONE_TIME_BYTES:
            least, offset = _ONE_TIME_STRUCT.unpack(value)
            span: Span = (least, offset, least, offset)
        elif len(value) == TWO_TIMES_BYTES:
            span = _TWO_TIMES_STRUCT.unpack(value)
        else:
            raise self._make_span_error(segment, value)
        width = self.rules.cell_ms
        if not (0 <= span[0] <= span[2] and span[0] // width == span[2] // width == cell[3]):
            raise self._make_span_error(segment, value)
        return span

    # Writing

    def apply(self, new_ids: NewIds, stream_time_ms: int) -> None:
        """Stores the new ids of a committed chunk, which was judged by the current state."""
        assert new_ids.version == self.version, (
            "these spans were judged by another version of the store"
        )
        self._write(new_ids.changes, stream_time_ms)

    def restore(self, entries: Arrivals) -> None:
        """Stores entries of the changelog; in any order, and repeatedly."""
        if not len(entries):
            return
        cells, own = find_own_cells(entries, self.rules, self.secret)
        spans = make_spans(len(cells))
        self.probe(cells, np.arange(len(cells)), spans)
        is_changed = np.zeros(len(cells), np.bool_)
        extend_spans(entries.times, entries.offsets, own, spans, is_changed)
        changes = SpanRows(cells[is_changed], spans[is_changed])
        self._write(changes, int(entries.times.max()))

    def maintain(self, stream_time_ms: int) -> int:
        """Drops expired segments without new ids; returns their number."""
        self._raise_stream_time(stream_time_ms)
        return self._segments.cleanup(self.stream_time_ms)

    def checkpoint(self, changelog_offset: int, mark: HistoryMark | None = None) -> None:
        """Syncs all ids, and records that they include the changelog before the offset.

        `mark` is that of the batch before the offset, if it is known.
        """
        encoded_mark = None if mark is None else mark.to_json()
        self._segments.checkpoint(self.stream_time_ms, changelog_offset, encoded_mark)
        self.changelog_offset, self.changelog_mark = changelog_offset, mark

    def size(self) -> int:
        """The approximate bytes on disk."""
        return sum(segment.database.size() for segment in self._segments)

    def close(self) -> None:
        self._segments.close()

    def _open(self) -> None:
        """Raises Corrupt if the files cannot be used; nothing is open then."""
        checkpoint = self._segments.open(self._meta, self.stream_time_ms)
        if checkpoint is not None:
            self._raise_stream_time(checkpoint.stream_time_ms)
            self.changelog_offset = checkpoint.changelog_offset
            self.changelog_mark = _decode_mark(checkpoint.changelog_mark)

    def _read(self, segment: Segment, cells: Rows, rows: Numbers, spans: Rows) -> None:
        values = segment.database.get_many(self._encode_keys(cells[rows]))
        _, data, starts, sizes = join_byte_strings(values)
        fault = read_spans(data, starts, sizes, rows, cells, self.rules.cell_ms, spans)
        if fault >= 0:
            raise self._make_span_error(segment, values[fault])

    def _make_span_error(self, segment: Segment, value: bytes | None) -> Corrupt:
        return Corrupt(
            f"{self._segments.directory}: segment {segment.start_ms}: the value {value!r:.200} is "
            "not a span of its cell: remove the directory, and it is restored"
        )

    def _write(self, changes: SpanRows | dict[Cell, Span], stream_time_ms: int) -> None:
        """Replaces the spans of cells; those of expired segments are dropped."""
        self._raise_stream_time(stream_time_ms)
        self.version += 1
        if isinstance(changes, dict):
            puts_by_id: Iterable[tuple[int, list[Put]]] = self._make_puts_of_dict(changes)
        else:
            puts_by_id = self._make_puts_of_rows(*changes)
        for id, puts in puts_by_id:
            segment = self._segments.get_or_create_if_live(id, self.stream_time_ms)
            if segment is not None:
                segment.database.write(puts)
        self._segments.cleanup(self.stream_time_ms)

    def _make_puts_of_rows(self, cells: Rows, spans: Rows) -> Iterator[tuple[int, list[Put]]]:
        """Each segment's id, the lowest first, and its puts."""
        for id, part in self._group_by_segment(cells):
            keys, values = self._encode_keys(cells[part]), _encode_values(spans[part])
            yield id, list(zip(keys, values, strict=True))

    def _make_puts_of_dict(self, changes: dict[Cell, Span]) -> list[tuple[int, list[Put]]]:
        by_id: dict[int, list[Put]] = {}
        for cell, span in changes.items():
            value = (
                _ONE_TIME_STRUCT.pack(*span[:2])
                if span[0] == span[2]
                else _TWO_TIMES_STRUCT.pack(*span)
            )
            put = (self._encode_key(cell), value)
            by_id.setdefault(cell[3] // self._cells_per_segment, []).append(put)
        return sorted(by_id.items())

    def _encode_key(self, cell: Cell) -> bytes:
        first, second, kind, number = cell
        key = _KEY_STRUCT.pack(first, second, kind)
        if self._cells_per_segment == 1:
            return key
        return key + _CELL_STRUCT.pack(number % self._cells_per_segment)

    def _group_by_segment(self, cells: Rows) -> Iterator[tuple[int, Numbers]]:
        """Each segment's id, the lowest first, and the indexes of its cells in key order.

        Databases handle sorted keys about twice as fast; sorting by the first word is enough.
        """
        if not len(cells):
            return
        # Numbers in the machine's byte order are sorted three times as fast.
        order = np.argsort(cells[:, 0].astype("<i8").view(">u8").astype(np.uint64))
        ids = cells[order, 3] // self._cells_per_segment
        if ids.min() != ids.max():
            by_id = np.argsort(ids, kind="stable")
            order, ids = order[by_id], ids[by_id]
        for part in np.split(order, np.flatnonzero(np.diff(ids)) + 1):
            yield int(cells[part[0], 3]) // self._cells_per_segment, part

    def _encode_keys(self, cells: Rows) -> list[bytes]:
        keys = np.empty(len(cells), self._key_type)
        keys["words"] = cells[:, :2].view(np.uint64)
        keys["kind"] = cells[:, 2]
        if self._key_type is _KEY_AND_CELL:
            keys["cell"] = cells[:, 3] % self._cells_per_segment
        return _split_bytes(keys.tobytes(), self._key_type.itemsize)

    def _raise_stream_time(self, time_ms: int) -> None:
        self.stream_time_ms = max(self.stream_time_ms, time_ms)


def _choose_width(rules: DedupRules, existing_ms: int | None) -> int:
    """The milliseconds per segment: the existing width, unless there would be too many segments.

    Another width requires a full restore, and the changelog may no longer have all entries.
    """
    if existing_ms is None or existing_ms % rules.cell_ms or existing_ms < rules.cell_ms:
        return rules.segment_ms
    return existing_ms if rules.retention_ms // existing_ms <= _SEGMENTS_MAX else rules.segment_ms


def _layout(rules: DedupRules, secret: Secret, erasure: str) -> str:
    """The name of the encoding: cell width and, hashed with the secret, rules and erasure."""
    words = b"".join(word.to_bytes(8, "little") for word in secret)
    text = rules.fingerprint() if erasure == NO_ERASURE else f"{rules.fingerprint()} {erasure}"
    digest = blake2b(text.encode(), key=words, digest_size=8).hexdigest()
    return f"{_LAYOUT}/{rules.cell_ms}/{digest}"


def _encode_values(spans: Rows) -> list[bytes]:
    if (spans[:, 0] == spans[:, 2]).all():
        return _split_bytes(spans[:, :2].astype("<i8").tobytes(), ONE_TIME_BYTES)
    data = spans.astype("<i8", copy=False).tobytes()
    sizes = np.where(spans[:, 0] == spans[:, 2], ONE_TIME_BYTES, TWO_TIMES_BYTES).tolist()
    starts = range(0, len(data), TWO_TIMES_BYTES)
    return [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _split_bytes(data: bytes, size: int) -> list[bytes]:
    """Splits data into byte strings of one size, in one call of numpy."""
    parts: list[bytes] = np.frombuffer(data, f"V{size}").tolist()
    return parts


_SLOTS_MIN: Final = 4
"""The kernel needs a power of two above the number of rows."""


@dataclass(frozen=True, slots=True)
class CellRows:
    """One row for each cell; the rows of each record's own cell and of its window's other cell."""

    cells: Rows
    own: Numbers
    other: Numbers


def find_window_cells(
    arrivals: Arrivals, chosen: Numbers, rules: DedupRules, secret: Secret
) -> CellRows:
    """The cells that the windows of the chosen records overlap."""
    return _find_cell_rows(arrivals, chosen, rules.before_ms, rules.after_ms, rules.cell_ms, secret)


def find_own_cells(arrivals: Arrivals, rules: DedupRules, secret: Secret) -> tuple[Rows, Numbers]:
    """The cells of the records, and the row of each record's cell."""
    rows = _find_cell_rows(arrivals, np.arange(len(arrivals)), 0, 0, rules.cell_ms, secret)
    return rows.cells, rows.own


def _find_cell_rows(
    arrivals: Arrivals, chosen: Numbers, before: int, after: int, width: int, secret: Secret
) -> CellRows:
    count = len(chosen)
    slots = np.full(max(_SLOTS_MIN, 1 << (3 * count).bit_length()), NO_ROW)
    cells = np.empty((2 * count, ROW_WORDS), np.int64)
    own, other = np.empty(count, np.int64), np.empty(count, np.int64)
    k0, k1 = (np.uint64(word) for word in secret)
    words, kinds, times = arrivals.words, arrivals.kinds, arrivals.times
    row_count = find_cells(
        words, kinds, times, chosen, before, after, width, k0, k1, slots, cells, own, other
    )
    return CellRows(cells[:row_count], own, other)


def _decode_mark(entry: Mapping[str, int] | None) -> HistoryMark | None:
    try:
        return None if entry is None else HistoryMark.from_json(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"changelog mark of the checkpoint is not valid: {error!r:.80}") from None
