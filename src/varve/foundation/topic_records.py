"""Records of the public API: the forms that appends accept, and what appends and reads return.

`varve.open` and `varve.connect` share these types. The module imports no numeric libraries, so
that a client of a broker starts fast.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Protocol, TypeVar

from varve.foundation.errors import InvalidRecord, InvalidRequest, InvalidTimestamp, NotFound
from varve.foundation.settings import LONG_MAX

T = TypeVar("T")

RecordHeaders = tuple[tuple[str, bytes | None], ...]

GivenBytes = bytes | bytearray | memoryview | str | None
"""A key or value: bytes, text that is stored as UTF-8, or nothing."""

GivenBatch = bytes | bytearray | memoryview

GivenHeaders = Mapping[str, GivenBytes] | Iterable[tuple[str, GivenBytes]]

NO_TIMESTAMP = -1


class RecordLike(Protocol):
    """An object with key, value, headers and timestamp, such as a record read from a topic."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> RecordHeaders: ...
    @property
    def timestamp(self) -> int: ...


GivenTuple = tuple[GivenBytes, GivenBytes, GivenHeaders | None, int | None]
"""Key, value, headers and timestamp of a record to append."""

GivenRecord = (
    RecordLike
    | tuple[GivenBytes, GivenBytes]
    | tuple[GivenBytes, GivenBytes, GivenHeaders | None]
    | GivenTuple
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
    headers: RecordHeaders = ()


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The partition, offset and stored timestamp of an appended record."""

    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class BulkAppendResult:
    """The result of `append_many`; `end_offsets` has the offset after the last, by partition."""

    record_count: int
    end_offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The offsets of a partition: `log_start` is inclusive, the others are exclusive.

    Records before `local_start` are in the remote tier only. Clients of a cluster see neither that
    nor records past the high watermark: there it is the log start, and `end` the high watermark.
    """

    log_start: int
    local_start: int
    last_stable: int
    high_watermark: int
    end: int


def check_partition(topic: str, number: int | None, count: int) -> int:
    """The number of a partition; None is the only partition of a topic that has one."""
    if number is None:
        if count > 1:
            raise InvalidRequest(
                f"topic {topic} has {count} partitions, each with its own offsets; name one from "
                f"0 to {count - 1}"
            )
        return 0
    number = check_int(number, "partition")
    if not 0 <= number < count:
        raise NotFound(f"topic {topic} has no partition {number}; it has 0 to {count - 1}")
    return number


def check_int(number: int, what: str) -> int:
    """The number, such as an int or one of numpy; raises InvalidRequest for anything else."""
    try:
        found = None if isinstance(number, bool) else index(number)
    except TypeError:
        found = None
    if found is None:
        raise InvalidRequest(
            f"{what} {number!r:.80} is a {type(number).__name__}; give a whole number"
        )
    if not -LONG_MAX <= found <= LONG_MAX:
        raise InvalidRequest(f"{what} {found} does not fit into 64 bits")
    return found


def check_text(text: str, what: str) -> str:
    """The text; raises InvalidRequest for what is no text, is empty, or is not UTF-8."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} {text!r:.80} is a {type(text).__name__}; give a str")
    if not text:
        raise InvalidRequest(f"{what} is empty; give a name")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what} {text[:40]!r} is not UTF-8: {error.reason}") from error
    return text


def check_list(values: Iterable[T], *types: type, what: str) -> tuple[T, ...]:
    """The values; raises InvalidRequest for a text, and for values of other types.

    The characters of a text would pass for values. The error shows no value: keys to erase must
    not reach a log.
    """
    expected = " or ".join(type_.__name__ for type_ in types)
    kind = type(values).__name__
    if isinstance(values, str | bytes):
        raise InvalidRequest(f"{what} is a {kind}, not a list: write {what}=[...] also for one")
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{what} is a {kind}; give a list of {expected}")
    found = tuple(values)
    for position, value in enumerate(found):
        if not isinstance(value, types):
            raise InvalidRequest(
                f"{what}[{position}] is a {type(value).__name__}; give a list of {expected}"
            )
    return found


def list_topics(missing: str, names: Iterable[str]) -> str:
    """The end of the error of a missing topic: the nearest name, and the topics that exist."""
    known = sorted(names)
    nearest = difflib.get_close_matches(missing, known, n=1)
    meant = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{meant} (topics: {', '.join(known) or 'none':.400})"


def check_limit(limit: int | None) -> int | None:
    if limit is None:
        return None
    limit = check_int(limit, "limit")
    if limit < 0:
        raise InvalidRequest(f"limit {limit} is below 0")
    return limit


def check_isolation(isolation: str) -> None:
    if isolation not in ("read_uncommitted", "read_committed"):
        raise InvalidRequest(
            f"isolation {isolation!r} is unknown; use read_uncommitted or read_committed"
        )


def split_record(record: GivenRecord) -> GivenTuple:
    """Key, value, headers and timestamp of any form that `append_many` accepts."""
    if isinstance(record, tuple):
        if not 2 <= len(record) <= 4:
            raise InvalidRecord(
                f"a record of {len(record)} parts; give (key, value), (key, value, headers) or "
                "(key, value, headers, timestamp)"
            )
        headers = record[2] if len(record) > 2 else None
        timestamp = record[3] if len(record) > 3 else None
        return record[0], record[1], headers, timestamp
    try:
        return record.key, record.value, record.headers, record.timestamp
    except AttributeError:
        raise InvalidRecord(
            f"a record cannot be made of a {type(record).__name__}; "
            "give a NewRecord or a tuple (key, value[, headers[, timestamp]])"
        ) from None


def to_timestamp(timestamp: int | None, default: int) -> int:
    """The given time; the default for None and -1."""
    if timestamp is None or timestamp == NO_TIMESTAMP:
        return default
    if not isinstance(timestamp, int) or isinstance(timestamp, bool):
        raise InvalidRecord(
            f"timestamp {timestamp!r} is a {type(timestamp).__name__}; "
            "give milliseconds since 1970 as an int"
        )
    if not 0 <= timestamp <= LONG_MAX:
        raise InvalidTimestamp(f"timestamp {timestamp} is not from 0 to {LONG_MAX} ms since 1970")
    return timestamp


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


def to_headers(headers: GivenHeaders) -> RecordHeaders:
    """Pairs of name and bytes, in order."""
    try:
        pairs = headers.items() if isinstance(headers, Mapping) else tuple(headers)
        if any(isinstance(pair, str) for pair in pairs):
            raise TypeError("a text of two characters is no pair")
        named = [(name, to_bytes(value, f"header {name!r}")) for name, value in pairs]
    except (TypeError, ValueError) as error:
        raise InvalidRecord(
            f"headers {headers!r:.80} are not pairs of name and value: {error}"
        ) from error
    for name, _ in named:
        if not isinstance(name, str):
            raise InvalidRecord(f"header name {name!r:.80} is a {type(name).__name__}; give text")
        to_bytes(name, "header name")
    return tuple(named)
