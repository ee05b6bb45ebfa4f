"""A reader that goes through the cold tier and then through the local log sees the last state.

The history is a plain list of batches. The cold part is an exact prefix of it, perhaps compacted
below an offset as hard as the rules allow; the local log is cleaned under the border and loses its
beginning to the cold part. Whatever the order, a reader finds what it would have in the history.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cleaning_bench import RETENTION_MS, CleaningBench, compacted, fold
from tests.support.evictions import evict_local_segments
from tests.support.log_model import StoredBatch, filter_committed, read_committed, split_batches
from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.remote_tier import NoRemoteTier, RemoteBounds
from varve.cleaning.removals.audit import audit_partition
from varve.commit_log import TopicPartition
from varve.commit_log.names import LOG
from varve.commit_log.transaction_index import AbortedTransaction
from varve.records import Record

Step = tuple[str, int, int]

puts = st.tuples(st.just("put"), st.integers(0, 2), st.integers(0, 2))
transactions = st.tuples(st.just("transact"), st.integers(0, 2), st.integers(0, 3))
ends = st.tuples(st.just("end"), st.integers(0, 1), st.integers(0, 1))
aborts = st.tuples(st.just("abort"), st.integers(0, 2), st.integers(0, 2))
rounds = st.tuples(st.just("round"), st.integers(0, 3), st.just(0))
others = st.tuples(
    st.sampled_from(["roll", "copy", "clean", "advance", "move", "compact", "reopen"]),
    st.integers(0, 3),
    st.just(0),
)
steps = st.one_of(puts, transactions, ends, aborts, rounds, others)


@dataclass
class TwoTiers(NoRemoteTier):
    """The local log on a bench, and its cold part as lists."""

    hot: CleaningBench = field(
        default_factory=lambda: CleaningBench(settings=compacted(remote_storage_enable=True))
    )
    remote: list[StoredBatch] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    copied_offset: int = 0
    cleaned_up_to: int = 0

    def __post_init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        self.hot.cleaner = LogCleaner(self.hot.store, clock=self.hot.clock, remote=self)

    def bounds(self, partition: TopicPartition) -> RemoteBounds:
        return RemoteBounds(self.copied_offset, self.cleaned_up_to)

    def do(self, step: Step) -> None:
        hot = self.hot
        match step:
            case ("put", key, kind):
                hot.put(f"key-{key}", None if kind == 0 else f"at {hot.log.end_offset}")
            case ("transact", key, kind):
                value = None if kind == 0 else f"at {hot.log.end_offset}"
                hot.put(f"key-{key}", value, producer_id=kind % 2, transactional=True)
            case ("end", producer_id, is_committed):
                if producer_id in hot.history.producers():
                    hot.end_transaction(producer_id, committed=bool(is_committed))
            case ("abort", key, between):
                self.abort(key, between)
            case ("round", back, _):
                self.go_round(back)
            case ("roll", _, _):
                hot.roll()
            case ("copy", _, _):
                self.copy()
            case ("clean", _, _):
                hot.clean()
            case ("advance", _, _):
                hot.advance(RETENTION_MS + 1)
            case ("move", back, _):
                self.move(back)
            case ("compact", back, _):
                self.compact(back)
            case _:
                hot.reopen()
                self.connect()

    def abort(self, key: int, between: int) -> None:
        """A transaction over several segments that comes to nothing."""
        self.hot.put(f"key-{key}", "void", producer_id=2, transactional=True)
        for _ in range(between):
            self.hot.roll()
            self.hot.put(f"key-{key}", "void", producer_id=2, transactional=True)
        self.hot.roll()
        self.hot.end_transaction(2, committed=False)
        self.hot.put("filler", "soon stale, so that the segment of the marker is rewritten")

    def go_round(self, back: int) -> None:
        """What happens to everything in the end, as far as open transactions allow."""
        self.hot.put("filler", "newest")
        self.hot.roll()
        self.copy()
        self.move(back)
        for _ in range(2):
            self.hot.clean()
            self.check()
            self.hot.advance(RETENTION_MS + 1)

    def copy(self) -> None:
        """Copies all that is closed and decided."""
        log = self.hot.log
        bases = [segment.base_offset for segment in log.view]
        for segment, end in zip(log.view.closed, bases[1:], strict=True):
            if end <= self.copied_offset:
                continue
            if end > log.last_stable_offset:
                return
            data = self.hot.disk.read(segment.path(LOG))[: segment.size]
            self.remote += [StoredBatch.of(one) for one in split_batches(data)]
            self.aborted += segment.txn_index().entries()
            self.copied_offset = end
        copied = [one for one in self.hot.history.batches if one.last_offset < self.copied_offset]
        if not self.cleaned_up_to:
            assert self.remote == copied, "what is copied was never compacted"

    def move(self, back: int) -> None:
        """Takes copied segments from the local disk; `back` of them stay."""
        log = self.hot.log
        bases = [one.base_offset for one in log.view if one.base_offset <= self.copied_offset]
        if len(bases) > back:
            evidence = self.hot.cleaner.removals.get(log)
            evict_local_segments(log, bases[len(bases) - 1 - back], self.hot.now_ms, evidence)

    def compact(self, back: int) -> None:
        """Compacts the cold part: below an offset only the last values stay, and nothing else."""
        ends = sorted({batch.last_offset + 1 for batch in self.remote})
        if len(ends) <= back:
            return
        self.cleaned_up_to = max(self.cleaned_up_to, ends[len(ends) - 1 - back])
        limit = self.cleaned_up_to
        committed = self.hot.history.committed_records(self.hot.log.last_stable_offset)
        table = fold(record for record in committed if record.offset < limit)
        kept = {record.offset for record in table.values()}
        self.remote = [
            batch
            for batch in self.remote
            if batch.last_offset >= limit or any(one.offset in kept for one in batch.records)
        ]
        self.aborted = [one for one in self.aborted if one.last_offset >= limit]

    def check(self) -> None:
        log = self.hot.log
        starts = [one.base_offset for one in log.view if one.base_offset <= self.copied_offset]
        for local_start in starts:
            for known_offset in (local_start, self.copied_offset):
                self.check_committed(local_start, known_offset)
            self.check_uncommitted(local_start)

    def check_committed(self, local_start: int, known_offset: int) -> None:
        """`known_offset` is where the cold part ended when its reader last looked."""
        log = self.hot.log
        batches = [one.data for one in self.remote if one.last_offset < local_start]
        known = [one for one in self.aborted if one.last_offset < known_offset]
        known += [one for one in log.aborted_transactions() if one.last_offset >= local_start]
        ranges = {(one.producer_id, one.first_offset) for one in known}
        records = filter_committed(batches, [one for one in ranges if one[1] < local_start])
        records += read_committed(log, start_offset=local_start)
        assert fold(records) == self.true_state()

    def check_uncommitted(self, local_start: int) -> None:
        """Records of aborted and open transactions may show; they change nothing for others."""
        log = self.hot.log
        decided = self.hot.history.committed_records(log.last_stable_offset)
        offsets = {record.offset for record in decided}
        shown = [batch for batch in self.remote if batch.last_offset < local_start]
        shown += [StoredBatch.of(one) for one in read_from(self.hot, local_start)]
        records = [
            record
            for batch in shown
            if not batch.is_marker
            for record in batch.records
            if record.offset in offsets
        ]
        assert fold(records) == self.true_state()

    def true_state(self) -> dict[bytes, Record]:
        return fold(self.hot.history.committed_records(self.hot.log.last_stable_offset))


def read_from(hot: CleaningBench, start_offset: int) -> list[bytes]:
    found: list[bytes] = []
    offset = start_offset
    while len((fetched := hot.log.read(start_offset=offset, max_bytes=700)).data):
        found += split_batches(fetched.data)
        offset = fetched.next_offset
    return found


@settings(max_examples=50, deadline=None)
@given(st.lists(steps, min_size=5, max_size=30))
def test_a_reader_of_both_tiers_ends_with_the_state_of_the_history(sequence: list[Step]) -> None:
    tiers = TwoTiers()
    for step in sequence:
        tiers.do(step)
        if step[0] in ("clean", "move", "compact", "reopen"):
            tiers.check()
    tiers.go_round(1)
    report = audit_partition(tiers.hot.disk, tiers.hot.log.directory, deep=True)
    assert report.is_clean, report.findings
