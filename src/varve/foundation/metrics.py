"""Metrics declared once: name, kind, unit, labels, help and Kafka's name in one place.

A package's `metrics.py` declares its metrics. A `MetricTable` holds the values and implements the
collector interface of prometheus_client, so that a program can add them to its own registry.
docs/reference/metrics.md is derived from the declarations.

Invariant  every value belongs to a metric of the table and has all of its labels; counters only
           rise.
Threads    any thread may change and collect; `_lock` guards the values.
"""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

_METRIC_NAME: Final = re.compile(r"varve(_[a-z0-9]+)+")


class MetricKind(StrEnum):
    """A gauge goes up and down, a counter only rises."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """Declaration of a metric; `kafka_name` is empty if Kafka has no equivalent."""

    name: str
    kind: MetricKind
    unit: str
    help: str
    labels: tuple[str, ...]
    kafka_name: str

    def __post_init__(self) -> None:
        if not _METRIC_NAME.fullmatch(self.name):
            raise ValueError(f"metric {self.name!r} is not named varve_... in small letters")
        if (self.kind is MetricKind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: the names of counters, and no others, end with _total")


def gauge(
    name: str, help: str, *, unit: str, labels: tuple[str, ...] = (), kafka_name: str = ""
) -> Metric:
    """Declares a value that goes up and down."""
    return Metric(name, MetricKind.GAUGE, unit, help, labels, kafka_name)


def counter(
    name: str, help: str, *, unit: str, labels: tuple[str, ...] = (), kafka_name: str = ""
) -> Metric:
    """Declares a sum that only rises."""
    return Metric(name, MetricKind.COUNTER, unit, help, labels, kafka_name)


def declared_metrics(module: ModuleType) -> list[Metric]:
    """The metrics that a module declares, in its order."""
    return [value for value in vars(module).values() if isinstance(value, Metric)]


class MetricTable:
    """Values of metrics. A metric without labels starts at 0, others have no value until set."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._lock = threading.Lock()
        self._values: dict[Metric, dict[tuple[str, ...], float]] = {
            metric: {} if metric.labels else {(): 0.0} for metric in metrics
        }  # guarded by _lock

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Sets a gauge."""
        assert metric.kind is MetricKind.GAUGE, metric.name
        with self._lock:
            self._cells_locked(metric, labels)[labels] = float(value)

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Increments a counter."""
        assert metric.kind is MetricKind.COUNTER, metric.name
        assert amount >= 0, f"{metric.name} cannot fall by {-amount}"
        with self._lock:
            cells = self._cells_locked(metric, labels)
            cells[labels] = cells.get(labels, 0.0) + amount

    def raise_to(self, metric: Metric, total: float, *labels: str) -> None:
        """Sets a counter to a sum that is counted elsewhere; one that is lower changes nothing."""
        assert metric.kind is MetricKind.COUNTER, metric.name
        with self._lock:
            cells = self._cells_locked(metric, labels)
            cells[labels] = max(cells.get(labels, 0.0), float(total))

    def replace(self, metric: Metric, values: Mapping[tuple[str, ...], float]) -> None:
        """Sets all values of a gauge with labels; label values not in `values` are removed."""
        assert metric.kind is MetricKind.GAUGE, metric.name
        assert all(len(labels) == len(metric.labels) for labels in values), metric.name
        with self._lock:
            self._values[metric] = {labels: float(value) for labels, value in values.items()}

    def value(self, metric: Metric, *labels: str) -> float:
        """The current value, 0 if none was set."""
        with self._lock:
            return self._cells_locked(metric, labels).get(labels, 0.0)

    def _cells_locked(
        self, metric: Metric, labels: tuple[str, ...]
    ) -> dict[tuple[str, ...], float]:
        assert len(labels) == len(metric.labels), f"{metric.name} has labels {metric.labels}"
        return self._values[metric]

    def collect(self) -> "Iterator[Family]":
        """The metric families, as prometheus_client reads them from a collector."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:
            snapshot = {metric: dict(cells) for metric, cells in self._values.items()}
        for metric, cells in snapshot.items():
            kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in sorted(cells.items()):
                family.add_metric(labels, value)
            yield family


class Collector(Protocol):
    """The collector interface of prometheus_client."""

    def collect(self) -> "Iterator[Family]": ...


def exposition(*collectors: Collector) -> str:
    """The metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry).decode()
