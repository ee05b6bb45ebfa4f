"""Compaction with an end: shopping carts, the latest of each, as long as somebody touches them.

`python examples/topic_classes/compact_delete.py` lives through three years and prints what is kept.
"""

from collections.abc import Iterator
from typing import NamedTuple

from varve.testing import VirtualStore

DAY_MS = 86_400_000

SETTINGS: dict[str, str | int] = {
    "cleanup.policy": "compact,delete",
    "retention.ms": 90 * DAY_MS,
    "segment.ms": 7 * DAY_MS,
    "segment.bytes": 4_096,
    "delete.retention.ms": 7 * DAY_MS,
}

Touched = dict[str, int]


class Quarter(NamedTuple):
    quarter: int
    log_start: int
    end: int
    kept: int
    hot_bytes: int
    oldest_days: float


def live(kit: VirtualStore, touched: Touched, *, quarters: int) -> Iterator[Quarter]:
    """Carts are filled for a few weeks and then forgotten; `touched` has when each was last."""
    carts = kit.store.create_topic("carts", settings=SETTINGS)
    for week in range(13 * quarters):
        for change in range(40):
            key = f"cart-{week * 4 + change * 7 % 20}"
            touched[key] = carts.append(key=key, value=f"{change} apples").timestamp
        kit.advance(days=7)
        kit.run_background()
        if week % 13 == 12:
            carts = kit.store.topic("carts")
            records = list(carts.read())
            oldest = min(record.timestamp for record in records)
            yield Quarter(
                week // 13 + 1,
                carts.offsets().log_start,
                carts.offsets().end,
                len(records),
                carts.partition().log.size,
                (kit.now_ms - oldest) / DAY_MS,
            )


def main() -> None:
    print("quarter  log start    end  kept  hot bytes  oldest, days")
    with VirtualStore() as kit:
        for at in live(kit, {}, quarters=12):
            print(
                f"{at.quarter:7}  {at.log_start:9}  {at.end:5}  {at.kept:4}  {at.hot_bytes:9}"
                f"  {at.oldest_days:12.1f}"
            )


if __name__ == "__main__":
    main()
