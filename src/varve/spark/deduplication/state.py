"""The ids that one bucket of a deduplication remembers, and the verdicts on records by these ids.

Layout     docs/reference/formats/dedup-state.md
           A head lists chunks; a chunk holds ids and times in the
           order in which they were kept. A batch appends: it fills the last chunk up to
           CHUNK_BYTES and begins another. A chunk whose times have all expired is removed whole.
Invariant  the state store is authoritative. Memory holds the same entries as a hash table; the
           digests of chunks show whether it is a prefix of the store. If not, it is dropped and
           read again. Records are judged in the order of partition and offset. No lookup reaches
           further back than the state remembers: a record that would need it is late, and is not
           looked up (docs/how-to/deduplicate-with-spark.md).
Crash      a failed batch leaves the last version of the store; an id set in memory that is ahead of
           it has other digests and is not used.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from varve.dedup.kernels.id_table import (
    Times,
    add_ids,
    check_ids,
    count_rows,
    make_rows,
    move_rows,
)
from varve.dedup.kernels.id_words import NO_ID, Kinds, Words
from varve.dedup.rules import Verdict, Verdicts
from varve.foundation.errors import Corrupt

Flags = npt.NDArray[np.bool_]

CHUNK_BYTES: Final = 256 << 10
ENTRY_BYTES: Final = 25
"""Two words of the id, the time, the kind."""
_FORMAT: Final = 1
_DIGEST_BYTES: Final = 16
_NO_HISTORY: Final = bytes(_DIGEST_BYTES)
_HEAD: Final = np.dtype(
    [
        ("number", "<i8"),
        ("count", "<i8"),
        ("time_max", "<i8"),
        ("digest", f"V{_DIGEST_BYTES}"),
        ("history", f"V{_DIGEST_BYTES}"),
    ]
)
_ROWS_MIN: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class FoldedIds:
    """Ids of records as kernels take them, with their times in milliseconds."""

    words: Words
    kinds: Kinds
    times: Times

    @property
    def count(self) -> int:
        return len(self.kinds)

    @classmethod
    def join(cls, parts: Sequence["FoldedIds"]) -> "FoldedIds":
        return cls(
            np.concatenate([ids.words for ids in parts]),
            np.concatenate([ids.kinds for ids in parts]),
            np.concatenate([ids.times for ids in parts]),
        )

    def take(self, chosen: npt.NDArray[np.int64] | Flags) -> "FoldedIds":
        return FoldedIds(self.words[chosen], self.kinds[chosen], self.times[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupWindow:
    """A record is a duplicate of a kept id from `before_ms` before it to `after_ms` after it."""

    before_ms: int
    after_ms: int
    is_refreshing: bool
    secret: tuple[int, int]

    @property
    def width_ms(self) -> int:
        return self.before_ms + self.after_ms + 1

    @property
    def keys(self) -> tuple[np.uint64, np.uint64]:
        return np.uint64(self.secret[0]), np.uint64(self.secret[1])


class ChunkStore(Protocol):
    """The state of one bucket."""

    def find_head(self) -> bytes | None: ...
    def put_head(self, data: bytes) -> None: ...
    def find_chunk(self, number: int) -> bytes | None: ...
    def put_chunk(self, number: int, data: bytes) -> None: ...
    def remove_chunk(self, number: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """The entry of a chunk in the head."""

    number: int
    count: int
    time_max: int
    digest: bytes
    history: bytes

    @property
    def next_history(self) -> bytes:
        """The `history` of the next chunk: a digest of this one and all before it."""
        return _digest(self.history + self.digest)


class IdSet:
    """The ids of one bucket that later records may duplicate."""

    def __init__(self, window: DedupWindow) -> None:
        self._window = window
        self._chunks: list[Chunk] = []
        self._tail = b""
        self._rows = make_rows(_ROWS_MIN)
        self._used_rows = 0
        self._floor_ms = np.iinfo(np.int64).min

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self._rows.nbytes + len(self._tail)

    def catch_up(self, store: ChunkStore, *, floor_ms: int) -> int:
        """Reads the entries of the store that memory lacks; returns their number.

        Nothing before the floor is looked up. The floor goes back only with the store, such as to
        an old copy of a checkpoint; then all entries are read again, as some may have expired.
        """
        head = store.find_head()
        stored = decode_head(head) if head is not None else []
        is_older = floor_ms < self._floor_ms
        self._floor_ms = floor_ms
        prefix = None if is_older else self._find_prefix(stored, store)
        if prefix is None:
            self._clear()
            prefix = 0, 0
        first_chunk, skipped = prefix
        read = 0
        for chunk in stored[first_chunk:]:
            data = _get_chunk(store, chunk)
            entries = decode_chunk(data)
            new_ids = entries.take(np.arange(skipped, entries.count))
            self._add(new_ids)
            read += new_ids.count
            skipped = 0
            self._tail = data
        self._chunks = stored
        return read

    def check(self, ids: FoldedIds) -> tuple[Flags, Flags]:
        """Which ids are duplicates, checked in order, and which must be saved."""
        self._reserve_rows(ids.count)
        is_duplicate, is_new = np.zeros(ids.count, np.bool_), np.zeros(ids.count, np.bool_)
        window = self._window
        k0, k1 = window.keys
        self._used_rows += check_ids(
            self._rows,
            ids.words,
            ids.kinds,
            ids.times,
            k0,
            k1,
            window.before_ms,
            window.after_ms,
            window.is_refreshing,
            is_duplicate,
            is_new,
        )
        return is_duplicate, is_new

    def save(self, store: ChunkStore, new_ids: FoldedIds) -> None:
        """Appends entries to the store, and removes chunks that end before the floor."""
        kept = [chunk for chunk in self._chunks if chunk.time_max >= self._floor_ms]
        if not new_ids.count and len(kept) == len(self._chunks):
            return
        for chunk in self._chunks:
            if chunk.time_max < self._floor_ms:
                store.remove_chunk(chunk.number)
        self._chunks = self._append(store, kept, new_ids)
        store.put_head(encode_head(self._chunks))

    def _append(self, store: ChunkStore, kept: list[Chunk], new_ids: FoldedIds) -> list[Chunk]:
        """The chunks with the ids added to the last one, or to a new one where that is full."""
        if not new_ids.count:
            return kept
        if kept and kept[-1].count * ENTRY_BYTES < CHUNK_BYTES:
            last = kept.pop()
            number, history = last.number, last.history
            new_ids = FoldedIds.join([decode_chunk(self._tail), new_ids])
        else:
            number = kept[-1].number + 1 if kept else 0
            history = kept[-1].next_history if kept else _NO_HISTORY
        self._tail = encode_chunk(new_ids)
        store.put_chunk(number, self._tail)
        time_max = int(new_ids.times.max())
        return [*kept, Chunk(number, new_ids.count, time_max, _digest(self._tail), history)]

    def _find_prefix(self, stored: list[Chunk], store: ChunkStore) -> tuple[int, int] | None:
        """Where to continue reading: the index of a stored chunk, and its entries to skip.

        None if memory does not hold a prefix of the store.
        """
        if not self._chunks:
            return None
        last = self._chunks[-1]
        for index, chunk in enumerate(stored):
            if chunk == last:
                return index + 1, 0
            if (chunk.number, chunk.history) == (last.number, last.history):
                if chunk.count < last.count:
                    return None
                stored_ids = decode_chunk(_get_chunk(store, chunk)).take(np.arange(last.count))
                return (index, last.count) if encode_chunk(stored_ids) == self._tail else None
        return None

    def _clear(self) -> None:
        self._chunks, self._tail = [], b""
        self._rows = make_rows(_ROWS_MIN)
        self._used_rows = 0

    def _add(self, ids: FoldedIds) -> None:
        self._reserve_rows(ids.count)
        k0, k1 = self._window.keys
        self._used_rows += add_ids(
            self._rows, ids.words, ids.kinds, ids.times, k0, k1, self._window.width_ms
        )

    def _reserve_rows(self, count: int) -> None:
        """Leaves three of ten rows free after `count` more ids; drops expired ids when it grows."""
        if (self._used_rows + count) * 10 <= len(self._rows) * 7:
            return
        live = count_rows(self._rows, self._floor_ms)
        rows = make_rows(max(_ROWS_MIN, 1 << (2 * (live + count) - 1).bit_length()))
        k0, k1 = self._window.keys
        move_rows(self._rows, self._floor_ms, k0, k1, self._window.width_ms, rows)
        self._rows, self._used_rows = rows, live


def encode_head(chunks: list[Chunk]) -> bytes:
    """The list of chunks as bytes."""
    table = np.array([astuple(chunk) for chunk in chunks], _HEAD)
    return bytes([_FORMAT]) + table.tobytes()


def decode_head(data: bytes) -> list[Chunk]:
    """Raises Corrupt for data that is not a head of this format."""
    if not data or data[0] != _FORMAT or (len(data) - 1) % _HEAD.itemsize:
        raise Corrupt(
            f"the state of a deduplication begins with {data[:1].hex() or 'nothing'} and has "
            f"{len(data)} bytes; this varve reads format {_FORMAT}: start with a new checkpoint"
        )
    table = np.frombuffer(data, _HEAD, offset=1)
    return [
        Chunk(number, count, time_max, bytes(digest), bytes(history))
        for number, count, time_max, digest, history in table.tolist()
    ]


def encode_chunk(ids: FoldedIds) -> bytes:
    """All ids, then all times, then all kinds."""
    return b"".join(
        (
            np.ascontiguousarray(ids.words, "<u8").tobytes(),
            np.ascontiguousarray(ids.times, "<i8").tobytes(),
            np.ascontiguousarray(ids.kinds).tobytes(),
        )
    )


def decode_chunk(data: bytes) -> FoldedIds:
    count = len(data) // ENTRY_BYTES
    words = np.frombuffer(data, "<u8", 2 * count).reshape(count, 2)
    times = np.frombuffer(data, "<i8", count, 16 * count)
    kinds = np.frombuffer(data, np.uint8, count, 24 * count)
    return FoldedIds(words.copy(), kinds.copy(), times.copy())


def _get_chunk(store: ChunkStore, chunk: Chunk) -> bytes:
    data = store.find_chunk(chunk.number)
    if data is None or len(data) != chunk.count * ENTRY_BYTES or _digest(data) != chunk.digest:
        size = (
            "is missing" if data is None else f"has {len(data)} bytes that do not match its digest"
        )
        raise Corrupt(
            f"the state of a deduplication is damaged: chunk {chunk.number} {size}: restore a "
            "copy of the checkpoint, or start with a new one"
        )
    return data


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


# Verdicts


Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The watermark and the current time of a batch; Spark fixes both before the batch starts."""

    watermark_ms: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class IdBatch:
    """The records of a batch in one bucket."""

    ids: FoldedIds
    partitions: Numbers
    offsets: Numbers

    @classmethod
    def join(cls, parts: Sequence["IdBatch"]) -> "IdBatch":
        return cls(
            FoldedIds.join([batch.ids for batch in parts]),
            np.concatenate([batch.partitions for batch in parts]),
            np.concatenate([batch.offsets for batch in parts]),
        )


