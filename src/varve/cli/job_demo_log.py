"""The log of `varve job demo`: written, copied to object storage, read as a consumer does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import varve
from varve.cli.job_demo_stream import PARTITION_COUNT, SETTINGS, TOPIC
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Corrupt

Batches = Iterator[tuple[int, bytes, int]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the demo keeps its things: the log directory, and beside it all that is made of it."""

    directory: str
    is_kept: bool = True
    """Whether the files remain after the demo; only then are their paths worth printing."""

    @property
    def remote(self) -> str:
        return f"file:{self.directory}.cold"

    @property
    def snapshots(self) -> str:
        return f"{self.directory}.snapshots"

    @property
    def warehouse(self) -> str:
        return f"{self.directory}.tables"

    @property
    def receipt(self) -> str:
        return f"{self.directory}.receipt.html"

    @property
    def page(self) -> str:
        return f"{self.directory}.verify.html"


def write_changes(
    place: Place, batches: Batches, count: int, told: Callable[[int], None] = lambda done: None
) -> int:
    """Appends at least `count` records of the stream, or all that are left; gives their number."""
    written = 0
    with varve.open(place.directory, maintain=False) as store:
        topic = store.create_topic(
            TOPIC, partitions=PARTITION_COUNT, settings=SETTINGS, exist_ok=True
        )
        for partition, batch, records in batches:
            topic.append_batch(batch, partition)
            written += records
            told(written)
            if written >= count:
                break
    return written


@dataclass(frozen=True, slots=True)
class Tiered:
    """What lies where."""

    hot_bytes: int
    cold_bytes: int
    cold_segments: int


def move_to_remote(place: Place) -> Tiered:
    """Copies every closed segment, and lets it leave the local disk."""
    now_ms = SystemClock().now_ms()
    with varve.open(place.directory, maintain=False) as store:
        topic = store.topic(TOPIC)
        for partition in store.partitions(TOPIC):
            topic.partition(partition.partition).log.roll()
            report = store.tier.copy(partition, now_ms)
            if report.error is not None:
                raise Corrupt(f"the demo could not copy {partition}: {report.error}")
            store.tier.expire(partition, now_ms)
        statuses = [store.tier.status(partition) for partition in store.partitions(TOPIC)]
    return Tiered(
        hot_bytes=sum(status.local_bytes for status in statuses),
        cold_bytes=sum(status.remote_bytes or 0 for status in statuses),
        cold_segments=sum(status.remote_segments or 0 for status in statuses),
    )


def replay(place: Place, state: dict[bytes, bytes], offsets: dict[int, int]) -> int:
    """Brings a state up to the end of the log from these offsets on; gives the records read."""
    count = 0
    with varve.open(place.directory, maintain=False) as store:
        for partition, offset in offsets.items():
            for record in store.topic(TOPIC).read(partition=partition, start=offset):
                count += 1
                if record.key is None:
                    continue
                if record.value is None:
                    state.pop(record.key, None)
                else:
                    state[record.key] = record.value
    return count
