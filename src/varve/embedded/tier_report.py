"""The status of both tiers by topic, for a store whose object store may not respond.

Invariant  reads only. A topic without a remote tier costs no request, and an object store that does
           not respond is asked once: the local status is there in any case.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from varve.commit_log import TopicPartition
from varve.foundation.errors import StoreError, StoreUnavailable
from varve.object_store import MirroredObjectStore
from varve.tiering.tier import TierStatus, observe_local

if TYPE_CHECKING:
    from varve.embedded.store import Store

SUMS: Final = (
    "local_bytes",
    "local_segments",
    "remote_bytes",
    "remote_segments",
    "pending_segments",
    "stored_bytes",
    "lag_bytes",
    "lag_segments",
)
"""Fields of TierStatus that are added up over partitions."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The status of a partition, of the local tier only if there is an error."""

    status: TierStatus
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TopicReport:
    """The partitions of a topic; sums leave out what is unknown."""

    name: str
    partitions: Sequence[PartitionReport]

    @property
    def is_enabled(self) -> bool:
        return self.partitions[0].status.is_enabled

    @property
    def is_copying(self) -> bool:
        return self.partitions[0].status.is_copying

    @property
    def errors(self) -> dict[str, str]:
        return {
            str(report.status.partition): report.error
            for report in self.partitions
            if report.error is not None
        }

    def sum(self, field: str) -> int | None:
        """A field over all partitions; None where no partition has it."""
        known = self._known(field)
        return sum(known) if known else None

    def oldest(self, field: str) -> int | None:
        return min(self._known(field), default=None)

    def _known(self, field: str) -> list[int]:
        values = [getattr(report.status, field) for report in self.partitions]
        return [value for value in values if value is not None]


@dataclass(frozen=True, slots=True)
class TierReport:
    """All topics, and the object stores; `store_name` is empty if none was needed."""

    topics: Sequence[TopicReport]
    store_name: str
    mirror: MirroredObjectStore | None


def report_tiers(
    store: "Store", partitions: Sequence[TopicPartition], *, store_url: str
) -> TierReport:
    """The status of partitions; `store_url` names an object store that does not respond."""
    reader = _StatusReader(store, store_url)
    reports = [(name, reader.read(name)) for name in partitions]
    topics = [
        TopicReport(topic_name, [report for name, report in reports if name.topic == topic_name])
        for topic_name in dict.fromkeys(name.topic for name, _ in reports)
    ]
    return TierReport(topics, reader.store_name, reader.mirror)


class _StatusReader:
    def __init__(self, store: "Store", store_url: str) -> None:
        self._store = store
        self._failure: str | None = None
        self._is_open = False
        self.store_name = store_url
        self.mirror: MirroredObjectStore | None = None

    def read(self, partition: TopicPartition) -> PartitionReport:
        local = observe_local(self._store.topic(partition.topic).partition(partition.partition).log)
        if not local.is_enabled or self._failure is not None:
            return PartitionReport(local, self._failure if local.is_enabled else None)
        try:
            tier = self._store.tier
            self.store_name, self._is_open = tier.objects.name, True
            if isinstance(tier.objects, MirroredObjectStore):
                self.mirror = tier.objects
                self.store_name = self.mirror.first_name
            return PartitionReport(tier.status(partition))
        except StoreError as error:
            if isinstance(error, StoreUnavailable) or not self._is_open:
                self._failure = str(error)
            return PartitionReport(local, str(error))
