"""What jobs derived from a topic and where it is, so that an erasure finds every copy.

Layout     `<cluster>/<topic>.<topic id>/output/<id>.json` in the object store of a tiered topic,
           `varve-outputs.json` in the log directory of one that is not, changed under the lock of
           `varve-outputs.lock`. docs/formats/outputs.md
Invariant  an output is registered before its first record is written. No credential is stored. A
           location that was registered once stays until the output is removed from the registry.
           A row matches an erasure by its partition and offset, or by its key: a copy of a record
           that has left the log is found by its key.
Crash      no output exists without a registration. A registration without an output makes
           erasures fail until the job runs again, or `varve job outputs` removes it.
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
    """What was made of the topic."""

    SNAPSHOT = "snapshot"
    TABLE = "table"
    TOPIC = "topic"
    FILES = "files"
    CHECKPOINT = "checkpoint"
    """Of a deduplication: it holds the ids of records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedOutput:
    """One copy of a topic's records.

    `place` is a URL of an object store, a path, or a topic; `name` is which thing there, such as
    a table's identifier; `how` what it takes to open it again, without credentials. `locations` are
    where its files are or ever were, as far as `place` and `name` do not say.
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

    def with_locations(self, more: Iterable[str]) -> "DerivedOutput":
        """The same, with what is known of its locations from elsewhere."""
        return replace(self, locations=tuple(sorted({*self.locations, *more})))


_OUTPUTS: Final = TypeAdapter(list[DerivedOutput])


class OutputRegistry(Protocol):
    """Where outputs of topics are noted."""

    def note(self, output: DerivedOutput) -> None: ...
    def find(self, topic: str, topic_id: str) -> list[DerivedOutput]: ...
    def forget(self, output: DerivedOutput) -> None: ...


@dataclass(frozen=True, slots=True)
class RemoteOutputRegistry:
    """In the object store of a cluster, beside the partitions of each topic."""

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
    """In one file of a log directory; those who note there take turns."""

    directory: str
    fs: FileSystem = field(default_factory=RealFileSystem)
    stop: StopSignal | None = None

    @property
    def path(self) -> str:
        return f"{self.directory}/{OUTPUTS_FILE}"

    def note(self, output: DerivedOutput) -> None:
        with self._hold_lock():
            known = self._read()
            others = [other for other in known if other.id != output.id]
            self._write([*others, _merge_locations(output, known)])

    def find(self, topic: str, topic_id: str) -> list[DerivedOutput]:
        wanted = (topic, topic_id)
        with self._translate_errors():
            outputs = [
                output for output in self._read() if (output.topic, output.topic_id) == wanted
            ]
        return sorted(outputs, key=lambda output: output.id)

    def forget(self, output: DerivedOutput) -> None:
        with self._hold_lock():
            self._write(known for known in self._read() if known.id != output.id)

    def _read(self) -> list[DerivedOutput]:
        if not self.fs.exists(self.path):
            return []
        return _decode_outputs(self.fs.read(self.path), self.path)

    def _write(self, outputs: Iterable[DerivedOutput]) -> None:
        write_atomically(self.fs, self.path, _encode_outputs(outputs))

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """While nobody else changes the file; raises Locked after a time of waiting."""
        path = f"{self.directory}/{OUTPUTS_LOCK}"
        with self._translate_errors():
            try:
                lock = hold_lock(self.fs, path, wait_ms=_LOCK_WAIT_MS, stop=self.stop)
            except Locked as error:
                raise Locked(
                    f"{error}: another job holds it, so that nothing can be noted beside it: run "
                    "again when that one is done"
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


def _merge_locations(output: DerivedOutput, known: Iterable[DerivedOutput]) -> DerivedOutput:
    """A note that is repeated keeps the locations of the one before: files may be left there."""
    same = [other.locations for other in known if other.id == output.id]
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
            f"{where}: cannot be read as a note of outputs ({error}): put it back from a copy; "
            "without it an erasure would miss a table or a snapshot"
        ) from error


def is_remote(sources: Sequence[PartitionSource]) -> bool:
    """Whether a topic is in the remote tier, as its partitions were opened."""
    return any(source.manifest_version is not None for source in sources)


def open_output_registry(
    options: SourceOptions, sources: Sequence[PartitionSource]
) -> OutputRegistry:
    """Where what is made of a topic is noted: in its cold tier, or else in its log directory."""
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
    """Notes an output of a topic; to be called before a record is written to it."""
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
    """Notes files of a topic's records, which an erasure names as out of its reach.

    `path` is a URL or a local path.
    """
    place = path if ":" in path else os.path.abspath(path)
    now_ms = clock.now_ms()
    sources = open_partitions(options)
    register_output(options, sources, OutputKind.FILES, place=place, name=format, noted_ms=now_ms)


# Rows to erase


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """What is to be erased of one topic.

    `keys` are exact keys, maybe millions. `offsets` are, by partition and sorted, those of every
    record that was found to be erased, by its key or by a field.
    """

    keys: frozenset[bytes]
    offsets: Mapping[int, Offsets]

    @property
    def is_empty(self) -> bool:
        return not self.keys and not any(len(offsets) for offsets in self.offsets.values())

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Mask:
        """Which rows match; without `keys` by partition and offset alone. A null key is none."""
        matches = self._find_offsets(_numbers(partitions), _numbers(offsets))
        return matches if keys is None else matches | self._find_keys(_column(keys))

    def find_single(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array) -> Mask:
        """Which rows match by their offset alone: the log may hold older records of their keys."""
        matches = self._find_offsets(_numbers(partitions), _numbers(offsets))
        return matches & ~self._find_keys(_column(keys))

    def _find_offsets(self, partitions: Offsets, offsets: Offsets) -> Mask:
        matches = np.zeros(len(offsets), np.bool_)
        for partition, wanted in self.offsets.items():
            if not len(wanted):
                continue
            rows = np.flatnonzero(partitions == partition)
            places = np.searchsorted(wanted, offsets[rows])
            places[places == len(wanted)] = 0
            matches[rows] = wanted[places] == offsets[rows]
        return matches

    def _find_keys(self, keys: pa.Array) -> Mask:
        if not self.keys or not len(keys):
            return np.zeros(len(keys), np.bool_)
        if len(self.keys) <= len(keys):
            wanted = pa.array(self.keys, pa.large_binary())
            matches = pc.is_in(keys.cast(pa.large_binary()), value_set=wanted)
            mask: Mask = matches.to_numpy(zero_copy_only=False)
            return mask
        # The set is there already: looking few rows up in it is cheaper than hashing it once more.
        values = keys.cast(pa.large_binary()).to_pylist()
        return np.fromiter((key in self.keys for key in values), np.bool_, len(keys))


def _column(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _numbers(values: pa.Array | pa.ChunkedArray) -> Offsets:
    """As 64-bit numbers; a null, which no record has, becomes -1."""
    numbers: Offsets = pc.fill_null(_column(values).cast(pa.int64()), -1).to_numpy()
    return numbers


@dataclass(frozen=True, slots=True)
class ErasedFile(JsonFields):
    """One file or object as it was, or is; `sha256` in hex."""

    path: str
    size: int
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class ErasedOutput(JsonFields):
    """What became of one output.

    `rows` went. `files_before` are those that held them, `files_after` those in their place,
    `removed` are gone for good. `out_of_reach` are sentences: what could not be reached, and why.
    One that is not there was not read, and such a sentence says so. `versions` went with the
    removed files, of which a bucket had kept them.
    """

    output_id: str = field(metadata={JSON_NAME: "output"})
    rows: int
    files_before: tuple[ErasedFile, ...]
    files_after: tuple[ErasedFile, ...]
    removed: tuple[str, ...]
    out_of_reach: tuple[str, ...]
    is_there: bool = field(default=True, metadata={JSON_NAME: None})
    versions: tuple[Mapping[str, object], ...] = ()
