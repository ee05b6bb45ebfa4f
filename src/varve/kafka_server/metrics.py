"""Metrics of the server.

Invariant  the event loop counts in plain numbers that only rise; a collection adds what has come
           since the last one to the table, so that no increment is lost.
Threads    counted in the event loop's thread, collected in any; `_lock` guards collections.
"""

import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
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


class ServerMetrics:
    """The figures of one server; a collector for a registry."""

    def __init__(self, request_memory: MemoryBudget, response_memory: MemoryBudget) -> None:
        self.table = MetricTable(declared_metrics(sys.modules[__name__]))
        self._request_memory = request_memory
        self._response_memory = response_memory
        self._lags: deque[float] = deque(maxlen=_LAG_COUNT_MAX)
        self._totals: dict[ApiKey, ApiTotals] = {}
        self._lock = threading.Lock()
        self._collected: dict[ApiKey, ApiTotals] = {}  # guarded by _lock

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
        with self._lock:
            for key, totals in list(self._totals.items()):
                self._add_new_locked(key, replace(totals))
            lags = [self._lags.popleft() for _ in range(len(self._lags))]
        self.table.set(QUEUED_REQUEST_BYTES, self._request_memory.used)
        self.table.set(QUEUED_RESPONSE_BYTES, self._response_memory.used)
        self.table.set(EVENT_LOOP_LAG, max(lags, default=0.0))
        return self.table.collect()

    def _add_new_locked(self, key: ApiKey, now: ApiTotals) -> None:
        before = self._collected.get(key, ApiTotals())
        self._collected[key] = now
        api = key.name.lower()
        self.table.add(REQUESTS, now.requests - before.requests, api)
        self.table.add(REQUEST_BYTES, now.request_bytes - before.request_bytes, api)
        self.table.add(RESPONSE_BYTES, now.response_bytes - before.response_bytes, api)
        self.table.add(REQUEST_SECONDS, now.seconds - before.seconds, api)
