"""The options of a read, and the filters that Spark pushes down.

Invariant  a filter is applied only if it cannot exclude a row that Spark would keep. The server
           returns the URL of its remote tier, never credentials: the reader has its own.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, cast

from varve.foundation.errors import InvalidRequest, NotFound, StoreDenied, StoreError
from varve.foundation.settings import LONG_MAX
from varve.jobs.data_source_options import (
    OptionUse,
    option,
    parse_by_partition,
    parse_declared,
    parse_directories,
    parse_flag,
    parse_list,
    parse_moment,
    parse_positive,
    settings_option,
)
from varve.jobs.tier.bucket import Bucket
from varve.kafka_client.address import BOOTSTRAP, ClusterAddress, parse_cluster_address
from varve.kafka_client.client import open_client

SPLIT_BYTES: Final = 64 << 20
"""Starting a task takes about 50 ms, as long as reading 16 MiB: a quarter of this split."""


class Mode(StrEnum):
    """Which records of a key are rows."""

    HISTORY = "history"
    """All of them."""
    LATEST = "latest"
    """The last one of each key, without keys whose last record is a tombstone."""


class Isolation(StrEnum):
    """Which transactions a read returns."""

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


Offsets = int | Mapping[int, int] | None
"""One offset for all partitions, one for each, or None for the start or end of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """A read of one topic.

    Offsets are half-open. A time stands for the first offset of a record with that timestamp or a
    later one. Without `address`, the server returns the URL of its remote tier, which is opened
    with `tier_settings`.
    """

    topic: str = option("", "topic", str, "the topic; required")
    address: Bucket | None = option(
        None, "url", Bucket, "the object store of the remote tier", values="a URL"
    )
    tier_settings: tuple[tuple[str, str], ...] = settings_option(
        "store.", "a setting of the object store, such as `store.region`"
    )
    cluster: str | None = option(
        None, "cluster", str, "the cluster in the object store, where it holds several"
    )
    directories: tuple[str, ...] = option(
        (), "directory", parse_directories, "log directories, read after the remote tier or alone"
    )
    server: ClusterAddress | None = None
    is_through_server: bool = option(
        False, "throughServer", parse_flag, "the server reads its remote tier for the tasks"
    )
    mode: Mode = option(
        Mode.HISTORY,
        "mode",
        Mode,
        "all records, or the last one of each key without tombstones",
        use=OptionUse.BATCH,
    )
    isolation: Isolation = option(
        Isolation.COMMITTED, "isolation", Isolation, "which transactions are seen"
    )
    starting: Offsets = option(
        None, "startingOffset startingOffsets", parse_by_partition, "the first offset"
    )
    ending: Offsets = option(
        None,
        "endingOffset endingOffsets",
        parse_by_partition,
        "the offset after the last one",
        use=OptionUse.BATCH,
    )
    starting_ms: int | None = option(
        None,
        "startingTimestamp",
        parse_moment,
        "the first offset of a record of this time or later",
    )
    ending_ms: int | None = option(
        None,
        "endingTimestamp",
        parse_moment,
        "the offset of the first record of this time or later is the end",
        use=OptionUse.BATCH,
    )
    columns: tuple[str, ...] = option(
        (),
        "columns",
        parse_list,
        "columns beside the standard ones",
        values="Of `producerId`, `producerEpoch`, `sequence`, `leaderEpoch`, `isTransactional`, "
        "`batchOffset` and `size`, separated by commas",
    )
    split_bytes: int = option(
        SPLIT_BYTES, "splitBytes", parse_positive, "about how much one task reads"
    )
    plan_address: Bucket | None = option(
        None,
        "planUrl",
        Bucket,
        "where plans of latest-per-key reads of many records are put aside, for tasks to fetch; "
        "the object store of the remote tier by default",
        values="a URL",
        use=OptionUse.BATCH,
    )
    version: int | Mapping[int, int] | None = option(
        None,
        "version",
        parse_by_partition,
        "an older manifest of the remote tier, by number",
        values='A number, or JSON by partition: `{"0": 5}`',
        use=OptionUse.BATCH,
    )
    as_of_ms: int | None = option(
        None,
        "asOf",
        parse_moment,
        "an older manifest of the remote tier, by time",
        use=OptionUse.BATCH,
    )
    max_offsets_per_trigger: int | None = option(
        None,
        "maxOffsetsPerTrigger",
        parse_positive,
        "how many offsets a micro-batch reads at most",
        use=OptionUse.STREAM,
    )
    max_bytes_per_trigger: int | None = option(
        None,
        "maxBytesPerTrigger",
        parse_positive,
        "about how many bytes a micro-batch reads at most",
        use=OptionUse.STREAM,
    )
    fails_on_data_loss: bool = option(
        True,
        "failOnDataLoss",
        parse_flag,
        "`true`: a stream fails if records expired unread, or if the log ends before the "
        "checkpoint or holds another batch there; `false`: it logs a warning and continues with "
        "the records there are. A checkpoint of another topic is always refused",
        use=OptionUse.STREAM,
    )
    pushes_filters: bool = option(
        False,
        "pushFilters",
        parse_flag,
        "filters on partition, offset, timestamp and key narrow the read before it is planned. "
        "Spark refuses it unless `spark.sql.python.filterPushdown.enabled` is `true`, which "
        "`get_session` sets in a new session. "
        "Only for a frame that is used in one query: Spark reuses such a plan for later queries of "
        "the same frame, also for those without a filter",
        use=OptionUse.BATCH,
    )

    @property
    def is_committed(self) -> bool:
        return self.isolation is Isolation.COMMITTED

    @property
    def named_partitions(self) -> set[int]:
        """The partitions for which an offset or a version is given."""
        given = (self.starting, self.ending, self.version)
        return {number for table in given if isinstance(table, Mapping) for number in table}


