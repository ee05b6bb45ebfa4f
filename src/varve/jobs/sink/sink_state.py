"""Which epochs of which sinks are in the log: the record by which a commit is made once.

Layout     `varve-sinks.json` in the log directory: by sink id its topic, query, producer, the last
           epoch that is done, and the one that is running. docs/formats/sinks.md
Invariant  a producer epoch is on disk here before the first batch that carries it; the word
           `committing` is on disk only after all batches of its epoch are.
Crash      written aside and renamed.
"""

import errno
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Corrupt, DiskFull, InvalidRequest, Unavailable
from varve.jobs.sink.staging import RowSummary
from varve.records import Producer

SINKS_FILE: Final = "varve-sinks.json"
_FORMAT: Final = 1


class CommitPhase(StrEnum):
    """How far a commit has come; one that is done is no longer running."""

    PREPARED = "prepared"
    """Batches are being appended: after a crash they are aborted."""
    COMMITTING = "committing"
    """All are in the log: after a crash they are committed."""


@dataclass(frozen=True, slots=True)
class PendingEpoch:
    """A commit that was begun; `ends` are, by partition, the offsets behind its last records."""

    epoch: int
    state: CommitPhase
    summary: RowSummary
    partitions: tuple[int, ...]
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """One sink. `query` is the streaming query whose epochs these are, None for batch writes.

    A sink of one write alone (`is_once`) is forgotten when it is done.
    """

    id: str
    topic: str
    topic_id: str
    query: str | None
    is_once: bool
    producer_id: int
    producer_epoch: int
    epoch: int | None = None
    summary: RowSummary | None = None
    committed_ms: int | None = None
    running: PendingEpoch | None = None

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.producer_epoch)

    def with_phase(self, state: CommitPhase, ends: Sequence[int]) -> "SinkState":
        assert self.running is not None
        return replace(self, running=replace(self.running, state=state, ends=tuple(ends)))

    def done(self, now_ms: int) -> "SinkState":
        """The sink once its running epoch is committed."""
        assert self.running is not None
        return replace(
            self,
            epoch=self.running.epoch,
            summary=self.running.summary,
            committed_ms=now_ms,
            running=None,
        )


class SinkStateFile:
    """The file of the sinks of a store; who writes it holds the lock of the directory."""

    def __init__(self, fs: FileSystem, directories: Sequence[str]) -> None:
        self._fs = fs
        self.path = f"{_find_home(fs, directories)}/{SINKS_FILE}"

    def read(self) -> dict[str, SinkState]:
        """All sinks by their id."""
        try:
            data = self._fs.read(self.path)
        except FileNotFoundError:
            return {}
        return _decode(data, self.path)

    def put(self, sink: SinkState) -> None:
        self._write({**self.read(), sink.id: sink})

    def forget(self, sink_id: str) -> None:
        self._write({id: sink for id, sink in self.read().items() if id != sink_id})

    def _write(self, sinks: Mapping[str, SinkState]) -> None:
        try:
            write_atomically(self._fs, self.path, _encode(sinks))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"{self.path}: {error.strerror}; free some space") from error
            raise Unavailable(f"{self.path}: {error.strerror}; mend the disk") from error


def _find_home(fs: FileSystem, directories: Sequence[str]) -> str:
    """The directory that has the file, else the first."""
    found = [directory for directory in directories if fs.exists(f"{directory}/{SINKS_FILE}")]
    if len(found) > 1:
        raise InvalidRequest(
            f"{SINKS_FILE} lies in {' and '.join(found)}, and only one can tell which epochs are "
            "done: move away the one that does not belong to this store"
        )
    return found[0] if found else directories[0]


def _encode(sinks: Mapping[str, SinkState]) -> bytes:
    documents = {id: asdict(sink) for id, sink in sorted(sinks.items())}
    return (json.dumps({"format": _FORMAT, "sinks": documents}, indent=1) + "\n").encode()


def _decode(data: bytes, where: str) -> dict[str, SinkState]:
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']!r:.40}, this varve knows {_FORMAT}")
        return {id: _decode_sink(id, one) for id, one in document["sinks"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{where}: cannot be read as the ledger of sinks ({type(error).__name__}: "
            f"{error!s:.120}): put it back from a copy; without it an epoch may be written twice"
        ) from error


def _decode_sink(id: str, anies: dict[str, Any]) -> SinkState:
    if anies["id"] != id:
        raise ValueError(f"sink {id!r:.100} calls itself {anies['id']!r:.100}")
    running, summary = anies["running"], anies["summary"]
    query, epoch, committed_ms = anies["query"], anies["epoch"], anies["committed_ms"]
    return SinkState(
        id=id,
        topic=str(anies["topic"]),
        topic_id=str(anies["topic_id"]),
        query=None if query is None else str(query),
        is_once=bool(anies["is_once"]),
        producer_id=int(anies["producer_id"]),
        producer_epoch=int(anies["producer_epoch"]),
        epoch=None if epoch is None else int(epoch),
        summary=None if summary is None else RowSummary(**summary),
        committed_ms=None if committed_ms is None else int(committed_ms),
        running=None if running is None else _decode_running(running),
    )


def _decode_running(anies: dict[str, Any]) -> PendingEpoch:
    return PendingEpoch(
        epoch=int(anies["epoch"]),
        state=CommitPhase(anies["state"]),
        summary=RowSummary(**anies["summary"]),
        partitions=tuple(int(one) for one in anies["partitions"]),
        ends=tuple(int(one) for one in anies["ends"]),
    )
