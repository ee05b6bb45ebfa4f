"""RocksDB as a program without varve has it: one database for each stretch of time, and no more.

Tuned for ids of which most are not there: filters on every level and on memtables, universal
compaction, no compression, no write-ahead log, one block cache for all.
"""

import shutil
from pathlib import Path
from struct import Struct
from typing import Any, Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from varve.rocks.database import Put

_CACHE_BYTES: Final = 64 << 20
_MEMTABLE_BYTES: Final = 16 << 20
_MEMTABLE_BLOOM_RATIO: Final = 0.02
_BLOOM_BITS: Final = 10
_VALUE: Final = Struct("<qq")


class BareStore:
    """Databases by the number of their segment."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._options = make_options()
        self._databases: dict[int, Any] = {}

    def __enter__(self) -> "BareStore":
        return self

    def __exit__(self, *error: object) -> None:
        for database in self._databases.values():
            database.close()

    def find(self, segment: int) -> Any:
        """The database of a segment, untyped as its stub is wrong about bytes; None without one."""
        return self._databases.get(segment)

    def get(self, segment: int) -> Any:
        """The database of a segment, made where it is not there."""
        found = self._databases.get(segment)
        if found is None:
            found = self._databases[segment] = Rdict(self._path(segment), self._options)
            found.set_write_options(without_log())
        return found

    def write(self, segment: int, puts: list[Put]) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        self.get(segment).write(batch)

    def flush(self) -> None:
        for database in self._databases.values():
            database.flush()

    def drop(self, segment: int) -> None:
        self._databases.pop(segment).close()
        shutil.rmtree(self._path(segment))

    def drop_before(self, segment: int) -> None:
        for old in [one for one in self._databases if one < segment]:
            self.drop(old)

    def _path(self, segment: int) -> str:
        return str(self._directory / str(segment))


class BareCheck:
    """Put if absent within a window, many ids at a time or one by one."""

    def __init__(
        self, store: BareStore, *, window_ms: int, segment_ms: int, retention_ms: int
    ) -> None:
        self._store = store
        self._window_ms = window_ms
        self._segment_ms = segment_ms
        self._retention_ms = retention_ms

    def check_many(self, ids: list[bytes], times: list[int], first_offset: int) -> int:
        """How many of the ids were new; a multi-get and a write batch for each segment."""
        found = self._find_many(ids, times)
        fresh: dict[bytes, int] = {}
        news: dict[int, list[Put]] = {}
        for place, (id, time) in enumerate(zip(ids, times, strict=True)):
            known = found[place]
            before = fresh.get(id) if known is None else _VALUE.unpack(known)[0]
            if before is None or abs(before - time) > self._window_ms:
                fresh[id] = time
                value = _VALUE.pack(time, first_offset + place)
                news.setdefault(time // self._segment_ms, []).append((id, value))
        for segment, puts in news.items():
            self._store.write(segment, puts)
        self._drop(max(times))
        return len(fresh)

    def _find_many(self, ids: list[bytes], times: list[int]) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(ids)
        own: dict[int, list[int]] = {}
        for place, time in enumerate(times):
            own.setdefault(time // self._segment_ms, []).append(place)
        self._read(own, ids, found)
        other: dict[int, list[int]] = {}
        for place, time in enumerate(times):
            if found[place] is None and (segment := self._other(time)) is not None:
                other.setdefault(segment, []).append(place)
        self._read(other, ids, found)
        return found

    def _read(
        self, wanted: dict[int, list[int]], ids: list[bytes], found: list[bytes | None]
    ) -> None:
        for segment, places in wanted.items():
            database = self._store.find(segment)
            if database is not None:
                values = database.get([ids[place] for place in places])
                for place, value in zip(places, values, strict=True):
                    found[place] = value

    def check_one(self, id: bytes, time: int, offset: int) -> bool:
        """Whether the id was new; a get for each segment and a put."""
        segment = time // self._segment_ms
        for probed in (segment, self._other(time)):
            database = None if probed is None else self._store.find(probed)
            known = None if database is None else database.get(id)
            if known is not None and abs(_VALUE.unpack(known)[0] - time) <= self._window_ms:
                return False
        self._store.get(segment)[id] = _VALUE.pack(time, offset)
        self._drop(time)
        return True

    def _other(self, time: int) -> int | None:
        """The segment beside its own that the window around a time touches."""
        low = (time - self._window_ms) // self._segment_ms
        high = (time + self._window_ms) // self._segment_ms
        return low + high - time // self._segment_ms if low != high else None

    def _drop(self, time: int) -> None:
        self._store.drop_before((time - self._retention_ms) // self._segment_ms)


def without_log() -> WriteOptions:
    options = WriteOptions()
    # The stub of rocksdict calls this attribute a method.
    options.disable_wal = True  # type: ignore[method-assign,assignment]
    return options


def make_options() -> Options:
    """Databases that are opened with the same ones share a cache."""
    tables = BlockBasedOptions()
    tables.set_block_cache(Cache(_CACHE_BYTES))
    tables.set_bloom_filter(_BLOOM_BITS, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(tables)
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_compression_type(DBCompressionType.none())
    options.set_optimize_filters_for_hits(False)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(_MEMTABLE_BLOOM_RATIO)
    options.set_keep_log_file_num(1)
    return options
