"""The keyed stream of `varve demo`: every record follows from the seed and its number."""

from typing import Final

from varve.records import Record

TOPIC: Final = "demo"
PARTITION_COUNT: Final = 2
SETTINGS: Final = {"segment.bytes": 500_000}
BLOCK_RECORDS: Final = 100

_CUSTOMERS: Final = 5_000
_MIX: Final = 0x9E3779B97F4A7C15
_START_MS: Final = 1_767_225_600_000  # 2026-01-01
_STEP_MS: Final = 250
_ITEMS: Final = ("anchor", "basket", "candle", "drum", "easel", "flute", "globe", "hammock")


def record_at(seed: int, number: int) -> Record:
    """The order with this number."""
    mixed = (number + seed + 1) * _MIX & 0xFFFFFFFFFFFFFFFF
    mixed ^= mixed >> 29
    customer = mixed % _CUSTOMERS
    item = _ITEMS[mixed >> 32 & 7]
    value = (
        f'{{"order": {number}, "customer": {customer}, "item": "{item}", '
        f'"pieces": {1 + (mixed >> 40) % 9}, "cents": {100 + (mixed >> 16) % 90_000}}}'
    )
    return Record(
        key=b"customer-%d" % customer,
        value=value.encode(),
        timestamp=_START_MS + number * _STEP_MS,
    )
