"""What is to be erased of one topic, as the jobs that made copies of it are told; and what became
of a copy.

Invariant  a row matches by its partition and offset, or by its key: a copy that holds a row whose
           record has left the log since is found by the key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


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
        return not self.keys and not any(len(one) for one in self.offsets.values())

    def find(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array | None) -> Mask:
        """Which rows match; without `keys` by partition and offset alone. A null key is none."""
        found = self._find_offsets(_numbers(partitions), _numbers(offsets))
        if keys is None or not self.keys or not len(keys):
            return found
        mask: Mask = found | self._find_keys(_column(keys))
        return mask

    def find_single(self, partitions: pa.Array, offsets: pa.Array, keys: pa.Array) -> Mask:
        """Which rows match by their offset alone: the log may hold older records of their keys."""
        found = self._find_offsets(_numbers(partitions), _numbers(offsets))
        if not self.keys or not len(keys):
            return found
        mask: Mask = found & ~self._find_keys(_column(keys))
        return mask

    def _find_offsets(self, partitions: Offsets, offsets: Offsets) -> Mask:
        found = np.zeros(len(offsets), np.bool_)
        for partition, wanted in self.offsets.items():
            if not len(wanted):
                continue
            rows = np.flatnonzero(partitions == partition)
            places = np.searchsorted(wanted, offsets[rows])
            places[places == len(wanted)] = 0
            found[rows] = wanted[places] == offsets[rows]
        return found

    def _find_keys(self, keys: pa.Array) -> Mask:
        if len(self.keys) <= len(keys):
            wanted = pa.array(self.keys, pa.large_binary())
            matches = pc.is_in(keys.cast(pa.large_binary()), value_set=wanted)
            mask: Mask = matches.to_numpy(zero_copy_only=False)
            return mask
        # The set is there already: looking few rows up in it is cheaper than hashing it once more.
        return np.fromiter((one in self.keys for one in _values(keys)), np.bool_, len(keys))


def _column(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _numbers(values: pa.Array | pa.ChunkedArray) -> Offsets:
    """As 64-bit numbers; a null, which no record has, becomes -1."""
    numbers: Offsets = pc.fill_null(_column(values).cast(pa.int64()), -1).to_numpy()
    return numbers


def _values(keys: pa.Array) -> Iterator[bytes | None]:
    return iter(keys.cast(pa.large_binary()).to_pylist())


@dataclass(frozen=True, slots=True)
class ErasedFile:
    """One file or object as it was, or is; `sha256` in hex."""

    path: str
    size: int
    sha256: str
    rows: int

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ErasedOutput:
    """What became of one output.

    `rows` went. `files_before` are those that held them, `files_after` those in their place,
    `removed` are gone for good. `out_of_reach` are sentences: what could not be reached, and why.
    One that is not there was not looked into, and such a sentence says so. `versions` went with the
    removed files, of which a bucket had kept them.
    """

    output_id: str
    rows: int
    files_before: tuple[ErasedFile, ...]
    files_after: tuple[ErasedFile, ...]
    removed: tuple[str, ...]
    out_of_reach: tuple[str, ...]
    is_there: bool = True
    versions: tuple[Mapping[str, object], ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "output": self.output_id,
            "rows": self.rows,
            "files_before": [one.to_json() for one in self.files_before],
            "files_after": [one.to_json() for one in self.files_after],
            "removed": list(self.removed),
            "versions": list(self.versions),
            "out_of_reach": list(self.out_of_reach),
        }
