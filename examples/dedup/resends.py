"""Tills that send a sale again until they are answered, and a topic that has each sale once.

`python examples/dedup/resends.py` lives through ten hours. In the fourth the power fails in the
middle of a run, before the seventh the directory of the ids is lost; the topic shows neither.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from varve.dedup import Deduplicator
from varve.dedup.rules import Counts, DedupRules, parse_id_source
from varve.testing import VirtualStore

MINUTE_MS = 60_000

RULES = DedupRules(
    by=parse_id_source("key"),
    before_ms=15 * MINUTE_MS,
    after_ms=15 * MINUTE_MS,
    lateness_ms=30 * MINUTE_MS,
)
SALES_PER_HOUR = 60
POWER_FAILS, STATE_IS_LOST = 4, 7


class Hour(NamedTuple):
    hour: int
    sent: int
    kept: int
    duplicates: int
    late: int
    in_topic: int


def send(kit: VirtualStore, hour: int, source: random.Random) -> int:
    """An hour of sales, one a minute, each sent one to four times; tells how many records."""
    topic = kit.store.topic("tills")
    sent = 0
    for number in range(SALES_PER_HOUR):
        sale, sold_ms = f"sale-{hour}-{number}", kit.now_ms
        for _ in range(source.randrange(1, 5)):
            delay_ms = source.randrange(10 * MINUTE_MS)
            topic.append(key=sale, value=f"till {number % 5}", timestamp_ms=sold_ms + delay_ms)
            sent += 1
        kit.advance(minutes=1)
    topic.flush()
    return sent


def run(kit: VirtualStore, state: str) -> Counts:
    """Takes what is there; tells the counts of the deduplication's whole life."""
    opened = Deduplicator.open(
        kit.store, "tills", "sales", RULES, state=state, clock=kit.clock, thread_count=1
    )
    with opened as dedup:
        dedup.run_once()
        return dedup.states()[0].counts


def live(kit: VirtualStore, state: str, *, hours: int) -> Iterator[Hour]:
    """Tells after every hour what has been sent so far, and what became of it."""
    source = random.Random(1)
    kit.store.create_topic("tills")
    sent = 0
    for hour in range(1, hours + 1):
        sent += send(kit, hour, source)
        if hour == POWER_FAILS:
            with kit.crash_at(60):
                run(kit, state)
            kit.reopen()
        if hour == STATE_IS_LOST:
            shutil.rmtree(state)
        counts = run(kit, state)
        sales = kit.store.topic("sales").read(isolation="read_committed")
        yield Hour(hour, sent, counts.kept, counts.duplicates, counts.late, sum(1 for _ in sales))


def main() -> None:
    print("hour   sent   kept  duplicates   late  in the topic")
    with VirtualStore() as kit, tempfile.TemporaryDirectory() as root:
        for at in live(kit, f"{root}/state", hours=10):
            print(
                f"{at.hour:4}  {at.sent:5}  {at.kept:5}  {at.duplicates:10}  {at.late:5}"
                f"  {at.in_topic:12}"
            )


if __name__ == "__main__":
    main()
