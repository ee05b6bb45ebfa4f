"""A compacted topic in two tiers: prices, the current ones at hand, every former one in the bucket.

`python examples/topic_classes/compact_tiered.py` lives through five years and prints what is kept
where.
"""

from collections.abc import Iterator
from typing import NamedTuple

from varve.testing import VirtualStore

DAY_MS = 86_400_000

SETTINGS: dict[str, str | int] = {
    "cleanup.policy": "compact",
    "remote.storage.enable": True,
    "local.retention.ms": 365 * DAY_MS,
    "segment.ms": 7 * DAY_MS,
    "max.compaction.lag.ms": 30 * DAY_MS,
    "delete.retention.ms": 7 * DAY_MS,
}

Prices = dict[str, str | None]


class Year(NamedTuple):
    year: int
    local_start: int
    end: int
    hot_records: int
    hot_bytes: int
    cold_records: int
    cold_bytes: int


def live(kit: VirtualStore, prices: Prices, *, years: int) -> Iterator[Year]:
    """Half of the changes are of articles that come once and stay as they are."""
    kit.store.create_topic("prices", settings=SETTINGS)
    number = 0
    for year in range(years):
        for _ in range(26):
            for _ in range(12):
                key = f"article-{number if number % 2 else number * 5 % 31}"
                prices[key] = None if number % 17 == 16 else f"{100 + number % 60} cents"
                kit.store.topic("prices").append(key=key, value=prices[key])
                number += 1
            kit.advance(days=14)
            kit.run_background()
        yield look(kit, year + 1)


def look(kit: VirtualStore, year: int) -> Year:
    topic = kit.store.topic("prices")
    status = kit.store.tier.status(*kit.store.partitions("prices"))
    offsets = topic.offsets()
    return Year(
        year,
        offsets.local_start,
        offsets.end,
        sum(1 for _ in topic.read(start=offsets.local_start)),
        status.local_bytes,
        sum(1 for _ in topic.read(end=offsets.local_start)),
        status.remote_bytes or 0,
    )


def main() -> None:
    print("year  local start   end  hot records  hot bytes  cold records  cold bytes")
    with VirtualStore() as kit:
        for at in live(kit, {}, years=5):
            print(
                f"{at.year:4}  {at.local_start:11}  {at.end:4}  {at.hot_records:11}"
                f"  {at.hot_bytes:9}  {at.cold_records:12}  {at.cold_bytes:10}"
            )


if __name__ == "__main__":
    main()