def parse_options(options: Mapping[str, str], use: OptionUse = OptionUse.ALL) -> SourceOptions:
    """Parses the options of a read; names are case-insensitive.

    Raises InvalidRequest for an option of streams in a batch read, and the reverse.
    """
    by_name = {name.lower(): text for name, text in options.items()}
    read = SourceOptions(
        **parse_declared(SourceOptions, by_name, operation="read", use=use),
        server=parse_cluster_address(by_name, client_id="varve-spark"),
    )
    if read.address is not None:
        address = replace(read.address, settings=read.tier_settings, cluster=read.cluster)
        read = replace(read, address=address)
    if read.plan_address is not None:
        read = replace(read, plan_address=replace(read.plan_address, settings=read.tier_settings))
    _check_location(read)
    return read


def _check_location(options: SourceOptions) -> None:
    if options.address is None and not options.directories and options.server is None:
        raise InvalidRequest(
            f"say where the topic is: option url, or directory, or {BOOTSTRAP}, or url beside one "
            "of the others"
        )
    if not options.topic:
        raise InvalidRequest("option topic is missing: name the topic to read")
    if options.server is not None and options.directories:
        raise InvalidRequest(
            f"give {BOOTSTRAP} or directory, not both: the server reads its directory itself"
        )
    if options.is_through_server and (options.server is None or options.address is not None):
        raise InvalidRequest(
            f"option throughServer goes with {BOOTSTRAP} and without url: the server reads its "
            "remote tier for the tasks"
        )


_URL_SETTING: Final = "varve.tier.url"
_METADATA_SETTING: Final = "varve.tier.metadata"
_MANIFESTS_IN_STORE: Final = "object"


def learn_tier(options: SourceOptions) -> SourceOptions:
    """Adds the address of the server's remote tier, so that tasks read it themselves.

    A server without one, or with manifests outside the object store, serves the whole log.
    """
    if options.server is None or options.is_through_server:
        return options
    client = open_client(options.server)
    cluster = options.cluster or client.topic(options.topic).cluster_id
    if options.address is not None:
        return replace(options, address=replace(options.address, cluster=cluster))
    try:
        settings = client.broker_settings(_URL_SETTING, _METADATA_SETTING)
    except StoreDenied as error:
        raise StoreDenied(
            f"{error}: the URL of its remote tier requires DescribeConfigs on the cluster; grant "
            "it, give option url, or set throughServer=true"
        ) from error
    if (
        _URL_SETTING not in settings
        or settings.get(_METADATA_SETTING, _MANIFESTS_IN_STORE) != _MANIFESTS_IN_STORE
    ):
        return options
    address = Bucket(settings[_URL_SETTING], options.tier_settings, cluster)
    try:
        address.objects()
    except StoreError as error:
        raise type(error)(
            f"{error}. {options.server.name} has its remote tier at this URL: give the URL that "
            "works from here with option url, give credentials, or set throughServer=true"
        ) from error
    return replace(options, address=address)


