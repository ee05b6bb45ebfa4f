"""Registers what jobs derive from topics, and describes which rows of it an erasure removes.

Invariant  an output is registered before its first record is written (`varve.topics.outputs`). A
           row matches an erasure by its partition and offset, or by its key: a copy of a record
           that has left the log is found by its key.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

from varve.foundation.clock import Clock
from varve.jobs.results import JSON_NAME, JsonFields
from varve.jobs.source.options import SourceOptions
from varve.jobs.source.topic_source import PartitionSource, open_partitions
from varve.jobs.tier.bucket import find_cluster
from varve.topics.outputs import (
    DerivedOutput,
    LocalOutputRegistry,
    OutputKind,
    OutputRegistry,
    RemoteOutputRegistry,
)

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


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
