"""The figures of a whole store: of its cleaner, and of its cold tier once that is open.

Threads    any.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from varve.cleaning.metrics import CleanerMetrics
from varve.foundation.metrics import Collector

if TYPE_CHECKING:
    from prometheus_client import Metric as Family


class StoreMetrics:
    """A collector for a registry of prometheus_client.

    `find_tier` gives the collector of the cold tier, None while no topic needs one.
    """

    def __init__(self, cleaner: CleanerMetrics, find_tier: Callable[[], Collector | None]) -> None:
        self._cleaner = cleaner
        self._find_tier = find_tier

    def collect(self) -> "Iterator[Family]":
        """What prometheus_client asks a collector for."""
        yield from self._cleaner.collect()
        tier = self._find_tier()
        if tier is not None:
            yield from tier.collect()
