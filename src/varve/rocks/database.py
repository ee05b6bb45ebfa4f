"""RocksDB databases, one directory each, under one memory budget.

A `Database` is an ordered map from bytes to bytes, written in batches; each segment has one.
`RocksDatabases` opens them; `varve.testing` has databases in memory.

Layout     RocksDB's own files; raw bytes, no compression, universal compaction, no write-ahead
           log: the changelog is the log. docs/reference/formats/window-store.md
Invariant  keys order by unsigned bytes; a scan shows the state of its first step, whatever is
           written meanwhile. Block cache, filters, indexes and write buffers of all databases of
           one engine share one budget; writes exceed it only while a flush is running.
Crash      a database holds all that was flushed, and a prefix of the later batches. RocksDB would
           take a directory without its CURRENT file for a new database; here it is `Corrupt` when
           it has data.
Threads    one thread at a time per database, any for an engine. RocksDB flushes and compacts in
           background threads.
Errors     `Closed` after close, `Corrupt` for bytes that break their format, `Locked` for a
           directory that is open elsewhere, `DiskFull` and `Unavailable` where the disk refuses.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from varve.disk import to_store_error
from varve.foundation.errors import Closed, Corrupt, DiskFull, Locked, StoreError, Unavailable

MISSING_RESOURCES: Final = (
    "Too many open files",
    "Cannot allocate memory",
    "Permission denied",
    "Operation not permitted",
    "Read-only file system",
)
"""Failures of the process or the disk; the database itself is intact."""


def rocks_failure(error: Exception, what: str) -> StoreError:
    """The error to raise instead; only its text says which kind a RocksDB error is."""
    reason = " ".join(str(error).split())
    if isinstance(error, DbClosedError):
        return Closed(f"{what}: {reason}")
    if reason.startswith("Corruption") or _is_lost_file(reason):
        return Corrupt(f"{what}: {reason}")
    if "No space left" in reason or "quota exceeded" in reason:
        return DiskFull(f"{what}: {reason}; free some space and open the store again")
    if "/LOCK:" in reason and not reason.endswith(MISSING_RESOURCES):
        return Locked(f"{what}: {reason}; close the store that has it open")
    return Unavailable(
        f"{what}: {reason}; repair the disk or its permissions and open the store again"
    )


def _is_lost_file(reason: str) -> bool:
    """Whether a data file is missing; writes to a removed directory lack `for random read`."""
    return "No such file" in reason and "for random read" in reason


def open_failure(error: Exception, path: str) -> StoreError:
    """The error for a failed open: `Corrupt`, unless the process lacks a resource."""
    failure = rocks_failure(error, f"open of {path}")
    if isinstance(failure, Unavailable) and not isinstance(failure, DiskFull | Locked):
        if any(resource in str(failure) for resource in MISSING_RESOURCES):
            return failure
        return Corrupt(f"open of {path}: {' '.join(str(error).split())}")
    return failure


logger = logging.getLogger(__name__)

Entry = tuple[bytes, bytes]
Put = tuple[bytes, bytes | None]
"""A key and its value; None deletes. Plain tuples, because one is created for each entry."""


class Scan(Iterator[Entry], Protocol):
    """Entries between two bounds; ends early, without an error, when its database is closed."""

    @property
    def is_begun(self) -> bool:
        """Whether the scan has returned an entry and has not ended."""

    def close(self) -> None:
        """Release its files; closing twice is harmless."""


class Database(Protocol):
    """The entries of one segment."""

    def get(self, key: bytes) -> bytes | None:
        """None if the key does not exist."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The value of each key, in order; None for a key that does not exist."""

    def write(self, puts: Sequence[Put]) -> None:
        """All or nothing, also after a crash; of two puts of one key the later wins."""

    def scan(self, lower: bytes | None, upper: bytes | None, *, backward: bool) -> Scan:
        """Entries from `lower` to `upper`, both inclusive, None meaning no bound."""

    def flush(self) -> None:
        """On disk after this."""

    def size(self) -> int:
        """Bytes on disk, about."""

    def close(self) -> None:
        """Flush, end all scans and release the directory; closing twice is harmless.

        Logs a warning for scans that were begun and neither ended nor closed.
        """


class Databases(Protocol):
    """An engine: opens databases and shares memory among them."""

    name: str
    """The name of the engine in the store's meta file."""

    def open(self, path: str, *, must_exist: bool = False) -> Database:
        """The database in this directory, created if absent unless it must exist.

        Raises `Corrupt` when it cannot be read, `Locked` when someone has it open.
        """


def end_scans(scans: Iterable[Scan], path: str) -> None:
    """Close all scans of a database that is being closed, and log how many were in use."""
    open_scans = list(scans)
    begun_count = sum(scan.is_begun for scan in open_scans)
    if begun_count:
        logger.warning("scans were left open", extra={"path": path, "count": begun_count})
    for scan in open_scans:
        scan.close()


