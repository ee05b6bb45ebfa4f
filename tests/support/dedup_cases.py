"""Deduplications for tests: rules, an input by lot, the plainest model, and what readers see.

The model is written from the rules' words alone and shares no code with what it judges.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from varve.dedup.rules import DedupRules, LatePolicy, NullPolicy, parse_id_source
from varve.embedded import Store, Topic
from varve.records import Record, build_batch

NOW_MS: Final = 1_700_000_000_000
SOURCE: Final = "in"
OUTPUT: Final = "out"
SIDE: Final = "aside"


def rules_of(
    *,
    before: int = 1_000,
    after: int = 500,
    lateness: int = 2_000,
    late: LatePolicy = LatePolicy.SIDE,
    null: NullPolicy = NullPolicy.FORWARD,
    refresh: bool = False,
) -> DedupRules:
    return DedupRules(
        by=parse_id_source("key"),
        before_ms=before,
        after_ms=after,
        lateness_ms=lateness,
        late=late,
        future=late,
        missing=late,
        null=null,
        is_refreshing=refresh,
        max_future_ms=3_600_000,
    )


def draw_records(source: random.Random, count: int, *, first: int = 0) -> list[Record]:
    """Copies near and far, late ones, ones from the future, ones without time or key."""
    made = []
    for number in range(first, first + count):
        time = NOW_MS - 10_000_000 + number * 20 + source.randrange(-600, 600)
        lot = source.random()
        if lot < 0.03:
            time -= 60_000
        elif lot < 0.05:
            time = NOW_MS + 9_000_000
        elif lot < 0.06:
            time = -1
        key = None if source.random() < 0.03 else b"id-%d" % source.randrange(count // 3 + 1)
        if key is not None and source.random() < 0.2:
            key += b"-long" * 5
        made.append(Record(key, b"value %d" % number, (("n", b"%d" % number),), timestamp=time))
    return made


@dataclass
class Model:
    """One partition, record by record; remembers everything for ever."""

    rules: DedupRules
    output: list[bytes | None] = field(default_factory=list)
    side: list[bytes | None] = field(default_factory=list)
    stream_time: int = -1
    kept: dict[bytes, list[int]] = field(default_factory=dict)

    def take(self, records: Sequence[Record]) -> None:
        for one in records:
            self._take(one)

    def _take(self, one: Record) -> None:
        rules, time = self.rules, one.timestamp
        before = self.stream_time
        is_future = time > NOW_MS + rules.max_future_ms
        if time >= 0 and not is_future:
            self.stream_time = max(before, time)
        if one.key is None:
            if rules.null is NullPolicy.FORWARD:
                self.output.append(one.value)
        elif time < 0 or is_future or time < before - rules.lateness_ms:
            if rules.late is LatePolicy.FORWARD:
                self.output.append(one.value)
            elif rules.late is LatePolicy.SIDE:
                self.side.append(one.value)
        else:
            times = self.kept.setdefault(one.key, [])
            low, high = time - rules.before_ms, time + rules.after_ms
            is_copy = any(low <= other <= high for other in times)
            if not is_copy or rules.is_refreshing:
                times.append(time)
            if not is_copy:
                self.output.append(one.value)


def model_of(rules: DedupRules, records: Sequence[Record]) -> Model:
    made = Model(rules)
    made.take(records)
    return made


def append(topic: Topic, partition: int, records: Sequence[Record], *, step: int = 7) -> None:
    """Appends in small batches; what has no timestamp gets none."""
    for start in range(0, len(records), step):
        topic.append_batch(build_batch(records[start : start + step]), partition)


def committed(store: Store, topic: str, partition: int = 0) -> list[bytes | None]:
    found = store.topic(topic).partition(partition).read(isolation="read_committed")
    return [one.value for one in found]


def open_transactions(store: Store) -> int:
    return sum(
        len(one.log.open_transactions()) for topic in store.topics() for one in topic.partitions
    )
