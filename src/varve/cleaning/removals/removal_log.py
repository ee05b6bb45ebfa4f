"""The removal log of a partition: a line for each removal, written before it happens.

Layout     JSON lines, each chained to the one before by SHA-256. docs/reference/formats/evidence.md
Invariant  a line that was changed, moved or deleted no longer fits its chain, however many follow.
           From `max_bytes` on the oldest lines are dropped: the first line then carries their chain
           and the removals that are still needed, so the file is bounded by the segments on disk.
Crash      `append` is durable on return, so no removal happens without its line. A line that did
           not reach the disk whole is cut by the next append: its removal cannot have happened.
           Old lines are dropped by writing a new file and renaming it.
Threads    any, through one object per partition; two objects on one file need an outer order.
"""

import hashlib
import json
import logging
import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from varve.cleaning.removals.removal import (
    Removal,
    RemovalKind,
    check_number,
    decode_removal,
    encode_removal,
)
from varve.commit_log import Log, LogManager, TopicPartition
from varve.commit_log.names import LOG, parse_file_name
from varve.disk import DiskProblem, File, FileSystem, classify_error, write_atomically
from varve.foundation.errors import Corrupt, InvalidRequest, Unavailable, UnsupportedFormat

logger = logging.getLogger(__name__)

REMOVAL_LOG_FILE: Final = "varve-evidence.jsonl"
REMOVAL_LOG_BYTES_MAX: Final = 8 << 20
VERSION: Final = 1
FIRST_CHAIN: Final = "0" * 64
"""The chain before the first line."""

