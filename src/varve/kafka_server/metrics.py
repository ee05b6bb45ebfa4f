"""What the server measures.

Invariant  the loop counts in plain numbers; whoever collects brings them into the table.
Threads    counted in the loop's thread, collected in any.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from varve.foundation.metrics import MetricTable, counter, declared_metrics, gauge
from varve.kafka_server.frames import MemoryBudget
from varve.wire import ApiKey

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

REQUESTS = counter(
    "varve_server_requests_total",
    "Requests that were answered, or that ask for no answer.",
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
    "Bytes of answers, with their headers.",
    unit="bytes",
    labels=("api",),
)
REQUEST_SECONDS = counter(
    "varve_server_request_seconds_total",
    "Time from the arrival of whole requests to their answers, long polls included.",
    unit="seconds",
    labels=("api",),
    kafka_name="kafka.network:type=RequestMetrics,name=TotalTimeMs",
)
FAILED_REQUESTS = counter(
    "varve_server_failed_requests_total",
    "Requests whose handling ended with an error that nobody planned; the log tells it.",
    unit="requests",
    labels=("api",),
)
REFUSED_FRAMES = counter(
    "varve_server_refused_frames_total",
    "Requests that nobody could read, or that were larger than allowed; their connections were "
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
    "Memory taken of queued.max.request.bytes.",
    unit="bytes",
)
QUEUED_RESPONSE_BYTES = gauge(
    "varve_server_queued_response_bytes",
    "Memory taken of varve.queued.max.response.bytes.",
    unit="bytes",
)
LOOP_LAG = gauge(
    "varve_server_loop_lag_seconds",
    "How late the event loop was at most since somebody last collected.",
    unit="seconds",
)


@dataclass(slots=True)
class ApiCount:
    """Sums of one API since somebody last collected."""

    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    seconds: float = 0.0


class ServerMetrics:
    """The figures of one server; a collector for a registry."""

    def __init__(self, requests: MemoryBudget, responses: MemoryBudget) -> None:
        self.table = MetricTable(declared_metrics(sys.modules[__name__]))
        self.lag_max = 0.0
        self._budgets = (requests, responses)
        self._counts: dict[ApiKey, ApiCount] = {}

    def count(
        self, api_key: ApiKey, *, request_bytes: int, response_bytes: int, seconds: float
    ) -> None:
        """A request was answered."""
        found = self._counts.get(api_key)
        if found is None:
            found = self._counts[api_key] = ApiCount()
        found.requests += 1
        found.request_bytes += request_bytes
        found.response_bytes += response_bytes
        found.seconds += seconds

    def collect(self) -> "Iterator[Family]":
        """What prometheus_client asks a collector for."""
        counts, self._counts = self._counts, {}
        for key, found in counts.items():
            api = key.name.lower()
            self.table.add(REQUESTS, found.requests, api)
            self.table.add(REQUEST_BYTES, found.request_bytes, api)
            self.table.add(RESPONSE_BYTES, found.response_bytes, api)
            self.table.add(REQUEST_SECONDS, found.seconds, api)
        requests, responses = self._budgets
        self.table.set(QUEUED_REQUEST_BYTES, requests.used)
        self.table.set(QUEUED_RESPONSE_BYTES, responses.used)
        self.table.set(LOOP_LAG, self.lag_max)
        self.lag_max = 0.0
        return self.table.collect()
