"""A deduplication of one partition without its topics: the real judge and store, and a model."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from varve.dedup.id_store import IdStore, KeptRecord
from varve.dedup.ids import Arrivals, Secret, decode_entries, encode_entries, fold_chunk
from varve.dedup.judge import FEW_COUNT_MAX, Judge, Judgement
from varve.dedup.kernels.id_words import Kinds, Words
from varve.dedup.rules import DedupRules, Verdict, parse_id_source
from varve.disk import FileSystem, MemoryFileSystem, RealFileSystem
from varve.foundation.clock import ManualClock
from varve.records import Batch, Record, RecordColumns, build_batch, build_batch_from_columns
from varve.records.columns import BinaryColumn
from varve.rocks.database import Databases, RocksDatabases
from varve.rocks.memory_database import MemoryDatabases

SECRET = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
NOW_MS = 1_800_000_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A record of the partition; `time` is negative where it has none."""

    offset: int
    id: bytes | None
    time: int


def make_rules(
    *, before: int = 10, after: int = 10, lateness: int = 1_000, refresh: bool = False
) -> DedupRules:
    return DedupRules(
        by=parse_id_source("key"),
        before_ms=before,
        after_ms=after,
        lateness_ms=lateness,
        is_refreshing=refresh,
    )


def to_arrivals(arrivals: Sequence[Arrival]) -> Arrivals:
    """Through a batch, as a task reads it."""
    if not arrivals:
        return fold_chunk([], parse_id_source("key"), SECRET)
    base = arrivals[0].offset
    batch = build_batch_from_columns(
        BinaryColumn.of([one.id for one in arrivals]),
        None,
        [max(one.time, -1) for one in arrivals],
        base_offset=base,
        offset_deltas=[one.offset - base for one in arrivals],
    )
    return fold_chunk([Batch(batch).columns()], parse_id_source("key"), SECRET)


def to_changelog(entries: Arrivals) -> RecordColumns:
    """Entries as the records of the changelog that a task reads."""
    made = encode_entries(entries)
    batch = build_batch_from_columns(made.keys, made.values, made.timestamps)
    return Batch(batch).columns()


@dataclass
class DedupModel:
    """What the rules say, record by record; it remembers every copy for ever.

    It is written from the rules' words alone and shares no code with what it judges.
    """

    rules: DedupRules
    stream_time: int = -1
    remembered: dict[bytes, list[tuple[int, set[int]]]] = field(default_factory=dict)
    """Of each id, the times that count and the kept records by which they do."""

    def judge(self, one: Arrival, now_ms: int = NOW_MS) -> tuple[Verdict, set[int]]:
        """What a record is, and the kept records that may be named for it."""
        before_ms = self.stream_time
        is_future = one.time > now_ms + self.rules.max_future_ms
        if one.time >= 0 and not is_future:
            self.stream_time = max(self.stream_time, one.time)
        if one.id is None:
            return Verdict.NO_ID, set()
        if one.time < 0:
            return Verdict.MISSING, set()
        if is_future:
            return Verdict.FUTURE, set()
        if one.time < before_ms - self.rules.lateness_ms:
            return Verdict.LATE, set()
        return self._compare(one.id, one)

    def _compare(self, identity: bytes, one: Arrival) -> tuple[Verdict, set[int]]:
        times = self.remembered.setdefault(identity, [])
        low, high = one.time - self.rules.before_ms, one.time + self.rules.after_ms
        witnesses = {offset for time, offsets in times if low <= time <= high for offset in offsets}
        if not witnesses:
            times.append((one.time, {one.offset}))
            return Verdict.KEPT, set()
        if self.rules.is_refreshing:
            times.append((one.time, witnesses))
        return Verdict.DUPLICATE, witnesses


@dataclass(frozen=True, slots=True)
class Judged:
    """What a record was found to be, and which kept record it was told for it; -1 is none."""

    verdict: Verdict
    witness: int