_TAIL_BYTES: Final = 1 << 16
_CHAINED: Final = re.compile(rb'(\{.*),"chain":"([0-9a-f]{64})"\}\n', re.DOTALL)
# JSON escapes quotation marks in texts, so this matches the field alone.
_CARRIED: Final = re.compile(
    rb'.*,"carried":"([0-9a-f]{64})","chain":"[0-9a-f]{64}"\}\n', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class RemovalEntry:
    """A removal on record.

    `is_done`: it is marked as carried out. `is_intact`: its line fits the chain.
    """

    line_number: int
    removal: Removal
    is_done: bool
    is_intact: bool


@dataclass(frozen=True, slots=True)
class RemovalLogFault:
    """A line that cannot be trusted; lines count from 1."""

    line_number: int
    message: str


@dataclass(slots=True)
class RemovalHistory:
    """The contents of a removal log, read line by line.

    `chains` has the chain of each line; the last one is the head. `torn_bytes` counts the bytes
    after the last whole line. `dropped` counts the lines that were dropped to bound the file, and
    `first_id` is the id of the first line, or of the last dropped line.
    """

    faults: list[RemovalLogFault] = field(default_factory=list)
    chains: list[str] = field(default_factory=list)
    torn_bytes: int = 0
    dropped: int = 0
    first_id: int = 1
    _entries: dict[int, RemovalEntry] = field(default_factory=dict)
    _last_id: int = 0

    @classmethod
    def decode(cls, data: bytes) -> Self:
        history = cls()
        end = _last_line(data)[1]
        for line in data[:end].split(b"\n")[:-1]:
            history._read_line(line + b"\n")
        history.torn_bytes = len(data) - end
        return history

    @property
    def entries(self) -> tuple[RemovalEntry, ...]:
        return tuple(self._entries.values())

    @property
    def head(self) -> str:
        return self.chains[-1] if self.chains else FIRST_CHAIN

    def _read_line(self, line: bytes) -> None:
        line_number = len(self.chains) + 1
        is_intact = True
        try:
            check_chain(line, self.head)
        except Corrupt as error:
            is_intact = False
            self.faults.append(RemovalLogFault(line_number, str(error)))
        earlier_id = self._last_id
        try:
            self._read_document(line_number, _decode_line(line), is_intact=is_intact)
        except Corrupt as error:
            if self._last_id == earlier_id:
                self._last_id += 1  # a line without a valid id
            self.faults.append(RemovalLogFault(line_number, str(error)))
        self.chains.append(_chain_after(line))

    def _read_document(
        self, line_number: int, document: dict[str, Any], *, is_intact: bool
    ) -> None:
        id = check_number(document.get("id"), "id")
        previous_id, self._last_id = self._last_id, id
        if "dropped" in document:
            self._read_carried(line_number, id, document, is_intact=is_intact)
            return
        if is_intact and id != previous_id + 1:
            message = f"id {id} follows id {previous_id}: a line was left out, added or repeated"
            self.faults.append(RemovalLogFault(line_number, message))
        if "done" not in document:
            entry = RemovalEntry(line_number, decode_removal(id, document), False, is_intact)
            self._entries.setdefault(id, entry)
        else:
            done = check_number(document["done"], "done")
            if done in self._entries:
                self._entries[done] = replace(self._entries[done], is_done=True)
            elif done > (self.first_id if self.dropped else 0):
                raise Corrupt(f"removal {done} is marked as carried out and is not on record")

    def _read_carried(
        self, line_number: int, id: int, document: dict[str, Any], *, is_intact: bool
    ) -> None:
        if line_number > 1:
            raise Corrupt("the line lists dropped lines, which only the first line may do")
        kept = document.get("kept")
        if not isinstance(kept, list) or not all(isinstance(item, dict) for item in kept):
            raise Corrupt(f"kept is {str(kept)[:40]!r}, not a list of removals")
        self.first_id = id
        self.dropped = check_number(document["dropped"], "dropped")
        for item in kept:
            kept_id = check_number(item.get("id"), "id")
            removal, is_done = decode_removal(kept_id, item), item.get("is_done") is True
            self._entries[kept_id] = RemovalEntry(line_number, removal, is_done, is_intact)


@dataclass(frozen=True, slots=True)
class _Tail:
    """Where the next line is written: at position `end`, as `next_id`, chained to `chain`."""

    end: int
    chain: str
    next_id: int
    last_line: bytes


_EMPTY: Final = _Tail(0, FIRST_CHAIN, 1, b"")


class RemovalLog:
    """The removals of one partition, in its directory; the first append creates the file."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        *,
        removal_lock: "threading.RLock | None" = None,
        max_bytes: int = REMOVAL_LOG_BYTES_MAX,
    ) -> None:
        self.path = f"{directory}/{REMOVAL_LOG_FILE}"
        self._fs = fs
        self._directory = directory
        self._max_bytes = max_bytes
        self._drop_at_bytes = max_bytes  # guarded by _lock
        self._lock = threading.Lock()
        self.removal_lock = removal_lock or threading.RLock()
        """That of the log, if it is open."""
        self._deferred: list[Removal] = []  # guarded by removal_lock
        self._tail: _Tail | None = None  # guarded by _lock; set when all up to it is synced

    def next_id(self) -> int:
        """The id that the next removal must have."""
        with self._lock:
            return self._find_tail_locked().next_id

    def append(self, removal: Removal) -> None:
        """Checks and records a removal, durably: only then may it be carried out.

        Raises Unbalanced when it does not add up. After an OSError the line may or may not be in
        the file; without its removal it does no harm.
        """
        removal.check()
        with self._lock:
            tail = self._find_tail_locked()
            if tail.end > self._drop_at_bytes:
                self._drop_oldest_locked()
                tail = self._find_tail_locked()
            if removal.id != tail.next_id:
                raise InvalidRequest(
                    f"{self.path}: removal {removal.id} cannot be recorded, the next id is "
                    f"{tail.next_id}: take it from `next_id` right before"
                )
            self._append_locked(tail, encode_removal(removal))

    def try_append(self, removal: Removal) -> bool:
        """As `append`; False when the disk has no room for the line."""
        try:
            self.append(removal)
        except OSError as error:
            if classify_error(error) is not DiskProblem.FULL:
                raise
            return False
        return True

    def defer(self, removal: Removal) -> None:
        """Keeps a removal that was carried out and could not be recorded; `removal_lock` is held.

        Only a crash before `write_deferred` finds room loses it.
        """
        logger.warning(
            "the disk is too full to record a removal, it will be recorded later",
            extra={"partition": str(removal.partition), "end_offset": removal.end_offset},
        )
        self._deferred.append(removal)

    def write_deferred(self) -> None:
        """Records the removals that were deferred while the disk was full, as far as they fit."""
        while self._deferred:
            rule = f"{self._deferred[0].rule}; recorded after it, because the disk was full"
            removal = replace(self._deferred[0], id=self.next_id(), rule=rule)
            if not self.try_append(removal):
                return
            del self._deferred[0]
            self.mark_done(removal.id)

    def mark_done(self, id: int) -> None:
        """Records, durably, that the removal of this id was carried out."""
        with self._lock:
            tail = self._find_tail_locked()
            if not 0 < id < tail.next_id:
                raise InvalidRequest(
                    f"{self.path}: removal {id} is not recorded, the last id is {tail.next_id - 1}"
                )
            self._append_locked(tail, {"done": id})

    def read(self) -> list[RemovalEntry]:
        """The removals on record, oldest first; raises Corrupt when a line cannot be trusted."""
        history = read_removal_log(self._fs, self._directory)
        for fault in history.faults:
            raise Corrupt(
                f"{self.path}: line {fault.line_number}: {fault.message}; `varve audit` on the "
                "directory lists all faults"
            )
        return list(history.entries)

    def _append_locked(self, tail: _Tail, document: dict[str, object]) -> None:
        document = {"version": VERSION, "id": tail.next_id, **document}
        line, chain = encode_line(document, tail.chain)
        # An object that did not sync the last line itself cannot know whether it is on disk: after
        # a failed sync it can be read and may still be lost. So the line is written once more.
        is_synced = self._tail is not None
        rewritten = b"" if is_synced else tail.last_line
        self._tail = None
        with self._fs.open_writable(self.path) as file:
            if file.size() > tail.end:
                file.truncate(tail.end)
            file.write_at(tail.end - len(rewritten), rewritten + line)
            file.sync()
        if not is_synced:
            self._fs.sync_directory(self._directory)
        self._tail = _Tail(tail.end + len(line), chain, tail.next_id + 1, line)

    def _drop_oldest_locked(self) -> None:
        """Drops the older half of the lines; a file with a fault is left whole for the audit."""
        data = self._fs.read(self.path)
        history = RemovalHistory.decode(data)
        end = len(data) - history.torn_bytes
        cut = data.rfind(b"\n", 0, max(end - self._max_bytes // 2, 1)) + 1
        count = data.count(b"\n", 0, cut)
        # If the removals still needed take more than half, the next drop waits until it doubles.
        self._drop_at_bytes = 2 * len(data)
        if history.faults or not count:
            return
        older = [entry for entry in history.entries if entry.line_number <= count]
        document = {
            "version": VERSION,
            "id": history.first_id + count - 1,
            "dropped": history.dropped + count - bool(history.dropped),
            "kept": [
                {"id": entry.removal.id, "is_done": entry.is_done, **encode_removal(entry.removal)}
                for entry in self._find_needed(older)
            ],
            "carried": history.chains[count - 1],
        }
        data = encode_line(document, FIRST_CHAIN)[0] + data[cut:end]
        try:
            write_atomically(self._fs, self.path, data)
        except OSError as error:
            if classify_error(error) is not DiskProblem.FULL:
                raise
            return
        self._tail = None
        self._drop_at_bytes = max(self._max_bytes, 2 * len(data))

    def _find_needed(self, entries: Sequence[RemovalEntry]) -> list[RemovalEntry]:
        """The removals whose outputs are on disk, and the last eviction."""
        on_disk = {
            (file.offset, info.size)
            for info in self._fs.scan(self._directory)
            if (file := parse_file_name(info.name)) is not None and file.kind == LOG
        }
        needed: dict[int, RemovalEntry] = {}  # by base offset of an output on disk
        last_eviction = None
        for entry in entries:
            inputs, outputs = entry.removal.inputs, entry.removal.outputs
            is_on_disk = all((output.base_offset, output.size) in on_disk for output in outputs)
            if entry.is_done or is_on_disk:
                for summary in inputs:
                    needed.pop(summary.base_offset, None)
            if is_on_disk:
                needed |= dict.fromkeys((output.base_offset for output in outputs), entry)
            if entry.removal.kind is RemovalKind.EVICTION:
                last_eviction = entry
        ids = {entry.removal.id for entry in (*needed.values(), last_eviction) if entry is not None}
        return [entry for entry in entries if entry.removal.id in ids]

    def _find_tail_locked(self) -> _Tail:
        if not self._fs.exists(self.path):
            self._tail = None
            return _EMPTY
        with self._fs.open(self.path) as file:
            if self._tail is None or self._tail.end != file.size():
                self._tail = None
                return _read_tail(file)
            return self._tail


class RemovalLogs:
    """The removal logs of a store: one object per open log, as all its writers must share it.

    Threads    any.
    """

    def __init__(self, store: LogManager) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._by_partition: dict[TopicPartition, tuple[Log, RemovalLog]] = {}  # guarded by _lock

    def get(self, log: Log) -> RemovalLog:
        """Raises Unavailable for a log that left the store."""
        partition = log.topic_partition
        directory = self._store.directory_of(partition)
        if directory is None or directory.logs.get(partition) is not log:
            raise Unavailable(f"{partition} is no longer in the store")
        with self._lock:
            cached = self._by_partition.get(partition)
            if cached is None or cached[0] is not log:
                removals = RemovalLog(self._store.fs, log.directory, removal_lock=log.removal_lock)
                cached = (log, removals)
                self._by_partition[partition] = cached
            return cached[1]

    def forget_others(self, served: Collection[TopicPartition]) -> None:
        """Drops the removal logs of partitions that are no longer served."""
        with self._lock:
            for partition in set(self._by_partition) - set(served):
                del self._by_partition[partition]


def read_removal_log(fs: FileSystem, directory: str) -> RemovalHistory:
    """The removals on record and the faults of the file; a missing file has neither."""
    path = f"{directory}/{REMOVAL_LOG_FILE}"
    return RemovalHistory.decode(fs.read(path) if fs.exists(path) else b"")


def encode_line(document: dict[str, object], previous_chain: str) -> tuple[bytes, str]:
    """A line and its chain: the hash of the previous chain and the line's other fields."""
    body = json.dumps(document, separators=(",", ":")).encode()
    chain = hashlib.sha256(previous_chain.encode() + body).hexdigest()
    return body[:-1] + f',"chain":"{chain}"}}\n'.encode(), chain


def check_chain(line: bytes, previous_chain: str) -> None:
    """Raises Corrupt unless the line is as it was written, right after the one before."""
    match = _CHAINED.fullmatch(line)
    if match is None:
        raise Corrupt("the line does not end with its chain: it was changed")
    chain = hashlib.sha256(previous_chain.encode() + match[1] + b"}").hexdigest()
    if chain != match[2].decode():
        raise Corrupt(
            f"the chain says {match[2].decode()[:12]}…, the lines give {chain[:12]}…: this line "
            "was changed, or the one before it was changed, moved or deleted"
        )


def _decode_line(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise Corrupt("the line is not JSON") from None
    if not isinstance(document, dict):
        raise Corrupt("the line is not a JSON object")
    if document.get("version") != VERSION:
        raise UnsupportedFormat(
            f"version {str(document.get('version'))[:40]} is not known, {VERSION} is"
        )
    return document


def _chain_after(line: bytes) -> str:
    """The chain that the next line continues: the one that this line states, correct or not.

    So a changed line is the only one reported; for a line without a chain its bytes are hashed.
    """
    match = _CARRIED.fullmatch(line)
    if match is not None:
        return match[1].decode()
    match = _CHAINED.fullmatch(line)
    return hashlib.sha256(line).hexdigest() if match is None else match[2].decode()


def _last_line(data: bytes) -> tuple[int, int]:
    """Where the last whole line begins and ends; (0, 0) without one.

    Every append is synced before the next, so only the last line can be torn: it lacks its end,
    or sectors of it, which read as zeros, and JSON never has a zero byte.
    """
    end = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    if end and b"\0" in data[start:end]:
        end = start
        start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    return start, end


def _read_tail(file: File) -> _Tail:
    """Reads the end of the file only."""
    size = file.size()
    length = _TAIL_BYTES
    while True:
        begin = max(0, size - length)
        data = file.read_at(begin, size - begin)
        start, end = _last_line(data)
        if start > 0 or begin == 0:
            break
        length *= 2
    if end == 0:
        return _EMPTY
    line = data[start:end]
    try:
        last_id = check_number(_decode_line(line).get("id"), "id")
    except Corrupt:
        history = RemovalHistory.decode(file.read_at(0, begin + end))
        last_id = history.first_id + len(history.chains) - 1
    return _Tail(begin + end, _chain_after(line), last_id + 1, line)
