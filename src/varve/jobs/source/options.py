"""What a user asks of a read: options as text, and filters that Spark pushes down, as values.

Invariant  an option that is unknown, or of the wrong form, is refused with the ones there are. A
           filter is used only where it cannot leave out a row that Spark would keep.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeVar

from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import LONG_MAX
from varve.jobs.tier.bucket import Bucket
from varve.kafka_client.address import (
    BOOTSTRAP,
    SERVER_NAMES,
    ClusterAddress,
    parse_cluster_address,
)

T = TypeVar("T")

SPLIT_BYTES: Final = 64 << 20
"""A task costs some 50 ms before its first row, as long as reading 16 MiB takes."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_STORE_PREFIX: Final = "store."
_NAMES: Final = (
    "url",
    "topic",
    "cluster",
    "directory",
    "mode",
    "isolation",
    "startingOffset",
    "endingOffset",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "columns",
    "splitBytes",
    "version",
    "asOf",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "throughServer",
    "pushFilters",
)

_KAFKA_WORDS: Final = {-2: 0, -1: LONG_MAX}  # the beginning and the end


class Mode(StrEnum):
    """Which records of a key are rows."""

    HISTORY = "history"
    """All of them."""
    LATEST = "latest"
    """The last one of each key; keys whose last one is a tombstone have none."""