Result = TypeVar("Result")

MEMORY_BYTES: Final = 128 << 20
"""For the blocks, filters and write buffers of all databases of an engine."""
MEMTABLE_BYTES: Final = 16 << 20
"""The write buffer of one database."""
_MEMTABLE_BLOOM_RATIO: Final = 0.02
"""Ten bits for each of the 200 000 short entries that fill a memtable; not more, because every
open database has a memtable at all times."""
_CROWDED_BLOOM_RATIO: Final = 0.01
"""While more databases are open than the budget has memtables for: most of them are idle."""
_ARENA_BLOCK_BYTES: Final = 64 << 10
"""Unit in which a memtable allocates; RocksDB's default is too large for many idle databases."""
_BLOOM_BITS: Final = 10
"""Bits per key: about 1 % false positives."""
_KEYS_PER_READ: Final = 1_000
"""RocksDB takes twice as long for each of 20 000 keys that are requested at once."""
_INFO_LOG_BYTES: Final = 1 << 20
_MANIFEST_PREALLOCATION_BYTES: Final = 64 << 10
"""RocksDB's default of 4 MiB is too much for a database per segment."""


class RocksScan:
    """An iterator of RocksDB, released at its end, at `close`, or with its database.

    RocksDB keeps the files, and the lock of the directory, for as long as an iterator exists.
    """

    def __init__(
        self, rocks: Rdict, path: str, lower: bytes | None, upper: bytes | None, backward: bool
    ) -> None:
        self._rocks: Rdict | None = rocks
        self._iterator: RdictIter | None = None
        self._path = path
        self._lower = lower
        self._upper = upper
        self._backward = backward

    @property
    def is_begun(self) -> bool:
        return self._iterator is not None

    def __iter__(self) -> "RocksScan":
        return self

    def __next__(self) -> Entry:
        if self._rocks is None:
            raise StopIteration
        try:
            entry = self._step(self._rocks)
        except Exception as error:
            self.close()
            raise rocks_failure(error, f"scan of {self._path}") from error
        if entry is None:
            self.close()
            raise StopIteration
        return entry

    def close(self) -> None:
        self._iterator = None
        self._rocks = None

    def _step(self, rocks: Rdict) -> Entry | None:
        # Only the attribute refers to the iterator: a local would live on in a traceback.
        if self._iterator is None:
            self._iterator = rocks.iter()
            self._seek_start()
        elif self._backward:
            self._iterator.prev()
        else:
            self._iterator.next()
        if not self._iterator.valid():
            self._iterator.status()
            return None
        key = self._iterator.key()
        return (key, self._iterator.value()) if self._contains(key) else None

    def _seek_start(self) -> None:
        assert self._iterator is not None
        if self._backward:
            if self._upper is None:
                self._iterator.seek_to_last()
            else:
                self._iterator.seek_for_prev(self._upper)
        elif self._lower is None:
            self._iterator.seek_to_first()
        else:
            self._iterator.seek(self._lower)

    def _contains(self, key: bytes) -> bool:
        if self._backward:
            return self._lower is None or key >= self._lower
        return self._upper is None or key <= self._upper


class RocksDatabase:
    """One open database and the scans that have not ended."""

    def __init__(self, path: str, rocks: Rdict, on_close: Callable[[], None]) -> None:
        self.path = path
        self._on_close = on_close
        self._rocks: Rdict | None = rocks
        self._is_dirty = False
        self._scans: weakref.WeakSet[RocksScan] = weakref.WeakSet()

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._read(key)
        return value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        for start in range(0, len(keys), _KEYS_PER_READ):
            values += self._read(keys[start : start + _KEYS_PER_READ])
        return values

    def write(self, puts: Sequence[Put]) -> None:
        rocks = self._get_rocks()
        self._is_dirty = True
        try:
            if len(puts) == 1 and puts[0][1] is not None:
                # A batch with one put takes twice as long.
                rocks[puts[0][0]] = puts[0][1]
            else:
                rocks.write(_make_batch(puts))
        except Exception as error:
            raise rocks_failure(error, f"write of {self.path}") from error

    def scan(self, lower: bytes | None, upper: bytes | None, *, backward: bool) -> RocksScan:
        scan = RocksScan(self._get_rocks(), self.path, lower, upper, backward)
        self._scans.add(scan)
        return scan

    def flush(self) -> None:
        rocks = self._get_rocks()
        if self._is_dirty:
            self._call(rocks.flush, "flush")
            self._is_dirty = False

    def size(self) -> int:
        rocks = self._get_rocks()
        name = "rocksdb.total-sst-files-size"
        return self._call(lambda: rocks.property_int_value(name), "size") or 0

    def close(self) -> None:
        rocks, self._rocks = self._rocks, None
        if rocks is None:
            return
        self._on_close()
        end_scans(self._scans, self.path)
        self._call(rocks.close, "close")

    def _read(self, keys: Any) -> Any:
        """The value of a key, or the values of a list of keys; the stub does not type either."""
        rocks = self._get_rocks()
        try:
            return rocks.get(keys)
        except Exception as error:
            raise rocks_failure(error, f"read of {self.path}") from error

    def _get_rocks(self) -> Rdict:
        if self._rocks is None:
            raise Closed(f"database {self.path} is closed: open the store again")
        return self._rocks

    def _call(self, work: Callable[[], Result], what: str) -> Result:
        try:
            return work()
        except Exception as error:
            raise rocks_failure(error, f"{what} of {self.path}") from error


