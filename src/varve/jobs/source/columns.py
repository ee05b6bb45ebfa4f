"""The columns of a topic as Arrow has them: those that every read has, and those on request."""

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import InvalidRequest

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
STANDARD_COLUMNS: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
EXTRA_COLUMNS: Final[dict[str, pa.DataType]] = {
    "producerId": pa.int64(),
    "producerEpoch": pa.int32(),
    "sequence": pa.int32(),
    "leaderEpoch": pa.int32(),
    "isTransactional": pa.bool_(),
    "batchOffset": pa.int64(),
    "size": pa.int32(),
}
ALL_COLUMNS: Final = {**STANDARD_COLUMNS, **EXTRA_COLUMNS}


def check_column(name: str) -> None:
    """Raises InvalidRequest for a name that is not that of a column."""
    if name not in ALL_COLUMNS:
        raise InvalidRequest(f"there is no column {name!r:.80} (columns: {', '.join(ALL_COLUMNS)})")


def list_columns(extra: Sequence[str] = ()) -> list[str]:
    """The standard columns and those that are asked for."""
    for name in extra:
        check_column(name)
    return list(dict.fromkeys([*STANDARD_COLUMNS, *extra]))


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, ALL_COLUMNS[name]) for name in names])