@dataclass(frozen=True, slots=True)
class Judge:
    """The rules by which executors judge records."""

    window: DedupWindow
    max_future_ms: int

    def judge(
        self, arrivals: IdBatch, batch_time: BatchTime, id_set: IdSet, store: ChunkStore
    ) -> Verdicts:
        """Classifies each record, and saves the ids that must be remembered."""
        id_set.catch_up(store, floor_ms=batch_time.watermark_ms - self.window.before_ms)
        ids = arrivals.ids
        verdicts = np.full(ids.count, Verdict.KEPT, np.uint8)
        verdicts[ids.times > batch_time.now_ms + self.max_future_ms] = Verdict.FUTURE
        verdicts[ids.times < batch_time.watermark_ms] = Verdict.LATE
        verdicts[ids.kinds == NO_ID] = Verdict.NO_ID
        chosen = np.flatnonzero(verdicts == Verdict.KEPT)
        order = np.lexsort((arrivals.offsets[chosen], arrivals.partitions[chosen]))
        candidates = ids.take(chosen[order])
        is_duplicate, is_new = id_set.check(candidates)
        verdicts[chosen[order]] = np.where(is_duplicate, Verdict.DUPLICATE, Verdict.KEPT)
        id_set.save(store, candidates.take(is_new))
        return verdicts
