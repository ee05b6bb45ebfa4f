"""What an erasure has found so far: figures by partition and tier, and the offsets that go."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from varve.jobs.erase.cold import ColdFindings
from varve.jobs.erase.hot import HotFindings, sum_offsets
from varve.jobs.erase.result import ErasureCost, PartitionErasure
from varve.object_store.prices import PriceTable, RequestKind

Integers = npt.NDArray[np.int64]

_REWRITE_READS = 4
"""How often a segment with a match is read: to find, to plan, to copy, and back."""
_REWRITE_REQUESTS = 30


class ErasureFigures:
    """Adds up pass after pass."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, int, str], PartitionErasure] = {}
        self._offsets: dict[str, dict[int, Integers]] = {}

    @property
    def partitions(self) -> tuple[PartitionErasure, ...]:
        return tuple(self._figures.values())

    @property
    def unread(self) -> int:
        """Values that could not be read as JSON, on all tiers."""
        return sum(one.unread_values for one in self._figures.values())

    def offsets(self, topic: str) -> Mapping[int, Integers]:
        """By partition, the offsets of all records that were found."""
        return self._offsets.get(topic, {})

    def begin_anew(self) -> None:
        """Forgets figures of a pass that only looked; offsets stay known."""
        self._figures.clear()

    def note_hot(self, topic: str, partition: int, found: HotFindings) -> None:
        self._note(
            topic,
            found.offsets,
            PartitionErasure(
                topic=topic,
                partition=partition,
                tier="hot",
                segments=found.segments_looked,
                segments_matched=found.segments_matched,
                matched_bytes=found.matched_bytes,
                records=found.records,
                record_bytes=found.record_bytes,
                unread_values=found.unread,
                bytes_read=found.bytes_looked,
            ),
        )

    def note_cold(self, found: ColdFindings) -> None:
        self._note(
            found.home.topic,
            found.offsets,
            PartitionErasure(
                topic=found.home.topic,
                partition=found.home.partition,
                tier="cold",
                segments=found.segments_looked,
                segments_matched=found.segments_matched,
                matched_bytes=found.matched_bytes,
                records=found.records,
                record_bytes=found.record_bytes,
                unread_values=found.unread,
                bytes_read=found.bytes_looked,
                swept=found.swept,
            ),
        )

    def _note(self, topic: str, offsets: Sequence[Integers], new: PartitionErasure) -> None:
        """A later pass adds what it found; it looks at what the first one looked at."""
        known = self._offsets.setdefault(topic, {})
        before = [known[new.partition]] if new.partition in known else []
        known[new.partition] = sum_offsets([*before, *offsets])
        place = (new.topic, new.partition, new.tier)
        old = self._figures.get(place)
        if old is not None:
            new = replace(
                new,
                segments=max(old.segments, new.segments),
                segments_matched=old.segments_matched + new.segments_matched,
                matched_bytes=old.matched_bytes + new.matched_bytes,
                records=old.records + new.records,
                record_bytes=old.record_bytes + new.record_bytes,
                unread_values=max(old.unread_values, new.unread_values),
                bytes_read=old.bytes_read + new.bytes_read,
                swept=old.swept + new.swept,
            )
        self._figures[place] = new


def estimate_cost(cold: Sequence[ColdFindings], prices: PriceTable) -> ErasureCost:
    """What is still to be asked for after a look: the rewrite, and the re-scan of everything."""
    matched = sum(one.segments_matched for one in cold)
    read_bytes = sum(one.log_bytes + _REWRITE_READS * one.matched_bytes for one in cold)
    reads = sum(one.log_requests for one in cold) + matched * _REWRITE_REQUESTS
    writes = matched * _REWRITE_REQUESTS
    requests = {RequestKind.READ: reads, RequestKind.WRITE: writes}
    return ErasureCost(
        requests=reads + writes,
        read_bytes=read_bytes,
        cost=prices.requests_cost(requests) + prices.transfer_cost(read_bytes),
        currency=prices.currency,
        prices=prices.name,
    )
