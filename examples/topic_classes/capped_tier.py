"""Telemetry in two tiers under a cap: as much history as the budget pays for, at any rate.

`python examples/topic_classes/capped_tier.py` lives through three years and prints what is kept
where.
"""

from collections.abc import Iterator
from typing import NamedTuple

from varve.testing import VirtualStore

DAY_MS = 86_400_000

SETTINGS: dict[str, str | int] = {
    "cleanup.policy": "delete",
    "retention.ms": -1,
    "retention.bytes": 200_000,
    "remote.storage.enable": True,
    "local.retention.bytes": 20_000,
    "segment.bytes": 5_000,
    "segment.ms": 7 * DAY_MS,
}


class Quarter(NamedTuple):
    quarter: int
    log_start: int
    local_start: int
    end: int
    hot_bytes: int
    cold_bytes: int
    bucket_bytes: int
    oldest_days: float


def live(kit: VirtualStore, *, quarters: int) -> Iterator[Quarter]:
    """Readings once a week, more of them each quarter; tells then what is kept where."""
    kit.store.create_topic("readings", settings=SETTINGS)
    for quarter in range(quarters):
        for _ in range(13):
            kit.store.topic("readings").append_many(
                (
                    (f"sensor-{one % 7}", f"{one * 37 % 1000} mW at {kit.now_ms}")
                    for one in range(20 + 10 * quarter)
                ),
                codec="none",
            )
            kit.advance(days=7)
            kit.run_background()
        yield look(kit, quarter + 1)


def look(kit: VirtualStore, quarter: int) -> Quarter:
    readings = kit.store.topic("readings")
    status = kit.store.tier.status(*kit.store.partitions("readings"))
    offsets = readings.offsets()
    oldest = next(readings.read())
    return Quarter(
        quarter,
        offsets.log_start,
        offsets.local_start,
        offsets.end,
        status.local_bytes,
        status.remote_bytes or 0,
        sum(each.size for each in kit.objects.list("") if "/segment/" in each.key),
        (kit.now_ms - oldest.timestamp) / DAY_MS,
    )


def main() -> None:
    print("quarter  log start  local start    end  hot bytes  cold bytes    bucket  oldest, days")
    with VirtualStore() as kit:
        for at in live(kit, quarters=12):
            print(
                f"{at.quarter:7}  {at.log_start:9}  {at.local_start:11}  {at.end:5}"
                f"  {at.hot_bytes:9}  {at.cold_bytes:10}  {at.bucket_bytes:8}"
                f"  {at.oldest_days:12.1f}"
            )


if __name__ == "__main__":
    main()
