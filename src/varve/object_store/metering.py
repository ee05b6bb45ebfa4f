"""An object store wrapper that counts requests, bytes, errors and their cost by a price table.

Request counts are computed: an upload in parts takes one per part and two more, a list one per
thousand objects. Below a RetryingObjectStore every attempt counts, as it does on the bill. Prices
are list prices with date and source, which callers may replace; discounts, free allowances, volume
tiers and taxes are not included, and no provider charges deletes.
docs/reference/object-stores.md describes how each table was compared with its source.

Threads    any; the metric table has its own lock, `_lock` guards the sum of errors.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from varve.foundation.metrics import MetricTable, counter, declared_metrics
from varve.object_store.obstore_store import LIST_PAGE_COUNT
from varve.object_store.protocol import Buffer, ObjectInfo, ObjectStore, ObjectStoreWrapper

REQUESTS = counter(
    "varve_object_store_requests_total",
    "Requests sent; those of an upload in parts and of pages are computed.",
    unit="requests",
    labels=("store", "operation"),
)
ERRORS = counter(
    "varve_object_store_errors_total",
    "Calls that failed, by the error's class; a missing object counts too.",
    unit="calls",
    labels=("store", "operation", "error"),
)
SECONDS = counter(
    "varve_object_store_seconds_total",
    "Time that calls took, without that of the caller between the pages of a list.",
    unit="seconds",
    labels=("store", "operation"),
)
READ_BYTES = counter(
    "varve_object_store_read_bytes_total",
    "Bytes of objects handed out.",
    unit="bytes",
    labels=("store",),
)
WRITTEN_BYTES = counter(
    "varve_object_store_written_bytes_total",
    "Bytes of objects written.",
    unit="bytes",
    labels=("store",),
)
COST = counter(
    "varve_object_store_cost_total",
    "What requests and bytes read cost by the price table, in its currency.",
    unit="currency",
    labels=("store",),
)


GIB: Final = 1 << 30
"""The gigabyte of the three providers' bills."""


