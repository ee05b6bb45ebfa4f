"""Ids of records as columns: two words and a kind each, with the record's time and offset.

An id is the key, a header or a JSON field of the record. A field is read as by Spark's
`get_json_object`, so that this package and the Spark job find the same ids: a string gives its
characters, any other value its JSON text without blanks, with doubles as Java writes them. Null and
a missing field give no id.

Layout     in memory as `dedup.kernels.id_words` folds them: exact up to sixteen bytes, longer ones
           as their hash under the secret of the partition. In the changelog topic: the key is the
           sixteen bytes of the id, its kind, the time (i64) and a sequence number that is always 0
           (i32); the value is the offset of the kept record (i64). All big-endian except the id,
           which is bytes. The record's timestamp is the time. docs/reference/formats/dedup-ids.md
Invariant  a changelog entry adds one time to an id; entries may be applied in any order, and more
           than once. A value that is not JSON has no id, nor has a field whose bytes are not UTF-8;
           bytes after the JSON value are ignored. If a name occurs several times in one object, the
           first one that leads to a value counts.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from varve.dedup.kernels.id_words import LONG, Kinds, Words, find_headers, fold_cells
from varve.dedup.rules import IdKind, IdSource
from varve.foundation.errors import Corrupt
from varve.records import RecordColumns
from varve.records.columns import BinaryColumn, Bytes, frozen_bytes

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Secret = tuple[int, int]
"""Two random words of 64 bits, the hash key of one partition's ids."""


_KEY: Final = np.dtype([("words", "<u8", 2), ("kind", "u1"), ("time", ">i8"), ("seq", ">i4")])
_VALUE: Final = np.dtype(">i8")
_BLANKS: Final = " \t\n\r"
_POSITIONAL_MIN: Final = 1e-3
_POSITIONAL_MAX: Final = 1e7
"""Java's Double.toString writes no exponent from the minimum up to here."""


class _RepeatedNames(list[tuple[str, Any]]):
    """The names and values of an object in which a name occurs several times."""


class JsonField:
    """A path of names joined by dots, which finds the id in JSON values."""

    def __init__(self, path: str) -> None:
        self._names = tuple(path.split("."))
        self._quoted = tuple(f'"{name}"'.encode() for name in self._names)

    def find(self, data: bytes) -> bytes | None:
        """The id in a value, or None."""
        # Bytes that are not UTF-8 become surrogates, which the `encode` below refuses.
        text = data.decode(errors="surrogateescape").lstrip(_BLANKS)
        try:
            decoder = _PLAIN_DECODER if self._is_plain(data) else _DECODER
            member = _find_member(decoder.raw_decode(text)[0], self._names)
            if isinstance(member, dict | list) and decoder is _PLAIN_DECODER:
                member = _find_member(_DECODER.raw_decode(text)[0], self._names)
            if member is None:
                return None
            return (member if isinstance(member, str) else _to_json(member)).encode()
        except (ValueError, RecursionError):
            return None

    def _is_plain(self, data: bytes) -> bool:
        """Whether no name of the path is repeated: then the faster decoder is exact."""
        return b"\\" not in data and max(map(data.count, self._quoted)) < 2


def _find_member(value: Any, path: tuple[str, ...]) -> Any:
    for depth, name in enumerate(path):
        if isinstance(value, _RepeatedNames):
            members = (_find_member(item, path[depth + 1 :]) for key, item in value if key == name)
            return next((member for member in members if member is not None), None)
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _to_json(value: Any) -> str:
    """JSON text without blanks."""
    match value:
        case str():
            return encode_basestring(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _to_java_double(value)
        case _RepeatedNames():
            return "{" + ",".join(f"{encode_basestring(k)}:{_to_json(v)}" for k, v in value) + "}"
        case dict():
            pairs = (f"{encode_basestring(k)}:{_to_json(v)}" for k, v in value.items())
            return "{" + ",".join(pairs) + "}"
        case list():
            return "[" + ",".join(map(_to_json, value)) + "]"
        case _:
            raise AssertionError(f"JSON has no {type(value).__name__}")


def _to_java_double(value: float) -> str:
    """As Java writes it: with an exponent from ten million on and below a thousandth."""
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or _POSITIONAL_MIN <= abs(value) < _POSITIONAL_MAX:
        return repr(value)
    sign, digits, exponent = _split_double(value)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _split_double(value: float) -> tuple[str, str, int]:
    """Sign, shortest digits without zeros at either end, and the exponent of the first digit."""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading_zeros = len(whole + fraction) - len(digits)
    first_exponent = len(whole) - 1 - leading_zeros + int(exponent or 0)
    return "-" if value < 0 else "", digits.rstrip("0"), first_exponent


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _make_object(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    return members if len(members) == len(pairs) else _RepeatedNames(pairs)


_PLAIN_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, strict=False)
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_make_object, parse_constant=_refuse_constant, strict=False
)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Ids, times and offsets of records of one partition, in the order of their offsets.

    A record without a timestamp has a negative time, one without an id the kind NO_ID.
    """

    words: Words
    kinds: Kinds
    times: Numbers
    offsets: Numbers

    def __len__(self) -> int:
        return len(self.kinds)

    @classmethod
    def join(cls, parts: Sequence["Arrivals"]) -> Self:
        """The rows of all parts in order; no rows without parts."""
        return cls(
            np.concatenate([np.empty((0, 2), np.uint64), *(arrivals.words for arrivals in parts)]),
            np.concatenate([np.empty(0, np.uint8), *(arrivals.kinds for arrivals in parts)]),
            np.concatenate([np.empty(0, np.int64), *(arrivals.times for arrivals in parts)]),
            np.concatenate([np.empty(0, np.int64), *(arrivals.offsets for arrivals in parts)]),
        )

    def take(self, chosen: Numbers | Flags) -> "Arrivals":
        return Arrivals(
            self.words[chosen], self.kinds[chosen], self.times[chosen], self.offsets[chosen]
        )


def fold_chunk(parts: Iterable[RecordColumns], by: IdSource, secret: Secret) -> Arrivals:
    """The ids of all records of a chunk; raises Corrupt for headers that break their format."""
    folded = [_fold_columns(columns, by, secret) for columns in parts]
    return folded[0] if len(folded) == 1 else Arrivals.join(folded)


def _fold_columns(columns: RecordColumns, by: IdSource, secret: Secret) -> Arrivals:
    words, kinds = _fold(_find_ids(columns, by), secret)
    return Arrivals(words, kinds, columns.timestamps.copy(), columns.offsets.copy())


def fold_ids_of(ids: Sequence[bytes], secret: Secret) -> tuple[Words, Kinds]:
    """The words and kinds of ids."""
    return _fold(BinaryColumn.of(ids), secret)


def _fold(cells: "BinaryColumn | _KeyCells", secret: Secret) -> tuple[Words, Kinds]:
    count = len(cells.sizes)
    words = np.empty((count, 2), np.uint64)
    kinds = np.empty(count, np.uint8)
    k0, k1 = np.uint64(secret[0]), np.uint64(secret[1])
    fold_cells(cells.data, cells.starts, cells.sizes, k0, k1, words, kinds)
    return words, kinds


def _find_ids(columns: RecordColumns, by: IdSource) -> "BinaryColumn | _KeyCells":
    """The bytes of each record's id; null for a record without one."""
    match by.kind:
        case IdKind.KEY:
            return _KeyCells(columns.payload, columns.key_starts, columns.key_sizes)
        case IdKind.HEADER:
            return _find_headers(columns, frozen_bytes(by.name.encode()))
        case IdKind.FIELD:
            return _find_fields(columns, JsonField(by.name))


