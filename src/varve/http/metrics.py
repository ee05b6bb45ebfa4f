"""Metrics of the HTTP server and the shape API.

Threads    changed by the event loop only; any thread may collect.
"""

import sys

from varve.foundation.metrics import MetricTable, counter, declared_metrics, gauge

REQUESTS = counter(
    "varve_shapes_http_requests_total",
    "Requests by endpoint, method and status; status 0 is a client that disconnected.",
    unit="requests",
    labels=("endpoint", "method", "status"),
)
BYTES = counter(
    "varve_shapes_http_sent_bytes_total",
    "Bytes of the bodies of responses.",
    unit="bytes",
    labels=("endpoint",),
)
SECONDS = counter(
    "varve_shapes_http_request_seconds_total",
    "Time until the responses of requests were sent, waiting included.",
    unit="seconds",
    labels=("endpoint",),
)
REFUSED = counter(
    "varve_shapes_http_refused_total",
    "Requests refused because too many were in progress.",
    unit="requests",
    labels=("kind",),
)
MALFORMED = counter(
    "varve_shapes_http_malformed_total",
    "Input that is not a request: bytes that are not HTTP, an address or a head that is too long.",
    unit="requests",
    labels=("kind",),
)
IN_PROGRESS = gauge(
    "varve_shapes_http_requests",
    "Requests for shapes that are in progress, including live ones.",
    unit="requests",
    labels=("kind",),
)
WAITING = gauge(
    "varve_shapes_http_waiting",
    "Live requests and streams that wait for changes.",
    unit="requests",
)
SHARED = counter(
    "varve_shapes_http_shared_responses_total",
    "Responses from data that was read once for several clients.",
    unit="responses",
)


class HttpMetrics(MetricTable):
    """A collector for a registry of prometheus_client."""

    def __init__(self) -> None:
        super().__init__(declared_metrics(sys.modules[__name__]))

    def add_request(
        self, endpoint: str, method: str, status: int, size: int, seconds: float
    ) -> None:
        """Counts one request at its end."""
        self.add(REQUESTS, 1, endpoint, method, str(status))
        self.add(BYTES, size, endpoint)
        self.add(SECONDS, seconds, endpoint)

    def add_malformed(self, kind: str) -> None:
        self.add(MALFORMED, 1, kind)

    def set_state(self, counts: dict[str, int], *, waiting: int) -> None:
        """Sets the gauges to their present values."""
        for kind, count in counts.items():
            self.set(IN_PROGRESS, count, kind)
        self.set(WAITING, waiting)

    def add_counts(self, refused: dict[str, int], *, shared: int) -> None:
        """Raises the counters to sums that are counted elsewhere."""
        for kind, total in refused.items():
            self.raise_to(REFUSED, total, kind)
        self.raise_to(SHARED, shared)
