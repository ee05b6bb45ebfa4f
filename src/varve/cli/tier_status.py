"""`varve tier status`: what lies on the local disk and in object storage, per topic.

Invariant  reads only. A topic that is not in the cold tier costs no request, and a store that is
           down is asked once: the local side is shown whatever it says.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from varve.cli.moments import show_moment
from varve.cli.screen import make_console, print_rows_with_details
from varve.cli.store_access import (
    Directory,
    Wanted,
    find_topic,
    open_existing,
    parse_wanted,
    tell_deleting,
)
from varve.cli.tier_access import StoreSettings, TierUrl, show_cost, tier_settings
from varve.commit_log import TopicPartition
from varve.disk import RealFileSystem
from varve.embedded.tier_location import read_location
from varve.foundation.clock import SystemClock
from varve.foundation.errors import StoreError, StoreUnavailable
from varve.foundation.units import format_bytes
from varve.object_store import MirroredObjectStore, PriceTable, default_prices
from varve.tiering.tier_status import TierStatus, observe_local

if TYPE_CHECKING:
    from varve.embedded import Store

_COLUMNS: Final = ("topic", "tier", "hot", "cold", "lag", "stored", "per month")


@dataclass(frozen=True, slots=True)
class _PartitionStatus:
    status: TierStatus
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _TopicStatus:
    """The partitions of one topic; what some could not tell is missing from the sums."""

    name: str
    parts: Sequence[_PartitionStatus]

    @property
    def is_enabled(self) -> bool:
        return self.parts[0].status.is_enabled

    @property
    def tier(self) -> str:
        if not self.is_enabled:
            return "no"
        return "copying" if self.parts[0].status.is_copying else "copying is off"

    @property
    def errors(self) -> dict[str, str]:
        return {
            str(status.status.partition): status.error
            for status in self.parts
            if status.error is not None
        }

    def sum(self, name: str) -> int | None:
        """A figure over all partitions; None where no partition has it."""
        values = [getattr(status.status, name) for status in self.parts]
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    def oldest(self, name: str) -> int | None:
        values = [getattr(status.status, name) for status in self.parts]
        return min((value for value in values if value is not None), default=None)


def command(
    directory: Directory,
    wanted: Wanted = None,
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per topic.")] = False,
) -> None:
    """Show per topic what is hot, what is cold, and what waits to be copied.

    Hot is what the local disk holds, cold what can be read in the store; both count bytes of data
    files, and what is in both counts in both. Stored are all bytes of objects that manifests name,
    the basis of the cost per month by the declared list prices of the store. Lag is what is closed
    but not copied. Topics outside of the cold tier are shown, and the store is not asked for them.
    Those that are half deleted are named on standard error.

    A topic that cannot be asked for is shown with its local side and the error, and the exit status
    is 1. With --json every line has the sums of one topic, `errors` by partition, and `partitions`
    with the figures of each; what nobody could tell is null.

    \b
    Examples:
      varve tier status data
      varve tier status data orders --store s3://bucket/varve --json
    """
    topic, partition = parse_wanted(wanted)
    settings = tier_settings(store_url, store_settings)
    with open_existing([directory], maintain=False, settings=settings) as store:
        if topic is not None:
            find_topic(store, topic)
        place = read_location(RealFileSystem(), os.fspath(directory))
        look = _Look(store, store_url if place is None else place.url)
        chosen = store.partitions(topic, partition)
        found = [
            _TopicStatus(
                name,
                [
                    look.at(topic_partition)
                    for topic_partition in chosen
                    if topic_partition.topic == name
                ],
            )
            for name in dict.fromkeys(topic_partition.topic for topic_partition in chosen)
        ]
        prices = default_prices(look.store_name)
        is_deleting = topic is None and bool(tell_deleting(store))
    if as_json:
        for status in found:
            document = {**_document(status, prices), **look.mirror_document(status.is_enabled)}
            sys.stdout.write(json.dumps(document) + "\n")
    elif found or not is_deleting:
        console = make_console()
        _print(console, found, prices, look.store_name)
        if look.mirror is not None:
            console.print(Text(_mirror_line(look.mirror, found)))
    if any(status.errors for status in found):
        raise typer.Exit(1)


class _Look:
    """Asks for one partition after another, and a store that is down no second time."""

    def __init__(self, store: "Store", url: str) -> None:
        self._store = store
        self._failure: str | None = None
        self._is_open = False
        self.store_name = url
        self.mirror: MirroredObjectStore | None = None

    def mirror_document(self, is_enabled: bool) -> dict[str, Any]:
        if self.mirror is None or not is_enabled:
            return {"mirror": None, "mirror_trouble": None}
        return {
            "mirror": self.mirror.second_name,
            "mirror_trouble": self.mirror.trouble() or None,
        }

    def at(self, partition: TopicPartition) -> _PartitionStatus:
        local = observe_local(self._store.topic(partition.topic).partition(partition.partition).log)
        if not local.is_enabled:
            return _PartitionStatus(local)
        if self._failure is not None:
            return _PartitionStatus(local, self._failure)
        try:
            tier = self._store.tier
            self.store_name, self._is_open = tier.objects.name, True
            if isinstance(tier.objects, MirroredObjectStore):
                self.mirror = tier.objects
                self.store_name = self.mirror.first_name
            return _PartitionStatus(tier.status(partition))
        except StoreError as error:
            if isinstance(error, StoreUnavailable) or not self._is_open:
                self._failure = str(error)
            return _PartitionStatus(local, str(error))


def _document(status: _TopicStatus, prices: PriceTable) -> dict[str, Any]:
    stored = status.sum("stored_bytes")
    return {
        "topic": status.name,
        "tiered": status.is_enabled,
        "copying": status.parts[0].status.is_copying,
        **{name: status.sum(name) for name in _SUMS},
        **{name: status.oldest(name) for name in _OLDEST},
        "cost_per_month": None if stored is None else prices.stored_cost_per_month(stored),
        "currency": prices.currency,
        "prices": prices.name,
        "errors": status.errors,
        "partitions": [_partition_document(status) for status in status.parts],
    }


_SUMS: Final = (
    "hot_bytes",
    "hot_segments",
    "cold_bytes",
    "cold_segments",
    "pending_segments",
    "stored_bytes",
    "lag_bytes",
    "lag_segments",
)
_OLDEST: Final = ("oldest_hot_ms", "oldest_cold_ms")


def _partition_document(status: _PartitionStatus) -> dict[str, Any]:
    figures = asdict(status.status)
    return {**figures, "partition": status.status.partition.partition, "error": status.error}


def _print(
    console: Console, found: Sequence[_TopicStatus], prices: PriceTable, store_name: str
) -> None:
    if not found:
        console.print("there are no topics")
        return
    now_ms = SystemClock().now_ms()
    rows = [_cells(status, prices) for status in found]
    details = [list(_details(status, now_ms)) for status in found]
    print_rows_with_details(console, _COLUMNS, rows, details, left=["topic", "tier"])
    console.print(Text(_summary(found, prices, store_name)))


def _cells(status: _TopicStatus, prices: PriceTable) -> list[str]:
    stored = status.sum("stored_bytes")
    return [
        status.name,
        status.tier,
        _amount(status.sum("hot_bytes"), status.sum("hot_segments")),
        _amount(status.sum("cold_bytes"), status.sum("cold_segments")),
        _amount(status.sum("lag_bytes"), status.sum("lag_segments")),
        "-" if stored is None else format_bytes(stored),
        "-" if stored is None else show_cost(stored, prices),
    ]


def _amount(size: int | None, segments: int | None) -> str:
    if size is None or segments is None:
        return "-"
    return f"{format_bytes(size)} in {segments:,}"


def _details(topic_status: _TopicStatus, now_ms: int) -> Iterator[tuple[str, str | Text]]:
    if not topic_status.is_enabled:
        return
    for partition_status in topic_status.parts:
        status = partition_status.status
        where = str(status.partition)
        yield (
            where,
            f"log start {status.log_start_offset}, local start {status.local_start_offset}, end "
            f"{status.end_offset}{_copied(status)}",
        )
        if partition_status.error is not None:
            yield "", Text(partition_status.error, "red")
    cold_ms, hot_ms = topic_status.oldest("oldest_cold_ms"), topic_status.oldest("oldest_hot_ms")
    yield (
        "oldest",
        f"cold {show_moment(cold_ms, now_ms)}, hot {show_moment(hot_ms, now_ms)}",
    )
    pending = topic_status.sum("pending_segments")
    if pending:
        yield "pending", f"{pending} segments in the store, announced or about to go"


def _copied(status: TierStatus) -> str:
    return "" if status.copied_offset is None else f", copied up to {status.copied_offset}"


def _mirror_line(mirror: MirroredObjectStore, found: Sequence[_TopicStatus]) -> str:
    stored = sum(status.sum("stored_bytes") or 0 for status in found)
    cost = show_cost(stored, default_prices(mirror.second_name))
    state = mirror.trouble() or "`varve tier mirror` compares the two"
    return f"mirrored in {mirror.second_name}, at {cost} per month more; {state}"


def _summary(found: Sequence[_TopicStatus], prices: PriceTable, store_name: str) -> str:
    tiered = [status for status in found if status.is_enabled]
    total = {name: sum(status.sum(name) or 0 for status in found) for name in _SUMS}
    text = f"{len(tiered)} of {len(found)} topics in the cold tier: "
    text += f"{format_bytes(total['hot_bytes'])} hot"
    failed = sum(bool(status.errors) for status in found)
    if tiered:
        text += (
            f", {format_bytes(total['cold_bytes'])} cold, {format_bytes(total['lag_bytes'])} behind"
        )
        cost = show_cost(total["stored_bytes"], prices)
        stored = format_bytes(total["stored_bytes"])
        text += f"; {stored} stored in {store_name or 'no store'}, {cost} per month"
        if prices.stored_per_gib_month:
            text += f" by the list prices of {prices.name}, {prices.as_of}"
    if failed:
        text += f"; {failed} could not be asked for: what is cold and stored there does not count"
    return text
