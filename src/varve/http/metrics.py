"""What the shape API measures.

Threads    the loop's alone changes it; any may collect.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from varve.foundation.metrics import MetricTable, counter, declared_metrics, gauge

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

REQUESTS = counter(
    "varve_shape_http_requests_total",
    "Requests answered, by endpoint, method and status; status 0 is a client that left.",
    unit="requests",
    labels=("endpoint", "method", "status"),
)
BYTES = counter(
    "varve_shape_http_sent_bytes_total",
    "Bytes of the bodies of answers.",
    unit="bytes",
    labels=("endpoint",),
)
SECONDS = counter(
    "varve_shape_http_request_seconds_total",
    "Time that requests took until their answer was handed over, waiting included.",
    unit="seconds",
    labels=("endpoint",),
)
REFUSED = counter(
    "varve_shape_http_refused_total",
    "Requests refused because too many were under way.",
    unit="requests",
    labels=("kind",),
)
MALFORMED = counter(
    "varve_shape_http_malformed_total",
    "What was no request: other bytes than HTTP's, an address or a head that is too long.",
    unit="requests",
    labels=("kind",),
)
UNDER_WAY = gauge(
    "varve_shape_http_requests",
    "Requests for shapes that are under way, live ones among them.",
    unit="requests",
    labels=("kind",),
)
WAITING = gauge(
    "varve_shape_http_waiting",
    "Live requests and streams that wait for changes.",
    unit="requests",
)
SHARED = gauge(
    "varve_shape_http_shared_answers",
    "Answers that were read once for several clients.",
    unit="answers",
)


class HttpMetrics:
    """A collector for a registry of prometheus_client."""

    def __init__(self) -> None:
        self._table = MetricTable(declared_metrics(sys.modules[__name__]))
        self._refused: dict[str, int] = {}

    def note(self, endpoint: str, method: str, status: int, size: int, seconds: float) -> None:
        """One request came to its end."""
        self._table.add(REQUESTS, 1, endpoint, method, str(status))
        self._table.add(BYTES, size, endpoint)
        self._table.add(SECONDS, seconds, endpoint)

    def note_malformed(self, kind: str) -> None:
        self._table.add(MALFORMED, 1, kind)

    def note_state(
        self, counts: dict[str, int], refused: dict[str, int], *, waiting: int, shared: int
    ) -> None:
        """How things stand when somebody looks."""
        for kind, count in counts.items():
            self._table.set(UNDER_WAY, count, kind)
        for kind, total in refused.items():
            self._table.add(REFUSED, total - self._refused.get(kind, 0), kind)
            self._refused[kind] = total
        self._table.set(WAITING, waiting)
        self._table.set(SHARED, shared)

    def collect(self) -> "Iterator[Family]":
        """What prometheus_client asks a collector for."""
        yield from self._table.collect()
