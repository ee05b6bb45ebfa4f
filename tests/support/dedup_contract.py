"""A deduplication in memory for the sentences of docs/how-to/deduplicate.md.

Put records, run, see what passed.

A record's value is its number in its partition, so that numbers tell what came out.
"""

import random
from collections.abc import Sequence
from typing import Any, Final

import varve
from tests.support.dedup_cases import (
    NOW_MS,
    OUTPUT,
    SIDE,
    SOURCE,
    committed,
    model_of,
    open_transactions,
)
from varve.dedup import Deduplicator
from varve.dedup.progress import Progress, find_progress
from varve.dedup.rules import Counts, DedupRules, LatePolicy, parse_id_source
from varve.dedup.task import TaskSettings, TaskState
from varve.dedup.topics import DedupTopics
from varve.embedded import Store, Topic
from varve.foundation.clock import ManualClock
from varve.records import Record, build_batch
from varve.rocks.memory_database import MemoryDatabases
from varve.testing.faulty_disk import FaultyFileSystem
from varve.topics import StoreCluster

T: Final = NOW_MS - 1_000_000
"""When most stories begin."""
WINDOW: Final = 10_000
LATENESS: Final = 60_000
STATE: Final = "/d.dedup"


def make_rules(by: str = "key", *, window: int = WINDOW, **more: Any) -> DedupRules:
    """Both sides of the window, unless `before_ms` or `after_ms` say otherwise."""
    given = {"before_ms": window, "after_ms": window, "lateness_ms": LATENESS, **more}
    return DedupRules(by=parse_id_source(by), **given)


class ContractBench:
    """A store, its input, and runs of a deduplication over it."""

    def __init__(
        self,
        rules: DedupRules | None = None,
        *,
        partitions: int = 1,
        fs: FaultyFileSystem | None = None,
        **settings: str,
    ) -> None:
        self.rules = rules or make_rules()
        self.reports: list[TaskState] = []
        self.clock = ManualClock(NOW_MS)
        self.fs = fs or FaultyFileSystem(self.clock)
        self.store = self.open_store()
        if SOURCE not in {one.name for one in self.store.topics()}:
            given = {name.replace("_", "."): value for name, value in settings.items()}
            self.store.create_topic(SOURCE, partitions=partitions, settings=given)

    @classmethod
    def of(cls, rows: Sequence[tuple[bytes | None, int]], **rules: Any) -> "ContractBench":
        """One that has looked at these ids and times, in one partition."""
        made = cls(make_rules(**rules))
        made.put(*rows)
        made.run()
        return made

    @property
    def input(self) -> Topic:
        return self.store.topic(SOURCE)

    def open_store(self) -> Store:
        given = {"fs": self.fs, "clock": self.clock, "random": random.Random(1)}
        store: Store = varve.open("/d", maintain=False, **given)  # type: ignore[arg-type]
        return store

    def put(self, *rows: tuple[bytes | None, int], partition: int = 0) -> None:
        """Records of these keys and times, each a batch of its own."""
        for key, time in rows:
            number = b"%d" % self.input.offsets(partition).end
            self.add(Record(key, number, timestamp=time), partition=partition)

    def add(self, *records: Record, partition: int = 0) -> None:
        """Records as they are, each a batch of its own."""
        for one in records:
            self.input.append_batch(build_batch([one]), partition)

    def open(
        self, rules: DedupRules | None = None, *, state: str = STATE, **more: Any
    ) -> Deduplicator:
        """A deduplication at its start; settings of its tasks, its name or its output."""
        rules = rules or self.rules
        named = {one: more.pop(one) for one in ("name",) if one in more}
        output, source = more.pop("output", OUTPUT), more.pop("source", SOURCE)
        has_side = LatePolicy.SIDE in (rules.late, rules.future, rules.missing)
        return Deduplicator.open(
            self.store,
            source,
            output,
            rules,
            side=SIDE if has_side else None,
            state=state,
            settings=TaskSettings(**more),
            databases=MemoryDatabases(self.fs),
            file_system=self.fs,
            clock=self.clock,
            random=random.Random(2),
            thread_count=1,
            on_progress=self.reports.append,
            **named,
        )

    def run(self, rules: DedupRules | None = None, **more: Any) -> Counts:
        """A start, all that is there, and an end; tells the counts of all partitions."""
        with self.open(rules, **more) as dedup:
            dedup.run_once()
            return sum((one.counts for one in dedup.states()), Counts())

    @classmethod
    def run_on(cls, fs: FaultyFileSystem, rules: DedupRules, **settings: Any) -> "ContractBench":
        """A run over what a disk holds; the store is abandoned where that fails."""
        bench = cls(rules, fs=fs)
        try:
            bench.run(**settings)
        except BaseException:
            bench.store.abandon()
            raise
        return bench

    def check(self, records: Sequence[Record]) -> None:
        """Output and side topic of the first partition have exactly what the model says."""
        model = model_of(self.rules, records)
        assert committed(self.store, OUTPUT) == model.output
        if LatePolicy.SIDE is self.rules.late:
            assert committed(self.store, SIDE) == model.side
        assert open_transactions(self.store) == 0

    def records(
        self, topic: str = OUTPUT, partition: int = 0, *, isolation: str = "read_committed"
    ) -> list[Record]:
        read = self.store.topic(topic).partition(partition).read(isolation=isolation)
        return [Record(one.key, one.value, one.headers, one.timestamp) for one in read]

    def passed(self, topic: str = OUTPUT, partition: int = 0, **more: str) -> list[int]:
        """The numbers of the records that a reader finds."""
        return [int(one.value or b"") for one in self.records(topic, partition, **more)]

    def progress(self, partition: int = 0, name: str = OUTPUT) -> Progress:
        topics = DedupTopics(input=SOURCE, output=OUTPUT, name=name)
        found = find_progress(StoreCluster(self.store).reader(topics.progress), partition)
        assert found is not None, "nothing was committed"
        return found

    def segments(self, partition: int = 0) -> list[str]:
        """The directories of ids on disk."""
        entries = self.fs.scan(f"{STATE}/{OUTPUT}/{partition}")
        return sorted(one.name for one in entries if one.is_directory)

    def lose_state(self) -> None:
        self.fs.remove_tree(STATE)
