"""The registry of outputs that were derived from topics, so that an erasure finds every copy.

Layout     `<cluster>/<topic>.<topic id>/output/<id>.json` in the object store of a tiered topic;
           `varve-outputs.json` in a log directory, changed under the lock of `varve-outputs.lock`;
           the topic `varve-outputs` for what a process derives through a server.
           docs/reference/formats/outputs.md
Invariant  an output is registered before its first record is written. No credential is stored. A
           location that was registered once stays until the output is removed from the registry.
Crash      no output exists without a registration. A registration without an output makes
           erasures fail, or is in their receipts, until `varve output forget` removes it.
"""

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

from varve.disk import (
    FileSystem,
    JsonDocument,
    RealFileSystem,
    hold_lock,
    to_store_error,
    write_atomically,
)
from varve.embedded import Store
from varve.foundation.errors import Corrupt, Locked, NotFound, UnsupportedFormat
from varve.foundation.worker import StopSignal
from varve.object_store import ObjectStore
from varve.records import Record, build_batch

if TYPE_CHECKING:
    from pydantic import TypeAdapter

OUTPUTS_FILE: Final = "varve-outputs.json"
OUTPUTS_LOCK: Final = "varve-outputs.lock"
_FOLDER: Final = "output"
_DOCUMENT: Final = JsonDocument(version=1, max_bytes=64 << 20)
_LOCK_WAIT_MS: Final = 30_000


class OutputKind(StrEnum):
    """The kind of an output."""

    SNAPSHOT = "snapshot"
    TABLE = "table"
    TOPIC = "topic"
    FILES = "files"
    CHECKPOINT = "checkpoint"
    """The checkpoint of a deduplication on Spark, which contains ids of records."""
    DIRECTORY = "directory"
    """A log directory that was restored from the remote tier."""
    SHAPES = "shapes"
    """The directory of a server of shapes: rows, logs and snapshots of each topic."""
    IDS = "ids"
    """The ids of a deduplication: its directory, and its changelog in the cluster of the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedOutput:
    """One copy of a topic's records.

    `place` is the URL of an object store, a path, or a topic; `name` identifies the output there,
    such as a table's identifier; `how` are the settings to open it, without credentials.
    `locations` are the current and former locations of its files that `place` and `name` do not
    determine.
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
        """Derived from the output alone, so that registering it again replaces the entry."""
        words = "\0".join((self.kind, self.topic_id, self.place, self.name))
        return f"{self.kind}-{sha256(words.encode()).hexdigest()[:32]}"

    def with_locations(self, locations: Iterable[str]) -> "DerivedOutput":
        """Returns the output with additional locations."""
        return replace(self, locations=tuple(sorted({*self.locations, *locations})))


@cache
def _parser() -> "TypeAdapter[list[DerivedOutput]]":
    # Imported here: most servers of shapes and deduplications start without it otherwise.
    from pydantic import TypeAdapter

    return TypeAdapter(list[DerivedOutput])


class OutputRegistry(Protocol):
    """Stores the outputs of topics."""

    def note(self, output: DerivedOutput) -> None: ...
    def find(self, topic: str, topic_id: str) -> list[DerivedOutput]: ...
    def forget(self, output: DerivedOutput) -> None: ...


@dataclass(frozen=True, slots=True)
class RemoteOutputRegistry:
    """The registry in the object store of a cluster, beside the partitions of each topic."""

    objects: ObjectStore
    cluster: str

    def note(self, output: DerivedOutput) -> None:
        merged = _merge_locations(output, self.find(output.topic, output.topic_id))
        self.objects.put(self._key(output), encode_outputs([merged]))

    def find(self, topic: str, topic_id: str) -> list[DerivedOutput]:
        outputs = [
            output
            for entry in self.objects.list(self._folder(topic, topic_id))
            for output in decode_outputs(bytes(self.objects.get(entry.key)), entry.key)
        ]
        return sorted(outputs, key=lambda output: output.id)

    def forget(self, output: DerivedOutput) -> None:
        self.objects.delete([self._key(output)])

    def _key(self, output: DerivedOutput) -> str:
        return f"{self._folder(output.topic, output.topic_id)}{output.id}.json"

    def _folder(self, topic: str, topic_id: str) -> str:
        return f"{self.cluster}/{topic}.{topic_id}/{_FOLDER}/"