class _KeyCells(NamedTuple):
    """Record keys in the payload; their bytes are not copied."""

    data: Bytes
    starts: Numbers
    sizes: Numbers


def _find_fields(columns: RecordColumns, field: JsonField) -> BinaryColumn:
    payload = columns.payload.tobytes()
    spans = zip(columns.value_starts.tolist(), columns.value_sizes.tolist(), strict=True)
    return BinaryColumn.of(
        [None if size < 0 else field.find(payload[start : start + size]) for start, size in spans]
    )


def _find_headers(columns: RecordColumns, name: Bytes) -> BinaryColumn:
    starts = np.empty(len(columns), np.int64)
    sizes = np.empty(len(columns), np.int64)
    fault = find_headers(columns.payload, columns.table, name, starts, sizes)
    if fault >= 0:
        raise Corrupt(
            f"the headers of the record at offset {int(columns.offsets[fault])} break their format"
        )
    return BinaryColumn.at(columns.payload, starts=starts, sizes=sizes)


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """Keys, values and timestamps of changelog records."""

    keys: BinaryColumn
    values: BinaryColumn
    timestamps: Numbers

    def __len__(self) -> int:
        return len(self.timestamps)


def encode_entries(entries: Arrivals) -> EntryColumns:
    """One changelog record for each id and time."""
    keys = np.zeros(len(entries), _KEY)
    keys["words"], keys["kind"], keys["time"] = entries.words, entries.kinds, entries.times
    values = entries.offsets.astype(_VALUE)
    return EntryColumns(_encode_column(keys), _encode_column(values), entries.times)


def decode_entries(columns: RecordColumns, where: str) -> Arrivals:
    """The ids, times and offsets of changelog records; raises Corrupt for other records.

    `where` names topic and partition in errors.
    """
    key_rows = _decode_rows(columns.keys_column(), _KEY, columns, where, "key")
    value_rows = _decode_rows(columns.values_column(), _VALUE, columns, where, "value")
    times = key_rows["time"].astype(np.int64)
    offsets = value_rows.astype(np.int64)
    kinds = key_rows["kind"].copy()
    is_invalid = (kinds > LONG) | (times < 0) | (key_rows["seq"] != 0) | (offsets < 0)
    if is_invalid.any():
        row = int(is_invalid.argmax())
        fields = f"kind {int(kinds[row])}, time {int(times[row])}, offset {int(offsets[row])}"
        raise _not_an_entry(columns, row, where, fields)
    return Arrivals(key_rows["words"].astype(np.uint64), kinds, times, offsets)


def _not_an_entry(columns: RecordColumns, row: int, where: str, what: str) -> Corrupt:
    return Corrupt(
        f"{where}, offset {int(columns.offsets[row])}: the record is not a deduplication entry "
        f"({what}): another program writes to this topic; stop it, and start again with another "
        "--name"
    )


def _encode_column(rows: npt.NDArray[np.generic]) -> BinaryColumn:
    size = rows.dtype.itemsize
    starts = np.arange(len(rows), dtype=np.int64) * size
    sizes = np.full(len(rows), size, np.int64)
    return BinaryColumn.at(rows.tobytes(), starts=starts, sizes=sizes)


def _decode_rows(
    column: BinaryColumn,
    dtype: np.dtype[np.void] | np.dtype[np.int64],
    columns: RecordColumns,
    where: str,
    what: str,
) -> npt.NDArray[np.void]:
    invalid = np.flatnonzero(column.sizes != dtype.itemsize)
    if invalid.size:
        row = int(invalid[0])
        sizes = f"its {what} has {int(column.sizes[row])} bytes, not {dtype.itemsize}"
        raise _not_an_entry(columns, row, where, sizes)
    positions = column.starts[:, None] + np.arange(dtype.itemsize)
    rows: npt.NDArray[np.void] = column.data[positions].view(dtype)[:, 0]
    return rows
