"""The stream that `varve job demo` writes: the changes of a table of customers, as JSON by id.

Invariant  the same seed gives the same stream. Every customer is written once at first; later
           changes go to a few far more often than to most, and some customers leave (a tombstone).
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.embedded.topic import partition_of
from varve.records import BinaryColumn, Codec, build_batch_from_columns

TOPIC: Final = "customers"
PARTITION_COUNT: Final = 2
SETTINGS: Final[dict[str, str | int | bool]] = {
    "cleanup.policy": "compact",
    "segment.bytes": 16 << 20,
    "remote.storage.enable": True,
    "local.retention.bytes": 1,
    "file.delete.delay.ms": 0,
}
UPDATES_PER_CUSTOMER: Final = 10
BATCH_RECORDS: Final = 4_000

_START_MS: Final = 1_767_225_600_000  # 2026-01-01
_STEP_MS: Final = 20
_LEAVES: Final = 0.002
_PLANS: Final = ("free", "plus", "team")
_CITIES: Final = ("Bergen", "Cork", "Graz", "Lund", "Porto", "Turku", "Utrecht", "Vilnius")


def key_of(customer: int) -> bytes:
    return b"customer-%07d" % customer


def value_of(customer: int, change: int, cents: int) -> bytes:
    """The row as it stands after a change."""
    plan = _PLANS[(customer + change // 7) % len(_PLANS)]
    city = _CITIES[(customer * 31 + change // 3) % len(_CITIES)]
    return (
        b'{"id": %d, "name": "Customer %d", "email": "c%d@example.org", "city": "%s", '
        b'"plan": "%s", "cents": %d, "change": %d}'
    ) % (customer, customer, customer, city.encode(), plan.encode(), cents, change)


class CustomerStream:
    """`count` changes of a tenth as many customers, in batches by partition."""

    def __init__(self, *, seed: int, count: int) -> None:
        self.count = count
        self.customers = max(1, count // UPDATES_PER_CUSTOMER)
        self._random = np.random.default_rng(seed)
        self._partitions = np.array(
            [partition_of(key_of(one), PARTITION_COUNT) for one in range(self.customers)]
        )
        self._changes = np.zeros(self.customers, np.int64)
        self._cents = np.zeros(self.customers, np.int64)
        self._is_gone = np.zeros(self.customers, np.bool_)

    def batches(self) -> Iterator[tuple[int, bytes, int]]:
        """Partition, batch and its number of records, in the order of time."""
        for start in range(0, self.count, BATCH_RECORDS):
            numbers = np.arange(start, min(start + BATCH_RECORDS, self.count))
            chosen = self._choose(numbers)
            leaves = self._random.random(len(chosen)) < _LEAVES
            cents = self._random.integers(0, 10_000_000, len(chosen))
            values = self._values(chosen, leaves, cents)
            times = _START_MS + numbers * _STEP_MS
            for partition in range(PARTITION_COUNT):
                here = np.flatnonzero(self._partitions[chosen] == partition)
                if len(here):
                    yield partition, _batch(chosen, values, times, here), len(here)

    def state(self) -> dict[bytes, bytes]:
        """The last value of everyone who was written so far and has not left."""
        here = np.flatnonzero((self._changes > 0) & ~self._is_gone).tolist()
        return {
            key_of(one): value_of(one, int(self._changes[one]), int(self._cents[one]))
            for one in here
        }

    def _choose(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """First everyone in turn, then by a share that favours the low numbers."""
        skewed = self._random.random(len(numbers)) ** 2 * self.customers
        return np.where(numbers < self.customers, numbers, skewed.astype(np.int64))

    def _values(
        self,
        chosen: npt.NDArray[np.int64],
        leaves: npt.NDArray[np.bool_],
        cents: npt.NDArray[np.int64],
    ) -> list[bytes | None]:
        values: list[bytes | None] = []
        for customer, is_leaving, amount in zip(
            chosen.tolist(), leaves.tolist(), cents.tolist(), strict=True
        ):
            self._changes[customer] += 1
            self._is_gone[customer] = is_leaving
            self._cents[customer] = amount
            change = int(self._changes[customer])
            values.append(None if is_leaving else value_of(customer, change, amount))
        return values


def _batch(
    chosen: npt.NDArray[np.int64],
    values: list[bytes | None],
    times: npt.NDArray[np.int64],
    here: npt.NDArray[np.int64],
) -> bytes:
    return build_batch_from_columns(
        BinaryColumn.of([key_of(one) for one in chosen[here].tolist()]),
        BinaryColumn.of([values[one] for one in here.tolist()]),
        times[here],
        codec=Codec.LZ4,
    )
