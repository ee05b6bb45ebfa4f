"""What jobs made of a topic and where: so that an erasure finds every copy it must reach.

Layout     `<cluster>/<topic>.<topic id>/output/<id>.json` in the object store of a topic in the
           cold tier, `varve-outputs.json` in the log directory of one that is not, which is changed
           under the lock of `varve-outputs.lock`. docs/formats/outputs.md
Invariant  an output is noted before the first of its records is written. No credential is noted.
           A location that was noted once stays noted until the output is forgotten.
Crash      an output without a note does not come to be. A note without an output keeps erasures
           from their end until the job is run again, or `varve job outputs` forgets the note.
"""

import errno
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, Protocol

from varve.disk import FileSystem, Lock, RealFileSystem, write_atomically
from varve.foundation.errors import Corrupt, DiskFull, Locked, Unavailable
from varve.object_store import ObjectStore

OUTPUTS_FILE: Final = "varve-outputs.json"
OUTPUTS_LOCK: Final = "varve-outputs.lock"
_FOLDER: Final = "output"
_FORMAT: Final = 1
_LOCK_WAIT_MS: Final = 30_000
_PAUSE_MS: Final = 50

Wait = Callable[[float], object]


class OutputKind(StrEnum):
    """What was made of the topic."""

    SNAPSHOT = "snapshot"
    TABLE = "table"
    TOPIC = "topic"
    FILES = "files"
    CHECKPOINT = "checkpoint"
    """Of a deduplication: it holds the ids of records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One copy of a topic's records.

    `place` is a URL of an object store, a path, or a topic; `name` tells which thing there, such as
    a table's identifier; `how` what it takes to open it again, without credentials. `locations` are
    where its files are or ever were, as far as `place` and `name` do not tell.
    """

    kind: OutputKind
    topic: str
    topic_id: str
    place: str
    name: str
    how: tuple[tuple[str, str], ...] = ()
    noted_ms: int = 0
    locations: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The same for the same output, however often it is noted."""
        words = "\0".join((self.kind, self.topic_id, self.place, self.name))
        return f"{self.kind}-{sha256(words.encode()).hexdigest()[:32]}"

    def with_locations(self, more: Iterable[str]) -> "Output":
        """The same, with what is known of its locations from elsewhere."""
        return replace(self, locations=tuple(sorted({*self.locations, *more})))


class Outputs(Protocol):
    """Where outputs of topics are noted."""

    def note(self, output: Output) -> None: ...
    def find(self, topic: str, topic_id: str) -> list[Output]: ...
    def forget(self, output: Output) -> None: ...


@dataclass(frozen=True, slots=True)
class TierOutputs:
    """In the object store of a cluster, beside the partitions of each topic."""

    objects: ObjectStore
    cluster: str

    def note(self, output: Output) -> None:
        known = {one.id: one for one in self.find(output.topic, output.topic_id)}
        self.objects.put(self._key(output), _encode([_joined(output, known)]))

    def find(self, topic: str, topic_id: str) -> list[Output]:
        folder = f"{self.cluster}/{topic}.{topic_id}/{_FOLDER}/"
        found = [
            one
            for entry in self.objects.list(folder)
            for one in _decode(bytes(self.objects.get(entry.key)), entry.key)
        ]
        return sorted(found, key=lambda one: one.id)

    def forget(self, output: Output) -> None:
        self.objects.delete([self._key(output)])

    def _key(self, output: Output) -> str:
        topic = f"{output.topic}.{output.topic_id}"
        return f"{self.cluster}/{topic}/{_FOLDER}/{output.id}.json"


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


@dataclass(frozen=True, slots=True)
class DirectoryOutputs:
    """In one file of a log directory; those who note there take turns."""

    directory: str
    fs: FileSystem
    wait: Wait = _wait

    @classmethod
    def of(cls, directory: str) -> "DirectoryOutputs":
        return cls(directory, RealFileSystem())

    @property
    def path(self) -> str:
        return f"{self.directory}/{OUTPUTS_FILE}"

    def note(self, output: Output) -> None:
        with self._turn():
            known = {one.id: one for one in self._read()}
            self._write({**known, output.id: _joined(output, known)}.values())

    def find(self, topic: str, topic_id: str) -> list[Output]:
        wanted = (topic, topic_id)
        with self._told_errors():
            found = [one for one in self._read() if (one.topic, one.topic_id) == wanted]
        return sorted(found, key=lambda one: one.id)

    def forget(self, output: Output) -> None:
        with self._turn():
            self._write(one for one in self._read() if one.id != output.id)

    def _read(self) -> list[Output]:
        if not self.fs.exists(self.path):
            return []
        return _decode(self.fs.read(self.path), self.path)

    def _write(self, outputs: Iterable[Output]) -> None:
        write_atomically(self.fs, self.path, _encode(outputs))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """While nobody else changes the file; raises Locked after a time of waiting."""
        with self._told_errors(), self._lock():
            yield

    def _lock(self) -> Lock:
        path = f"{self.directory}/{OUTPUTS_LOCK}"
        waited_ms = 0
        while True:
            try:
                return self.fs.lock(path)
            except Locked as error:
                if waited_ms >= _LOCK_WAIT_MS:
                    raise Locked(
                        f"{path} was held by another job for {waited_ms} ms, so that nothing can "
                        "be noted beside it: run again when that one is done"
                    ) from error
            self.wait(_PAUSE_MS / 1000)
            waited_ms += _PAUSE_MS

    @contextmanager
    def _told_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            told = f"{error.filename or self.path}: {error.strerror or error}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"{told}; free some space") from error
            raise Unavailable(
                f"{told}: what jobs made of a topic is noted there, and nothing is made without a "
                "note. Mend the disk or its permissions"
            ) from error


def _joined(output: Output, known: Mapping[str, Output]) -> Output:
    """A note that is repeated keeps the locations of the one before: files may be left there."""
    before = known.get(output.id)
    return output if before is None else output.with_locations(before.locations)


def _encode(outputs: Iterable[Output]) -> bytes:
    documents = [{**asdict(one), "how": dict(one.how)} for one in outputs]
    return json.dumps({"format": _FORMAT, "outputs": documents}, indent=1).encode()


def _decode(data: bytes, where: str) -> list[Output]:
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}, this varve knows {_FORMAT}")
        return [_read_output(one) for one in document["outputs"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{where}: cannot be read as a note of outputs ({error}): put it back from a copy; "
            "without it an erasure would miss a table or a snapshot"
        ) from error


def _read_output(document: dict[str, Any]) -> Output:
    return Output(
        kind=OutputKind(document["kind"]),
        topic=str(document["topic"]),
        topic_id=str(document["topic_id"]),
        place=str(document["place"]),
        name=str(document["name"]),
        how=tuple((str(name), str(value)) for name, value in document["how"].items()),
        noted_ms=int(document["noted_ms"]),
        locations=tuple(str(one) for one in document.get("locations", ())),
    )