class MemoryBudget:
    """One block cache and one limit of write buffers, for any number of databases."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self.memory_bytes = memory_bytes
        self._cache = Cache(memory_bytes)
        self._buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            memory_bytes // 2, False, self._cache
        )

    def in_use_bytes(self) -> int:
        """Blocks, filters and write buffers of all open databases."""
        return self._cache.get_usage()

    def make_options(self) -> Options:
        """Options of a database within the budget, with small files of its own."""
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(self._tables())
        options.set_write_buffer_size(MEMTABLE_BYTES)
        options.set_write_buffer_manager(self._buffers)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(_INFO_LOG_BYTES)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        return options

    def _tables(self) -> BlockBasedOptions:
        tables = BlockBasedOptions()
        tables.set_block_cache(self._cache)
        tables.set_bloom_filter(_BLOOM_BITS, False)
        tables.set_cache_index_and_filter_blocks(True)
        tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
        return tables


class RocksDatabases:
    """The engine: one memory budget for all databases that it opens."""

    name = "rocksdb"

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self.budget = MemoryBudget(memory_bytes)
        self._full_memtable_count = memory_bytes // 2 // MEMTABLE_BYTES
        self._lock = threading.Lock()
        self._open_count = 0  # guarded by _lock

    def open(self, path: str, *, must_exist: bool = False) -> RocksDatabase:
        _check_directory(path, must_exist)
        try:
            rocks = Rdict(path, self._options())
            rocks.set_write_options(make_write_options(is_logged=False))
        except Exception as error:
            raise open_failure(error, path) from error
        self._count(1)
        return RocksDatabase(path, rocks, on_close=lambda: self._count(-1))

    def _count(self, change: int) -> None:
        with self._lock:
            self._open_count += change

    def _options(self) -> Options:
        options = self.budget.make_options()
        options.set_compaction_style(DBCompactionStyle.universal())
        options.set_compression_type(DBCompressionType.none())
        # Most lookups of a deduplication miss, and every miss reaches the last level.
        options.set_optimize_filters_for_hits(False)
        options.set_arena_block_size(_ARENA_BLOCK_BYTES)
        options.set_memtable_whole_key_filtering(True)
        is_crowded = self._open_count >= self._full_memtable_count
        options.set_memtable_prefix_bloom_ratio(
            _CROWDED_BLOOM_RATIO if is_crowded else _MEMTABLE_BLOOM_RATIO
        )
        options.set_manifest_preallocation_size(_MANIFEST_PREALLOCATION_BYTES)
        return options


def _make_batch(puts: Sequence[Put]) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    put = batch.put
    for key, value in puts:
        if value is None:
            batch.delete(key)
        else:
            put(key, value)
    return batch


def _check_directory(path: str, must_exist: bool) -> None:
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        names = []
    except OSError as error:
        if error.strerror in MISSING_RESOURCES:
            raise to_store_error(error, f"open of {path}") from error
        raise Corrupt(f"open of {path}: {error.strerror}") from error
    if "CURRENT" in names:
        return
    if must_exist or any(name.endswith(".sst") for name in names):
        raise Corrupt(f"open of {path}: there is no CURRENT file")


def make_write_options(*, is_logged: bool) -> WriteOptions:
    """With RocksDB's write-ahead log, or without it: then only a flush reaches the disk."""
    options = WriteOptions()
    # The stub of rocksdict calls this attribute a method.
    options.disable_wal = not is_logged  # type: ignore[method-assign,assignment]
    return options


def estimate_entries(path: str) -> int:
    """About how many entries are flushed; each version of a rewritten entry counts."""
    try:
        rocks = Rdict(path, Options(raw_mode=True), access_type=AccessType.read_only())
        try:
            entry_count = rocks.property_int_value("rocksdb.estimate-num-keys")
        finally:
            rocks.close()
    except Exception as error:
        raise rocks_failure(error, f"estimate of {path}") from error
    return entry_count or 0