@dataclass(frozen=True, slots=True)
class LocalOutputRegistry:
    """The registry in one file of a log directory; a lock file serializes changes."""

    directory: str
    fs: FileSystem = field(default_factory=RealFileSystem)
    stop: StopSignal | None = None

    @property
    def path(self) -> str:
        return f"{self.directory}/{OUTPUTS_FILE}"

    def note(self, output: DerivedOutput) -> None:
        with self._hold_lock():
            registered = self._read()
            others = [other for other in registered if other.id != output.id]
            self._write([*others, _merge_locations(output, registered)])

    def find(self, topic: str, topic_id: str) -> list[DerivedOutput]:
        with self._translate_errors():
            outputs = [
                output
                for output in self._read()
                if (output.topic, output.topic_id) == (topic, topic_id)
            ]
        return sorted(outputs, key=lambda output: output.id)

    def forget(self, output: DerivedOutput) -> None:
        with self._hold_lock():
            self._write(other for other in self._read() if other.id != output.id)

    def _read(self) -> list[DerivedOutput]:
        if not self.fs.exists(self.path):
            return []
        return decode_outputs(self.fs.read(self.path), self.path)

    def _write(self, outputs: Iterable[DerivedOutput]) -> None:
        write_atomically(self.fs, self.path, encode_outputs(outputs))

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Holds the lock of the file; raises Locked after waiting for _LOCK_WAIT_MS."""
        path = f"{self.directory}/{OUTPUTS_LOCK}"
        with self._translate_errors():
            try:
                lock = hold_lock(self.fs, path, wait_ms=_LOCK_WAIT_MS, stop=self.stop)
            except Locked as error:
                raise Locked(
                    f"{error}: another job holds it, and the output cannot be registered: run "
                    "again when that job is done"
                ) from error
            with lock:
                yield

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = "what jobs derive from a topic is registered first, or not created"
            raise to_store_error(error, what, path=self.path) from error


OUTPUTS_TOPIC: Final = "varve-outputs"
"""Has the outputs that were registered through a server, by id; a tombstone removes one."""
OUTPUTS_TOPIC_SETTINGS: Final = {"cleanup.policy": "compact"}
HERE: Final = ""
"""The place of a derived topic that is in the same cluster as its source."""


@dataclass(frozen=True, slots=True)
class TopicOutputRegistry:
    """The registry that processes write through a server, read in the store of that server."""

    store: Store

    def note(self, output: DerivedOutput) -> None:
        self._append(output.id.encode(), encode_outputs([output]), output.noted_ms)

    def find(self, topic: str, topic_id: str) -> list[DerivedOutput]:
        return sorted(
            (
                output
                for output in self._read().values()
                if (output.topic, output.topic_id) == (topic, topic_id)
            ),
            key=lambda output: output.id,
        )

    def forget(self, output: DerivedOutput) -> None:
        for key, other in self._read().items():
            if other.id == output.id:
                self._append(key, None, output.noted_ms)

    def _read(self) -> dict[bytes, DerivedOutput]:
        directory = self.store.directories[0].path
        outputs: dict[bytes, DerivedOutput] = {}
        try:
            partition = self.store.topic(OUTPUTS_TOPIC).partition(0)
        except NotFound:
            return {}
        for record in partition.read():
            key = record.key or b""
            outputs.pop(key, None)
            if record.value is not None:
                where = f"topic {OUTPUTS_TOPIC}, offset {record.offset}"
                for output in decode_outputs(record.value, where):
                    outputs[key] = replace(output, place=output.place or directory)
        return outputs

    def _append(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        topic = self.store.create_topic(
            OUTPUTS_TOPIC, partitions=1, settings=OUTPUTS_TOPIC_SETTINGS, exist_ok=True
        )
        partition = topic.partition(0)
        partition.append_batch(build_batch([Record(key, value, timestamp=now_ms)]))
        partition.flush()


def encode_registration(output: DerivedOutput) -> bytes:
    """The batch that registers an output in the topic."""
    record = Record(output.id.encode(), encode_outputs([output]), timestamp=output.noted_ms)
    return build_batch([record])


def on_this_machine(path: str) -> str:
    """The place of a path that is registered through a server, which may be on another machine."""
    return f"file://{socket.gethostname()}{path}"


def find_path(place: str) -> str | None:
    """The path of a place on this machine; None for one on another machine."""
    if place.startswith("/"):
        return place
    here = on_this_machine("")
    return place.removeprefix(here) if place.startswith(f"{here}/") else None


def _merge_locations(output: DerivedOutput, registered: Iterable[DerivedOutput]) -> DerivedOutput:
    """Keeps the registered locations of the same output: files may remain there."""
    same = [other.locations for other in registered if other.id == output.id]
    return output.with_locations(location for locations in same for location in locations)


def encode_outputs(outputs: Iterable[DerivedOutput]) -> bytes:
    documents = [{**asdict(output), "how": dict(output.how)} for output in outputs]
    return _DOCUMENT.encode({"outputs": documents})


def decode_outputs(data: bytes, where: str) -> list[DerivedOutput]:
    try:
        entries = _DOCUMENT.decode(data, where)["outputs"]
        return _parser().validate_python(
            [{**entry, "how": tuple(entry["how"].items())} for entry in entries]
        )
    except UnsupportedFormat:
        raise
    except (Corrupt, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{where}: cannot be read as a note of outputs ({error}): restore it from a copy; "
            "without it an erasure would miss a table or a snapshot"
        ) from error