class Isolation(StrEnum):
    """Which transactions are seen."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


Offsets = int | Mapping[int, int] | None
"""One for all partitions, one for each, or None for the beginning or the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """A read of one topic.

    Offsets are half-open. A time stands for the first offset of a record of that time or later.
    `version` and `as_of_ms` name an older manifest. Without an address a server is asked for that
    of its cold tier, whose store is opened by `tier_settings`; with `is_through_server` all is read
    by way of the server.
    """

    topic: str
    address: Bucket | None = None
    directories: tuple[str, ...] = ()
    server: ClusterAddress | None = None
    is_through_server: bool = False
    tier_settings: tuple[tuple[str, str], ...] = ()
    cluster: str | None = None
    mode: Mode = Mode.HISTORY
    isolation: Isolation = Isolation.COMMITTED
    starting: Offsets = None
    ending: Offsets = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    columns: tuple[str, ...] = ()
    split_bytes: int = SPLIT_BYTES
    version: int | Mapping[int, int] | None = None
    as_of_ms: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    pushes_filters: bool = False
    fails_on_data_loss: bool = True

    @property
    def is_committed(self) -> bool:
        return self.isolation is Isolation.COMMITTED


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a read; names are the same in any case."""
    options = {name.lower(): text for name, text in given.items()}
    known = {*map(str.lower, _NAMES), *SERVER_NAMES}
    for name in options:
        if name not in known and not name.startswith(_STORE_PREFIX):
            raise InvalidRequest(
                f"there is no option {name!r:.80} (options: {', '.join(_NAMES)}, "
                f"{_STORE_PREFIX}NAME for the object store, and for a server "
                f"{', '.join(SERVER_NAMES)})"
            )
    directories = tuple(word for word in _words(options.get("directory", "")) if word)
    address = _make_address(options)
    server = parse_cluster_address(options, client_id="varve-spark")
    is_through_server = _read(options, "throughServer", _parse_flag, False)
    if address is None and not directories and server is None:
        raise InvalidRequest(
            f"say where the topic is: option url, or directory, or {BOOTSTRAP}, or url beside one "
            "of the others"
        )
    _check_server(server, directories, address, is_through_server=is_through_server)
    return SourceOptions(
        topic=_require(options, "topic"),
        address=address,
        directories=directories,
        server=server,
        is_through_server=is_through_server,
        tier_settings=_store_settings(options),
        cluster=options.get("cluster"),
        mode=_read(options, "mode", Mode, Mode.HISTORY),
        isolation=_read(options, "isolation", Isolation, Isolation.COMMITTED),
        starting=_read_offsets(options, "starting"),
        ending=_read_offsets(options, "ending"),
        starting_ms=_read(options, "startingTimestamp", _parse_moment, None),
        ending_ms=_read(options, "endingTimestamp", _parse_moment, None),
        columns=tuple(_words(options.get("columns", ""))),
        split_bytes=_read(options, "splitBytes", _parse_positive, SPLIT_BYTES),
        version=_read(options, "version", _parse_by_partition, None),
        as_of_ms=_read(options, "asOf", _parse_moment, None),
        max_offsets_per_trigger=_read(options, "maxOffsetsPerTrigger", _parse_positive, None),
        max_bytes_per_trigger=_read(options, "maxBytesPerTrigger", _parse_positive, None),
        pushes_filters=_read(options, "pushFilters", _parse_flag, False),
        fails_on_data_loss=_read(options, "failOnDataLoss", _parse_flag, True),
    )


def for_partition(offsets: int | Mapping[int, int] | None, partition: int) -> int | None:
    """What holds for a partition; None where nothing is said of it."""
    return offsets.get(partition) if isinstance(offsets, Mapping) else offsets


def _make_address(options: Mapping[str, str]) -> Bucket | None:
    if "url" not in options:
        return None
    return Bucket(options["url"], _store_settings(options), options.get("cluster"))


def _store_settings(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    settings = {
        name.removeprefix(_STORE_PREFIX): text
        for name, text in options.items()
        if name.startswith(_STORE_PREFIX)
    }
    return tuple(sorted(settings.items()))


def _check_server(
    server: ClusterAddress | None,
    directories: tuple[str, ...],
    address: Bucket | None,
    *,
    is_through_server: bool,
) -> None:
    if server is not None and directories:
        raise InvalidRequest(
            f"give {BOOTSTRAP} or directory, not both: a server tells all that its directory holds"
        )
    if is_through_server and (server is None or address is not None):
        raise InvalidRequest(
            f"option throughServer goes with {BOOTSTRAP} and without url: it has the server read "
            "its cold tier too"
        )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _require(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise InvalidRequest(f"option {name} is missing")
    return options[name]


def _read(options: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidRequest(f"option {name}={text!r:.200} cannot be used: {error}") from error


def _read_offsets(options: Mapping[str, str], side: str) -> Offsets:
    one = _read(options, f"{side}Offset", _parse_by_partition, None)
    several = _read(options, f"{side}Offsets", _parse_by_partition, None)
    if one is not None and several is not None:
        raise InvalidRequest(f"give {side}Offset or {side}Offsets, not both")
    return one if several is None else several


def _parse_by_partition(text: str) -> int | Mapping[int, int] | None:
    """A number, a word for the beginning or the end, or JSON: {"0": 5} or {"topic": {"0": 5}}."""
    words = {EARLIEST: 0, LATEST: LONG_MAX}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    if not text.strip().startswith("{"):
        return int(text)
    table = json.loads(text)
    if len(table) == 1 and isinstance(next(iter(table.values())), dict):
        (table,) = table.values()
    found: dict[int, int] = {}
    for partition, offset in table.items():
        if not isinstance(offset, int):
            raise ValueError(f"{offset!r:.40} of partition {partition} is no integer")
        found[int(partition)] = _KAFKA_WORDS.get(offset, offset)
    return found


def _parse_flag(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.strip().lower() not in words:
        raise ValueError("write true or false")
    return words[text.strip().lower()]


def _parse_positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("it must be at least 1")
    return value


def _parse_moment(text: str) -> int:
    """Milliseconds since 1970, or a time as ISO 8601 writes it, UTC unless it says otherwise."""
    if text.strip().lstrip("-").isdigit():
        return int(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


# Filters


@dataclass(frozen=True, slots=True)
class SourceFilters:
    """Bounds of what is wanted; offsets half-open, times inclusive, None for all there are."""

    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = LONG_MAX
    min_ms: int = -LONG_MAX
    max_ms: int = LONG_MAX
    keys: frozenset[bytes] | None = None

    def is_of_keys(self, before: "SourceFilters") -> bool:
        """Whether these differ from former ones by partitions and keys alone."""
        return self == replace(before, partitions=self.partitions, keys=self.keys)

    def take_values(self, name: str, values: Sequence[object]) -> "tuple[SourceFilters, bool]":
        """Narrowed to rows with one of the values, and whether Spark need not look again."""
        match name:
            case "partition":
                wanted = frozenset(value for value in values if isinstance(value, int))
                kept = wanted if self.partitions is None else wanted & self.partitions
                return replace(self, partitions=kept), True
            case "key":
                if not all(isinstance(value, bytes | bytearray) for value in values):
                    return self, False
                keys = frozenset(
                    bytes(value) for value in values if isinstance(value, bytes | bytearray)
                )
                kept_keys = keys if self.keys is None else keys & self.keys
                return replace(self, keys=kept_keys), False
            case "offset":
                numbers = [value for value in values if isinstance(value, int)]
                if not numbers:
                    return self, False
                narrowed, _ = self.take_range("offset", at_least=min(numbers))
                narrowed, _ = narrowed.take_range("offset", at_most=max(numbers))
                return narrowed, len(set(numbers)) == 1 and len(values) == 1
            case "timestamp":
                moments = [value for value in values if isinstance(value, datetime)]
                if not moments or len(moments) != len(values):
                    return self, False
                narrowed, _ = self.take_range("timestamp", at_least=min(moments))
                return narrowed.take_range("timestamp", at_most=max(moments))
            case _:
                return self, False

    def take_range(
        self,
        name: str,
        *,
        at_least: object = None,
        above: object = None,
        at_most: object = None,
        below: object = None,
    ) -> "tuple[SourceFilters, bool]":
        """Narrowed to rows within bounds, and whether Spark need not look again."""
        low = at_least if above is None else above
        high = at_most if below is None else below
        if name == "offset":
            start, end = self.start_offset, self.end_offset
            if isinstance(low, int):
                start = max(start, low + (above is not None))
            if isinstance(high, int):
                end = min(end, high + (below is None))
            is_exact = isinstance(low, int) or isinstance(high, int)
            return replace(self, start_offset=start, end_offset=end), is_exact
        if name == "timestamp":
            min_ms, max_ms = self.min_ms, self.max_ms
            low_ms, high_ms = _find_ms(low), _find_ms(high)
            if low_ms is not None:
                min_ms = max(min_ms, low_ms - 1)
            if high_ms is not None:
                max_ms = min(max_ms, high_ms + 1)
            return replace(self, min_ms=min_ms, max_ms=max_ms), False
        return self, False


def _find_ms(moment: object) -> int | None:
    """Milliseconds of a moment, rounded; None for what is none or lies too far away."""
    if not isinstance(moment, datetime):
        return None
    try:
        return round(moment.timestamp() * 1000)
    except (OverflowError, OSError, ValueError):
        return None
