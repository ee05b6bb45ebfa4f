"""An event stream: page views that matter for a week, on the local disk alone.

`python examples/topic_classes/event_stream.py` lives through two years and prints what is kept.
"""

from collections.abc import Iterator
from typing import NamedTuple

from varve.testing import VirtualStore

DAY_MS = 86_400_000

SETTINGS: dict[str, str | int] = {
    "cleanup.policy": "delete",
    "retention.ms": 7 * DAY_MS,
    "segment.ms": DAY_MS,
}


class Quarter(NamedTuple):
    quarter: int
    log_start: int
    end: int
    hot_bytes: int
    oldest_days: float


def live(kit: VirtualStore, *, quarters: int) -> Iterator[Quarter]:
    """Fifty views a day, twice as many at the end; tells after every quarter what is kept."""
    views = kit.store.create_topic("views", settings=SETTINGS)
    for quarter in range(quarters):
        for day in range(91):
            rate = 50 + 50 * quarter // quarters
            views.append_many(
                (f"visitor-{one % 9}", f"GET /page/{day}/{one}") for one in range(rate)
            )
            kit.advance(days=1)
            kit.run_background()
        views = kit.store.topic("views")
        oldest = next(views.read())
        yield Quarter(
            quarter + 1,
            views.offsets().log_start,
            views.offsets().end,
            views.partition().log.size,
            (kit.now_ms - oldest.timestamp) / DAY_MS,
        )


def main() -> None:
    print("quarter  log start      end  hot bytes  oldest, days")
    with VirtualStore() as kit:
        for at in live(kit, quarters=8):
            print(
                f"{at.quarter:7}  {at.log_start:9}  {at.end:7}  {at.hot_bytes:9}"
                f"  {at.oldest_days:12.1f}"
            )


if __name__ == "__main__":
    main()
