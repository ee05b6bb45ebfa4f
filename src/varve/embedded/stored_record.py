"""Records of the public API: the forms that appends accept, and the type that reads return."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from varve.foundation.errors import InvalidRecord
from varve.records import Headers, Record

GivenBytes = bytes | bytearray | memoryview | str | None
"""A key or value: bytes, text that is stored as UTF-8, or nothing."""

GivenHeaders = Mapping[str, GivenBytes] | Iterable[tuple[str, GivenBytes]]

NO_TIMESTAMP = -1


@runtime_checkable
class RecordLike(Protocol):
    """An object with key, value, headers and timestamp: a `Record`, or one read from a topic."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def timestamp(self) -> int: ...


GivenRecord = (
    RecordLike
    | tuple[GivenBytes, GivenBytes]
    | tuple[GivenBytes, GivenBytes, GivenHeaders | None]
    | tuple[GivenBytes, GivenBytes, GivenHeaders | None, int | None]
)
"""A record to append: a `RecordLike`, or (key, value[, headers[, timestamp]])."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record read from a topic; the timestamp is in milliseconds since 1970, -1 for none."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """The partition, offset and stored timestamp of an appended record."""

    partition: int
    offset: int
    timestamp: int


def make_record(
    key: GivenBytes,
    value: GivenBytes,
    headers: GivenHeaders | None,
    timestamp: int | None,
    now_ms: int,
) -> Record:
    """Builds a record; without a timestamp it gets the current time."""
    if timestamp is None or timestamp == NO_TIMESTAMP:
        timestamp = now_ms
    elif not isinstance(timestamp, int) or isinstance(timestamp, bool):
        raise InvalidRecord(
            f"timestamp {timestamp!r} is a {type(timestamp).__name__}; "
            "give milliseconds since 1970 as an int"
        )
    return Record(
        key=to_bytes(key, "key"),
        value=to_bytes(value, "value"),
        headers=_to_headers(headers) if headers else (),
        timestamp=timestamp,
    )


def to_record(record: GivenRecord, now_ms: int) -> Record:
    """Converts any form that `append_many` accepts to a record."""
    if isinstance(record, tuple):
        if not 2 <= len(record) <= 4:
            raise InvalidRecord(
                f"a record of {len(record)} parts; give (key, value), (key, value, headers) or "
                "(key, value, headers, timestamp)"
            )
        headers = record[2] if len(record) > 2 else None
        timestamp = record[3] if len(record) > 3 else None
        return make_record(record[0], record[1], headers, timestamp, now_ms)
    if isinstance(
        record, (Record, StoredRecord, RecordLike)
    ):  # a Protocol check is slow: concrete types first
        return make_record(record.key, record.value, record.headers, record.timestamp, now_ms)
    raise InvalidRecord(
        f"a record cannot be made of a {type(record).__name__}; "
        "give a Record or a tuple (key, value[, headers[, timestamp]])"
    )


def to_bytes(data: GivenBytes, what: str) -> bytes | None:
    """Text as UTF-8, bytes as they are."""
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"{what} {data[:40]!r} cannot be stored as UTF-8") from error
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise InvalidRecord(
        f"{what} of type {type(data).__name__} cannot be stored; give bytes, str or None"
    )


def _to_headers(headers: GivenHeaders) -> Headers:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return tuple((name, to_bytes(value, f"header {name!r}")) for name, value in pairs)
    except (TypeError, ValueError) as error:
        raise InvalidRecord(
            f"headers {headers!r:.80} are not pairs of name and value: {error}"
        ) from error
