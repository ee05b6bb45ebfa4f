"""Deduplications for tests: rules, an input by lot, what a model makes of it, what readers see."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.support.window_dedup import Arrival, DedupModel
from varve.dedup.rules import DedupRules, LatePolicy, NullPolicy, Verdict, parse_id_source
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
class Routed:
    """The values that a partition's output and side topic end with."""

    output: list[bytes | None] = field(default_factory=list)
    side: list[bytes | None] = field(default_factory=list)


def model_of(rules: DedupRules, records: Sequence[Record]) -> Routed:
    """Judges one partition by the plainest model; `rules.late` goes for all three policies."""
    judge, routed = DedupModel(rules), Routed()
    for offset, record in enumerate(records):
        verdict, _ = judge.judge(Arrival(offset, record.key, record.timestamp), NOW_MS)
        if verdict is Verdict.NO_ID:
            is_forwarded = rules.null is NullPolicy.FORWARD
        elif verdict in (Verdict.LATE, Verdict.FUTURE, Verdict.MISSING):
            is_forwarded = rules.late is LatePolicy.FORWARD
            if rules.late is LatePolicy.SIDE:
                routed.side.append(record.value)
        else:
            is_forwarded = verdict is Verdict.KEPT
        if is_forwarded:
            routed.output.append(record.value)
    return routed


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
