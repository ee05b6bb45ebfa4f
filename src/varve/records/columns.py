"""Columns to build batches from: keys, values and headers without an object per record.

Layout     a column is bytes plus the start and the size of each cell; size -1 is null.
Threads    columns are immutable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from varve.foundation.errors import InvalidRecord, InvalidRequest
from varve.kernels.batch_build import BuildStatus, encode_headers
from varve.kernels.batch_layout import INT32_MAX
from varve.kernels.record_columns import join_byte_strings

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# The largest size of a header's two lengths as varints, 5 bytes each.
_HEADER_OVERHEAD = 10


def frozen_bytes(data: Bytes | bytes | bytearray | memoryview) -> Bytes:
    """`data` as a read-only byte array: kernels are compiled once, for those only."""
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return _frozen(array, np.uint8)


def frozen_integers(values: npt.ArrayLike) -> Integers:
    """`values` as a read-only array of int64; rejects values that are not integers."""
    return _frozen(np.asarray(values), np.int64)


def plain_integers(values: npt.ArrayLike) -> Integers:
    """`values` as a contiguous array of int64, not necessarily read-only."""
    return _plain(np.asarray(values), np.int64)


def _plain(array: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    if array.dtype == dtype and array.ndim == 1 and array.flags.c_contiguous:
        return array
    if array.ndim != 1 or not np.can_cast(array.dtype, dtype):
        raise InvalidRequest(
            f"a column of shape {array.shape} and type {array.dtype} cannot be used as one of"
            f" {np.dtype(dtype).name}"
        )
    return np.ascontiguousarray(array, dtype)


def _frozen(array: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    plain = _plain(array, dtype)
    if not plain.flags.writeable:
        return plain
    view = plain.view()
    view.flags.writeable = False
    return view


class BinaryColumn:
    """Byte strings and nulls as three arrays."""

    __slots__ = ("data", "sizes", "starts")

    data: Bytes
    starts: Integers
    sizes: Integers

    def __init__(
        self,
        data: Bytes | bytes | bytearray | memoryview,
        offsets: npt.ArrayLike,
        valid: Flags | None = None,
    ) -> None:
        """Cell i is `data[offsets[i]:offsets[i + 1]]`, or null where `valid[i]` is false."""
        edges = frozen_integers(offsets)
        if len(edges) == 0:
            raise InvalidRequest("a column of n cells needs n + 1 offsets, there are none")
        sizes = edges[1:] - edges[:-1]
        if len(sizes) and sizes.min() < 0:
            raise InvalidRequest(f"offsets descend at cell {int(sizes.argmin())} of the column")
        if valid is not None:
            if len(valid) != len(sizes):
                raise InvalidRequest(f"{len(valid)} validity flags for {len(sizes)} cells")
            sizes[~np.asarray(valid, np.bool_)] = -1
        self.data = frozen_bytes(data)
        self.starts = edges[:-1]
        self.sizes = frozen_integers(sizes)

    @classmethod
    def at(
        cls,
        data: Bytes | bytes | bytearray | memoryview,
        *,
        starts: npt.ArrayLike,
        sizes: npt.ArrayLike,
    ) -> Self:
        """Cells that lie anywhere in `data`, such as those of a parsed batch; size -1 is null."""
        column = cls.__new__(cls)
        column.data = frozen_bytes(data)
        column.starts = frozen_integers(starts)
        column.sizes = frozen_integers(sizes)
        if len(column.starts) != len(column.sizes):
            raise InvalidRequest(f"{len(column.starts)} starts for {len(column.sizes)} sizes")
        return column

    @classmethod
    def of(cls, cells: Sequence[bytes | None]) -> Self:
        """A column of byte strings; None is null."""
        listed = cells if type(cells) is list else list(cells)
        fault, data, starts, sizes = join_byte_strings(listed)
        if fault >= 0:
            kind = type(listed[fault]).__name__
            raise InvalidRequest(
                f"cell {fault} is of type {kind}: only bytes and None can be cells"
            )
        for array in (data, starts, sizes):
            array.setflags(write=False)
        column = cls.__new__(cls)
        column.data = data
        column.starts = starts
        column.sizes = sizes
        return column

    def __len__(self) -> int:
        return len(self.sizes)


NO_BYTES = frozen_bytes(b"")
NO_INTEGERS = frozen_integers(np.empty(0, np.int64))
NO_CELLS = BinaryColumn.at(NO_BYTES, starts=NO_INTEGERS, sizes=NO_INTEGERS)


@dataclass(frozen=True, slots=True)
class EncodedHeaders:
    """The headers of each record as the bytes after its header count."""

    cells: BinaryColumn
    counts: Integers

    def __len__(self) -> int:
        return len(self.counts)


NO_HEADERS = EncodedHeaders(NO_CELLS, NO_INTEGERS)


class HeaderColumns:
    """The headers of all records, concatenated; those of record i end before `ends[i]`."""

    __slots__ = ("ends", "keys", "values")

    def __init__(self, ends: npt.ArrayLike, keys: BinaryColumn, values: BinaryColumn) -> None:
        self.ends = frozen_integers(ends)
        self.keys = keys
        self.values = values
        count = int(self.ends[-1]) if len(self.ends) else 0
        if len(keys) != count or len(values) != count:
            raise InvalidRequest(f"{len(keys)} keys and {len(values)} values for {count} headers")

    @classmethod
    def of(cls, headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Self:
        """Columns of each record's headers; raises `InvalidRecord` for a key that is not UTF-8."""
        ends = np.cumsum(np.fromiter(map(len, headers), np.int64, len(headers)))
        keys = [_encode_key(key, index) for index, row in enumerate(headers) for key, _ in row]
        values = [value for row in headers for _, value in row]
        return cls(ends, BinaryColumn.of(keys), BinaryColumn.of(values))

    def __len__(self) -> int:
        return len(self.ends)

    def encode(self) -> EncodedHeaders:
        keys, values = self.keys, self.values
        content = int(np.maximum(keys.sizes, 0).sum() + np.maximum(values.sizes, 0).sum())
        room = content + _HEADER_OVERHEAD * len(keys)
        if not 0 <= room <= INT32_MAX:
            raise InvalidRecord(f"headers of {room} bytes, at most {INT32_MAX} can be encoded")
        out = np.empty(room, np.uint8)
        starts = np.empty(len(self), np.int64)
        sizes = np.empty(len(self), np.int64)
        status, record = encode_headers(
            self.ends,
            keys.data,
            keys.starts,
            keys.sizes,
            values.data,
            values.starts,
            values.sizes,
            out,
            starts,
            sizes,
        )
        if status != BuildStatus.OK:
            raise InvalidRecord(
                f"headers of record {record}: a key is null, a cell lies outside its column, or the"
                " ends do not ascend"
            )
        counts = np.diff(self.ends, prepend=np.int64(0))
        return EncodedHeaders(
            BinaryColumn.at(out, starts=starts, sizes=sizes), frozen_integers(counts)
        )


def _encode_key(key: str, index: int) -> bytes:
    if not isinstance(key, str):
        raise InvalidRecord(
            f"record {index} has a header key of type {type(key).__name__}, not text"
        )
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"record {index} has a non-UTF-8 header key: {error}") from error