class RequestKind(StrEnum):
    """Requests as providers price them."""

    WRITE = "write"
    """Puts, creates, parts of uploads and their begin and end."""
    READ = "read"
    """Gets of objects and ranges, heads."""
    LIST = "list"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices per 1000 requests, per GiB read out, and per GiB and month stored."""

    name: str
    as_of: str
    """Year and month of the price list."""
    source: str = ""
    """The price list; empty where there is none to name."""
    currency: str = "USD"
    write_per_1000: float
    read_per_1000: float
    list_per_1000: float
    delete_per_1000: float = 0.0
    stored_per_gib_month: float
    read_per_gib: float = 0.0

    def requests_cost(self, counts: Mapping[RequestKind, int]) -> float:
        per_1000 = {
            RequestKind.WRITE: self.write_per_1000,
            RequestKind.READ: self.read_per_1000,
            RequestKind.LIST: self.list_per_1000,
            RequestKind.DELETE: self.delete_per_1000,
        }
        return sum(count * per_1000[kind] for kind, count in counts.items()) / 1000

    def transfer_cost(self, read_bytes: int) -> float:
        return read_bytes / GIB * self.read_per_gib

    def stored_cost_per_month(self, stored_bytes: int) -> float:
        return stored_bytes / GIB * self.stored_per_gib_month

    def format_monthly_cost(self, stored_bytes: int) -> str:
        """What storing these bytes costs in a month, as `USD 1.20`."""
        cost = self.stored_cost_per_month(stored_bytes)
        return f"{self.currency} {'<0.01' if 0 < cost < 0.01 else f'{cost:,.2f}'}"


FREE: Final = PriceTable(
    name="free",
    as_of="always",
    write_per_1000=0.0,
    read_per_1000=0.0,
    list_per_1000=0.0,
    stored_per_gib_month=0.0,
)
"""For directories and memory."""

S3_STANDARD: Final = PriceTable(
    name="Amazon S3 Standard, US East (N. Virginia), read within the region",
    as_of="2026-07",
    source="AWS Price List, AmazonS3, us-east-1",
    write_per_1000=0.005,
    read_per_1000=0.0004,
    list_per_1000=0.005,
    stored_per_gib_month=0.023,
)

GCS_STANDARD: Final = PriceTable(
    name="Google Cloud Storage Standard, us-central1, read within the region",
    as_of="2026-09",
    source="cloud.google.com/storage/pricing",
    write_per_1000=0.005,
    read_per_1000=0.0004,
    list_per_1000=0.005,
    stored_per_gib_month=0.020,
)

AZURE_HOT: Final = PriceTable(
    name="Azure Blob Storage Hot LRS, West US 2, read within the region",
    as_of="2026-04",
    source="Azure Retail Prices API, General Block Blob v2",
    write_per_1000=0.005,
    read_per_1000=0.0004,
    list_per_1000=0.005,
    stored_per_gib_month=0.0184,
)

_BY_SCHEME: Final = {"s3": S3_STANDARD, "gs": GCS_STANDARD, "az": AZURE_HOT}


def default_prices(store_name: str) -> PriceTable:
    """The declared prices for a store by the scheme of its name, FREE for others."""
    return _BY_SCHEME.get(store_name.partition(":")[0], FREE)


T = TypeVar("T")

_KINDS: Final = {
    "put": RequestKind.WRITE,
    "put parts": RequestKind.WRITE,
    "create": RequestKind.WRITE,
    "get": RequestKind.READ,
    "get range": RequestKind.READ,
    "head": RequestKind.READ,
    "list": RequestKind.LIST,
    "list directories": RequestKind.LIST,
    "delete": RequestKind.DELETE,
}


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """The requests to a store so far; `cost` excludes storage."""

    requests: dict[RequestKind, int]
    errors: int
    read_bytes: int
    written_bytes: int
    seconds: float
    cost: float
    prices: PriceTable


class MeteredObjectStore(ObjectStoreWrapper):
    """An ObjectStore over another. `table` is a collector for a registry of prometheus_client and
    may be shared by several stores; `timer` gives seconds."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        prices: PriceTable | None = None,
        table: MetricTable | None = None,
        part_bytes: int = 8 << 20,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(store)
        self.prices = prices or default_prices(store.name)
        self.table = table or MetricTable(declared_metrics(sys.modules[__name__]))
        self._part_bytes = part_bytes
        self._timer = timer
        self._lock = threading.Lock()
        self._error_count = 0  # guarded by _lock

    def usage(self) -> StoreUsage:
        requests = dict.fromkeys(RequestKind, 0)
        seconds = 0.0
        for operation, kind in _KINDS.items():
            requests[kind] += int(self.table.value(REQUESTS, self.name, operation))
            seconds += self.table.value(SECONDS, self.name, operation)
        with self._lock:
            errors = self._error_count
        return StoreUsage(
            requests=requests,
            errors=errors,
            read_bytes=int(self.table.value(READ_BYTES, self.name)),
            written_bytes=int(self.table.value(WRITTEN_BYTES, self.name)),
            seconds=seconds,
            cost=self.table.value(COST, self.name),
            prices=self.prices,
        )

    def _request(self, operation: str, key: str, call: Callable[[ObjectStore], T]) -> T:
        with self._measured(operation):
            return call(self._store)

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        return self._count_written(super().put(key, data))

    def put_parts(self, key: str, parts: Iterable[Buffer], *, size: int) -> ObjectInfo:
        part_count = -(-size // self._part_bytes)
        with self._measured("put parts", part_count + 2 if part_count > 1 else 1):
            info = self._store.put_parts(key, parts, size=size)
        return self._count_written(info)

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        return self._count_written(super().create(key, data))

    def get(self, key: str) -> bytes:
        data = super().get(key)
        self._count_read(len(data))
        return data

    def get_range(self, key: str, start: int, end: int) -> memoryview:
        with self._measured("get range", 1 if start < end else 0):
            data = self._store.get_range(key, start, end)
        self._count_read(data.nbytes)
        return data

    def _list(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo]:
        """A request at every thousandth object; the end of the list belongs to the last one."""
        object_infos = self._store.list(prefix, start_after=start_after)
        count = 0
        while True:
            with self._measured("list", 1 if count % LIST_PAGE_COUNT == 0 else 0):
                info = next(object_infos, None)
            if info is None:
                return
            count += 1
            yield info

    def delete(self, keys: Sequence[str]) -> None:
        with self._measured("delete", -(-len(keys) // LIST_PAGE_COUNT)):
            self._store.delete(keys)

    @contextmanager
    def _measured(self, operation: str, request_count: int = 1) -> Iterator[None]:
        began = self._timer()
        try:
            yield
        except Exception as error:
            with self._lock:
                self._error_count += 1
            self.table.add(ERRORS, 1, self.name, operation, type(error).__name__)
            raise
        finally:
            self.table.add(SECONDS, self._timer() - began, self.name, operation)
            self.table.add(REQUESTS, request_count, self.name, operation)
            cost = self.prices.requests_cost({_KINDS[operation]: request_count})
            self.table.add(COST, cost, self.name)

    def _count_read(self, size: int) -> None:
        self.table.add(READ_BYTES, size, self.name)
        self.table.add(COST, self.prices.transfer_cost(size), self.name)

    def _count_written(self, info: ObjectInfo) -> ObjectInfo:
        self.table.add(WRITTEN_BYTES, info.size, self.name)
        return info