class DedupBench:
    """A store of ids on one of the engines, and the changelog that it is restored from."""

    def __init__(
        self,
        rules: DedupRules,
        engine: str = "memory",
        *,
        few_count_max: int = FEW_COUNT_MAX,
    ) -> None:
        self.rules = rules
        self.few_count_max = few_count_max
        self.stream_time = -1
        self.whole_from = 0
        self.changelog: list[Arrivals] = []
        self.file_system: FileSystem
        self.databases: Databases
        self._root: str | None = None
        self.directory = "state"
        if engine == "memory":
            self.file_system = MemoryFileSystem(ManualClock(NOW_MS))
            self.databases = self._memory = MemoryDatabases(self.file_system)
        else:
            self._root = tempfile.mkdtemp(prefix="varve-dedup-")
            self.directory = str(Path(self._root) / "state")
            self.file_system = RealFileSystem()
            self.databases = RocksDatabases(memory_bytes=8 << 20)
        self.store = self._open()

    def chunk(self, arrivals: Sequence[Arrival], now_ms: int = NOW_MS) -> list[Judged]:
        """Judges a chunk, commits it to the changelog and remembers it."""
        found = self.judge(arrivals, now_ms, few_count_max=self.few_count_max)
        assert found.counts.total == len(arrivals)
        self.changelog.append(found.new_ids.entries)
        self.stream_time = found.stream_time_after
        self.store.apply(found.new_ids, self.stream_time)
        return [
            Judged(Verdict(verdict), witness)
            for verdict, witness in zip(
                found.verdicts.tolist(), found.witness_offsets.tolist(), strict=True
            )
        ]

    def judge(
        self, arrivals: Sequence[Arrival], now_ms: int = NOW_MS, *, few_count_max: int
    ) -> Judgement:
        """Judges a chunk and changes nothing."""
        judge = Judge(self.rules, self.store, few_count_max=few_count_max)
        chunk = to_arrivals(arrivals)
        return judge.judge(chunk, now_ms, self.stream_time, whole_from_ms=self.whole_from)

    def checkpoint(self) -> None:
        self.store.checkpoint(len(self.changelog))

    def crash(self) -> None:
        """Loses what is not on disk, and restores it from the changelog."""
        self._memory.crash()
        self.store.close()
        self._restore()

    def reopen(self) -> None:
        """Closes, which brings all to the disk whatever the checkpoint says, and restores."""
        self.store.close()
        self._restore()

    def change_rules(self, rules: DedupRules) -> None:
        """Goes on by other rules, as a task does."""
        if rules.lateness_ms != self.rules.lateness_ms:
            self.whole_from = max(self.whole_from, self.stream_time - self.rules.lateness_ms)
        self.rules = rules
        self.reopen()

    def close(self) -> None:
        self.store.close()
        if self._root is not None:
            shutil.rmtree(self._root)

    def _restore(self) -> None:
        self.store = self._open()
        for entries in self.changelog[self.store.changelog_offset or 0 :]:
            if len(entries):
                self.store.restore(decode_entries(to_changelog(entries), "changelog"))
        self.store.maintain(self.stream_time)

    def _open(self) -> IdStore:
        return IdStore.open(
            directory=self.directory,
            rules=self.rules,
            secret=SECRET,
            databases=self.databases,
            file_system=self.file_system,
        )


def fold_id(identity: bytes, secret: Secret) -> tuple[Words, Kinds]:
    """The words and the kind of one id, as columns with one row."""
    columns = Batch(build_batch([Record(identity, b"")])).columns()
    arrivals = fold_chunk([columns], parse_id_source("key"), secret)
    return arrivals.words, arrivals.kinds


def find_kept(store: IdStore, identity: bytes, time_ms: int) -> list[KeptRecord]:
    """The stored times of an id within the window around a time."""
    rules = store.rules
    low, high = time_ms - rules.before_ms, time_ms + rules.after_ms
    words, kinds = fold_id(identity, store.secret)
    first, second = words.view(np.int64)[0].tolist()
    cells = [
        (first, second, int(kinds[0]), number)
        for number in (low // rules.cell_ms, high // rules.cell_ms)
    ]
    spans = [span for cell in cells if (span := store.find_span(cell)) is not None]
    times = {KeptRecord(*pair) for span in spans for pair in (span[:2], span[2:])}
    return sorted(kept for kept in times if low <= kept.time_ms <= high)