def for_partition(offsets: int | Mapping[int, int] | None, partition: int) -> int | None:
    """The offset or version for a partition; None if none is set."""
    return offsets.get(partition) if isinstance(offsets, Mapping) else offsets


def check_partitions(topic: str, named: Iterable[int], numbers: Collection[int]) -> None:
    """Raises NotFound for a partition that a read names and the topic does not have."""
    unknown = sorted(set(named) - set(numbers))
    if unknown:
        listed = ", ".join(map(str, sorted(numbers)))
        raise NotFound(f"topic {topic} has no partition {unknown[0]} (partitions: {listed:.200})")


# Filters


@dataclass(frozen=True, slots=True)
class SourceFilters:
    """Bounds of a read: offsets half-open, timestamps inclusive; None for no restriction."""

    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = LONG_MAX
    min_ms: int = -LONG_MAX
    max_ms: int = LONG_MAX
    keys: frozenset[bytes] | None = None

    def is_of_keys(self, earlier: "SourceFilters") -> bool:
        """Whether these differ from earlier filters in partitions and keys only."""
        return self == replace(earlier, partitions=self.partitions, keys=self.keys)

    def take_values(self, name: str, values: Sequence[object]) -> "tuple[SourceFilters, bool]":
        """Narrows to rows with one of the values; also whether Spark need not filter again."""
        match name:
            case "partition":
                partitions = frozenset(value for value in values if isinstance(value, int))
                kept = partitions if self.partitions is None else partitions & self.partitions
                return replace(self, partitions=kept), True
            case "key" if all(isinstance(value, bytes | bytearray) for value in values):
                keys = frozenset(map(bytes, cast(Sequence[bytes], values)))
                kept_keys = keys if self.keys is None else keys & self.keys
                return replace(self, keys=kept_keys), False
            case "offset":
                offsets = [value for value in values if isinstance(value, int)]
                return self._take_span(name, offsets), len(offsets) == len(values) == 1
            case "timestamp" if all(isinstance(value, datetime) for value in values):
                return self._take_span(name, cast(Sequence[datetime], values)), False
            case _:
                return self, False

    def _take_span(self, name: str, values: Sequence[int] | Sequence[datetime]) -> "SourceFilters":
        """Narrows to the range from the lowest to the highest value."""
        if not values:
            return self
        return self.take_from(name, min(values))[0].take_up_to(name, max(values))[0]

    def take_from(
        self, name: str, low: object, *, is_included: bool = True
    ) -> "tuple[SourceFilters, bool]":
        """Narrows to rows from a value on; also whether Spark need not filter again."""
        if name == "offset" and isinstance(low, int):
            start_offset = low if is_included else low + 1
            return replace(self, start_offset=max(self.start_offset, start_offset)), True
        low_ms = _find_ms(low) if name == "timestamp" else None
        if low_ms is None:
            return self, False
        return replace(self, min_ms=max(self.min_ms, low_ms - 1)), False

    def take_up_to(
        self, name: str, high: object, *, is_included: bool = True
    ) -> "tuple[SourceFilters, bool]":
        """Narrows to rows up to a value; also whether Spark need not filter again."""
        if name == "offset" and isinstance(high, int):
            end_offset = high + 1 if is_included else high
            return replace(self, end_offset=min(self.end_offset, end_offset)), True
        high_ms = _find_ms(high) if name == "timestamp" else None
        if high_ms is None:
            return self, False
        return replace(self, max_ms=min(self.max_ms, high_ms + 1)), False


def _find_ms(moment: object) -> int | None:
    """Milliseconds since the epoch, rounded; None if not a datetime or out of range."""
    if not isinstance(moment, datetime):
        return None
    try:
        return round(moment.timestamp() * 1000)
    except (OverflowError, OSError, ValueError):
        return None
