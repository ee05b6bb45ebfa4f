"""An object store wrapper that counts requests, bytes, errors and their cost.

Request counts are computed: an upload in parts takes one per part and two more, a list one per
thousand objects. Below a RetryingObjectStore every attempt counts, as it does on the bill.

Threads    any; the metric table has its own lock, `_lock` guards the sum of errors.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from varve.foundation.metrics import MetricTable, declared_metrics
from varve.object_store import metrics
from varve.object_store.obstore_store import LIST_PAGE_COUNT
from varve.object_store.prices import PriceTable, RequestKind, default_prices
from varve.object_store.protocol import Buffer, ObjectInfo, ObjectStore
from varve.object_store.wrapper import ObjectStoreWrapper

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
        self.table = table or MetricTable(declared_metrics(metrics))
        self._part_bytes = part_bytes
        self._timer = timer
        self._lock = threading.Lock()
        self._error_count = 0  # guarded by _lock

    def usage(self) -> StoreUsage:
        requests = dict.fromkeys(RequestKind, 0)
        seconds = 0.0
        for operation, kind in _KINDS.items():
            requests[kind] += int(self.table.value(metrics.REQUESTS, self.name, operation))
            seconds += self.table.value(metrics.SECONDS, self.name, operation)
        with self._lock:
            errors = self._error_count
        return StoreUsage(
            requests=requests,
            errors=errors,
            read_bytes=int(self.table.value(metrics.READ_BYTES, self.name)),
            written_bytes=int(self.table.value(metrics.WRITTEN_BYTES, self.name)),
            seconds=seconds,
            cost=self.table.value(metrics.COST, self.name),
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
            self.table.add(metrics.ERRORS, 1, self.name, operation, type(error).__name__)
            raise
        finally:
            self.table.add(metrics.SECONDS, self._timer() - began, self.name, operation)
            self.table.add(metrics.REQUESTS, request_count, self.name, operation)
            cost = self.prices.requests_cost({_KINDS[operation]: request_count})
            self.table.add(metrics.COST, cost, self.name)

    def _count_read(self, size: int) -> None:
        self.table.add(metrics.READ_BYTES, size, self.name)
        self.table.add(metrics.COST, self.prices.transfer_cost(size), self.name)

    def _count_written(self, info: ObjectInfo) -> ObjectInfo:
        self.table.add(metrics.WRITTEN_BYTES, info.size, self.name)
        return info
