"""The registry of outputs that jobs derive from topics, so that an erasure finds every copy.

Layout     `<cluster>/<topic>.<topic id>/output/<id>.json` in the object store of a tiered topic,
           `varve-outputs.json` in the log directory of one that is not, changed under the lock of
           `varve-outputs.lock`. docs/reference/formats/outputs.md
Invariant  an output is registered before its first record is written. No credential is stored. A
           location that was registered once stays until the output is removed from the registry.
           A row matches an erasure by its partition and offset, or by its key: a copy of a record
           that has left the log is found by its key.
Crash      no output exists without a registration. A registration without an output makes
           erasures fail until the job runs again, or `varve output forget` removes it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types
from pydantic import TypeAdapter

from varve.disk import (
    FileSystem,
    JsonDocument,
    RealFileSystem,
    hold_lock,
    to_store_error,
    write_atomically,
)
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, Locked, UnsupportedFormat
from varve.foundation.worker import StopSignal
from varve.jobs.results import JSON_NAME, JsonFields
from varve.jobs.source.options import SourceOptions
from varve.jobs.source.topic_source import PartitionSource, open_partitions
from varve.jobs.tier.bucket import find_cluster
from varve.object_store import ObjectStore

OUTPUTS_FILE: Final = "varve-outputs.json"
OUTPUTS_LOCK: Final = "varve-outputs.lock"
_FOLDER: Final = "output"
_DOCUMENT: Final = JsonDocument(version=1, max_bytes=64 << 20)
_LOCK_WAIT_MS: Final = 30_000

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class OutputKind(StrEnum):
    """The kind of an output."""

    SNAPSHOT = "snapshot"
    TABLE = "table"
    TOPIC = "topic"
    FILES = "files"
    CHECKPOINT = "checkpoint"
    """The checkpoint of a deduplication, which contains ids of records."""


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


_OUTPUTS: Final = TypeAdapter(list[DerivedOutput])


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
        self.objects.put(self._key(output), _encode_outputs([merged]))

    def find(self, topic: str, topic_id: str) -> list[DerivedOutput]:
        outputs = [
            output
            for entry in self.objects.list(self._folder(topic, topic_id))
            for output in _decode_outputs(bytes(self.objects.get(entry.key)), entry.key)
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
        return _decode_outputs(self.fs.read(self.path), self.path)

    def _write(self, outputs: Iterable[DerivedOutput]) -> None:
        write_atomically(self.fs, self.path, _encode_outputs(outputs))

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


def _merge_locations(output: DerivedOutput, registered: Iterable[DerivedOutput]) -> DerivedOutput:
    """Keeps the registered locations of the same output: files may remain there."""
    same = [other.locations for other in registered if other.id == output.id]
    return output.with_locations(location for locations in same for location in locations)


def _encode_outputs(outputs: Iterable[DerivedOutput]) -> bytes:
    documents = [{**asdict(output), "how": dict(output.how)} for output in outputs]
    return _DOCUMENT.encode({"outputs": documents})


def _decode_outputs(data: bytes, where: str) -> list[DerivedOutput]:
    try:
        entries = _DOCUMENT.decode(data, where)["outputs"]
        return _OUTPUTS.validate_python(
            [{**entry, "how": tuple(entry["how"].items())} for entry in entries]
        )
    except UnsupportedFormat:
        raise
    except (Corrupt, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{where}: cannot be read as a note of outputs ({error}): restore it from a copy; "
            "without it an erasure would miss a table or a snapshot"
        ) from error


def is_remote(sources: Sequence[PartitionSource]) -> bool:
    """Whether a topic is in the remote tier, by its opened partitions."""
    return any(source.manifest_version is not None for source in sources)


def open_output_registry(
    options: SourceOptions, sources: Sequence[PartitionSource]
) -> OutputRegistry:
    """Opens the registry of a topic: in the remote tier, or else in its log directory."""
    if options.address is not None and is_remote(sources):
        return RemoteOutputRegistry(options.address.objects(), find_cluster(options.address))
    return LocalOutputRegistry(options.directories[0])


def register_output(
    options: SourceOptions,
    sources: Sequence[PartitionSource],
    kind: OutputKind,
    *,
    place: str,
    name: str,
    noted_ms: int,
    how: Iterable[tuple[str, str]] = (),
    locations: Iterable[str] = (),
) -> None:
    """Registers an output of a topic; call it before the first record is written."""
    output = DerivedOutput(
        kind=kind,
        topic=sources[0].topic,
        topic_id=sources[0].topic_id,
        place=place,
        name=name,
        how=tuple(how),
        noted_ms=noted_ms,
        locations=tuple(locations),
    )
    open_output_registry(options, sources).note(output)


def register_files(options: SourceOptions, path: str, *, format: str, clock: Clock) -> None:
    """Registers files with a topic's records, which an erasure reports as out of reach.

    `path` is a URL or a local path.
    """
    place = path if ":" in path else os.path.abspath(path)
    now_ms = clock.now_ms()
    sources = open_partitions(options)
    register_output(options, sources, OutputKind.FILES, place=place, name=format, noted_ms=now_ms)


# Rows to erase


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """Selects the rows of one topic to erase.

    `keys` are exact keys, possibly millions. `offsets` are the sorted offsets of the matching
    records, by partition.
    """

    keys: frozenset[bytes]
    offsets: Mapping[int, Offsets]

    @property
    def is_empty(self) -> bool:
        return not self.keys and not any(len(offsets) for offsets in self.offsets.values())

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Mask:
        """Marks matching rows; without `keys`, by partition and offset. Null matches no key."""
        matches = self._find_offsets(_numbers(partitions), _numbers(offsets))
        return matches if keys is None else matches | self._find_keys(_column(keys))

    def find_single(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array) -> Mask:
        """Marks rows that match by offset but not by key: older records of the key may remain."""
        matches = self._find_offsets(_numbers(partitions), _numbers(offsets))
        return matches & ~self._find_keys(_column(keys))

    def _find_offsets(self, partitions: Offsets, offsets: Offsets) -> Mask:
        matches = np.zeros(len(offsets), np.bool_)
        for partition, selected in self.offsets.items():
            if not len(selected):
                continue
            rows = np.flatnonzero(partitions == partition)
            slots = np.searchsorted(selected, offsets[rows])
            slots[slots == len(selected)] = 0
            matches[rows] = selected[slots] == offsets[rows]
        return matches

    def _find_keys(self, keys: pa.Array) -> Mask:
        if not self.keys or not len(keys):
            return np.zeros(len(keys), np.bool_)
        if len(self.keys) <= len(keys):
            selected = pa.array(self.keys, pa.large_binary())
            matches = pc.is_in(keys.cast(pa.large_binary()), value_set=selected)
            mask: Mask = matches.to_numpy(zero_copy_only=False)
            return mask
        # Arrow would hash all keys again: for few rows, lookups in the Python set are cheaper.
        values = keys.cast(pa.large_binary()).to_pylist()
        return np.fromiter((key in self.keys for key in values), np.bool_, len(keys))


def _column(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _numbers(values: pa.Array | pa.ChunkedArray) -> Offsets:
    """Converts to 64-bit integers; null, which no record has, becomes -1."""
    numbers: Offsets = pc.fill_null(_column(values).cast(pa.int64()), -1).to_numpy()
    return numbers


@dataclass(frozen=True, slots=True)
class ErasedFile(JsonFields):
    """One file or object before or after the erasure; `sha256` in hex."""

    path: str
    size: int
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class ErasedOutput(JsonFields):
    """The erasure of one output.

    `rows` counts the erased rows. `files_before` are the files that contained them, `files_after`
    their replacements, `removed` the deleted paths. `versions` are the deleted object versions of
    removed files. `out_of_reach` are sentences that say what could not be reached, and why. If
    `is_there` is False, the output was not read, and one of these sentences says so.
    """

    output_id: str = field(metadata={JSON_NAME: "output"})
    rows: int
    files_before: tuple[ErasedFile, ...]
    files_after: tuple[ErasedFile, ...]
    removed: tuple[str, ...]
    out_of_reach: tuple[str, ...]
    is_there: bool = field(default=True, metadata={JSON_NAME: None})
    versions: tuple[Mapping[str, object], ...] = ()

    @classmethod
    def join(cls, parts: Sequence["ErasedOutput"]) -> "ErasedOutput":
        """Joins the erasures of the same output, one after another."""
        return cls(
            output_id=parts[0].output_id,
            rows=sum(part.rows for part in parts),
            files_before=tuple(file for part in parts for file in part.files_before),
            files_after=tuple(file for part in parts for file in part.files_after),
            removed=tuple(path for part in parts for path in part.removed),
            out_of_reach=tuple(
                dict.fromkeys(sentence for part in parts for sentence in part.out_of_reach)
            ),
            is_there=all(part.is_there for part in parts),
            versions=tuple(version for part in parts for version in part.versions),
        )
