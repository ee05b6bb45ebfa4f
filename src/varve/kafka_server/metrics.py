"""Metrics of the server.

Invariant  the event loop counts in plain numbers that only rise; a collection raises the counters
           of the table to them, so that no increment is lost.
Threads    counted in the event loop's thread, collected in any.
"""

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from varve.foundation.metrics import MetricTable, counter, declared_metrics, gauge
from varve.kafka_server.frames import MemoryBudget
from varve.wire import ApiKey

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

REQUESTS = counter(
    "varve_server_requests_total",
    "Requests that were answered, or that have no response.",
    unit="requests",
    labels=("api",),
    kafka_name="kafka.network:type=RequestMetrics,name=RequestsPerSec",
)
REQUEST_BYTES = counter(
    "varve_server_request_bytes_total",
    "Bytes of requests, with their headers.",
    unit="bytes",
    labels=("api",),
    kafka_name="kafka.network:type=RequestMetrics,name=RequestBytes",
)
RESPONSE_BYTES = counter(
    "varve_server_response_bytes_total",
    "Bytes of responses, with their headers.",
    unit="bytes",
    labels=("api",),
)
REQUEST_SECONDS = counter(
    "varve_server_request_seconds_total",
    "Time from the arrival of complete requests to their responses, long polls included.",
    unit="seconds",
    labels=("api",),
    kafka_name="kafka.network:type=RequestMetrics,name=TotalTimeMs",
)
FAILED_REQUESTS = counter(
    "varve_server_failed_requests_total",
    "Requests that failed with an unexpected error, which is in the log.",
    unit="requests",
    labels=("api",),
)
REJECTED_REQUESTS = counter(
    "varve_server_rejected_requests_total",
    "Requests that were malformed, too large, unknown or not authenticated; their connections were "
    "closed.",
    unit="requests",
    labels=("reason",),
)
CONNECTIONS = gauge(
    "varve_server_connections",
    "Open connections.",
    unit="connections",
    kafka_name="kafka.server:type=socket-server-metrics,name=connection-count",
)
ACCEPTED_CONNECTIONS = counter(
    "varve_server_accepted_connections_total",
    "Connections that were accepted.",
    unit="connections",
    kafka_name="kafka.server:type=socket-server-metrics,name=connection-creation-total",
)
CLOSED_CONNECTIONS = counter(
    "varve_server_closed_connections_total",
    "Connections that the server closed, by reason.",
    unit="connections",
    labels=("reason",),
)
QUEUED_REQUEST_BYTES = gauge(
    "varve_server_queued_request_bytes",
    "Memory in use of queued.max.request.bytes.",
    unit="bytes",
)
QUEUED_RESPONSE_BYTES = gauge(
    "varve_server_queued_response_bytes",
    "Memory in use of varve.queued.max.response.bytes.",
    unit="bytes",
)
EVENT_LOOP_LAG = gauge(
    "varve_server_event_loop_lag_seconds",
    "The longest delay of the event loop since the last collection, measured four times a second.",
    unit="seconds",
)


_LAG_COUNT_MAX: Final = 4_096
"""Measured lags that wait for a collection; older ones are dropped."""


@dataclass(slots=True)
class ApiTotals:
    """Sums of one API; changed by the event loop alone."""

    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    seconds: float = 0.0


class ServerMetrics(MetricTable):
    """The figures of one server; a collector for a registry."""

    def __init__(self, request_memory: MemoryBudget, response_memory: MemoryBudget) -> None:
        super().__init__(declared_metrics(sys.modules[__name__]))
        self._request_memory = request_memory
        self._response_memory = response_memory
        self._lags: deque[float] = deque(maxlen=_LAG_COUNT_MAX)
        self._totals: dict[ApiKey, ApiTotals] = {}

    def count(
        self, api_key: ApiKey, *, request_bytes: int, response_bytes: int, seconds: float
    ) -> None:
        """A request was answered."""
        totals = self._totals.get(api_key)
        if totals is None:
            totals = self._totals[api_key] = ApiTotals()
        totals.requests += 1
        totals.request_bytes += request_bytes
        totals.response_bytes += response_bytes
        totals.seconds += seconds

    def loop_lagged(self, seconds: float) -> None:
        """A callback of the event loop ran that much later than it was due."""
        self._lags.append(seconds)

    def collect(self) -> "Iterator[Family]":
        """Called by prometheus_client."""
        for key, totals in list(self._totals.items()):
            api = key.name.lower()
            self.raise_to(REQUESTS, totals.requests, api)
            self.raise_to(REQUEST_BYTES, totals.request_bytes, api)
            self.raise_to(RESPONSE_BYTES, totals.response_bytes, api)
            self.raise_to(REQUEST_SECONDS, totals.seconds, api)
        lags = []
        with suppress(IndexError):  # another collection may take the last one
            while self._lags:
                lags.append(self._lags.popleft())
        self.set(QUEUED_REQUEST_BYTES, self._request_memory.used)
        self.set(QUEUED_RESPONSE_BYTES, self._response_memory.used)
        self.set(EVENT_LOOP_LAG, max(lags, default=0.0))
        return super().collect()
