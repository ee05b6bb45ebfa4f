"""What the border of the cold tier keeps from local cleaning, and how that is told."""

from dataclasses import dataclass, field

import pytest

from tests.support.cleaning_bench import (
    NOW_MS,
    PARTITION,
    RETENTION_MS,
    TOPIC_ID,
    CleaningBench,
    compacted,
)
from tests.support.log_facts import Piece, make_facts
from tests.support.mark_tables import Mark, make_tables
from varve.cleaning.compaction.cleanable_log import CleaningBound, judge_cleanable
from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.compaction.segment_plan import TransactionTracker
from varve.cleaning.explain import (
    ExplainContext,
    explain_log,
    explain_offset,
)
from varve.cleaning.explanation import RecordState
from varve.cleaning.remote_tier import NoRemoteTier, RemoteBounds
from varve.cleaning.retention.rules import BlockingRule
from varve.commit_log import TopicPartition
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import StoreUnavailable
from varve.foundation.settings import LONG_MAX
from varve.records import Record, build_batch
from varve.records.building import ControlType


@dataclass
class BorderBench(NoRemoteTier, CleaningBench):
    """A cleaning bench whose cleaner keeps to `border`; an error in its place is raised."""

    border: RemoteBounds | StoreUnavailable | None = None
    local_topic: str = ""
    asked: list[TopicPartition] = field(default_factory=list)

    def open(self) -> None:
        super().open()
        self.cleaner = LogCleaner(self.store, clock=self.clock, remote=self)

    def bounds(self, partition: TopicPartition) -> RemoteBounds | None:
        if partition.topic == self.local_topic:
            return None
        self.asked.append(partition)
        if isinstance(self.border, StoreUnavailable):
            raise self.border
        return self.border

    def fill(self, segments: int) -> None:
        """Segments of a value for `a`, and a new key each."""
        for _ in range(segments):
            self.put("a", str(self.log.end_offset))
            self.put(f"own-{self.log.end_offset}", "1")
            self.roll()

    def values(self) -> list[tuple[bytes | None, int]]:
        return [(one.key, one.offset) for one in self.committed()]


def test_only_segments_that_end_before_the_copied_offset_are_cleaned() -> None:
    bench = BorderBench(border=RemoteBounds(copied_offset=5, cleaned_up_to=0))
    bench.fill(4)
    report = bench.clean()
    # Segment 4 reaches from before the copied offset to behind it: it stays as it is.
    assert report.end_offset == 4
    assert report.rewritten == (0,)
    assert [offset for key, offset in bench.values() if key == b"a"] == [2, 4, 6]
    assert "the log from offset 5 on waits for the copy to object storage" in report.note
    bench.border = RemoteBounds(copied_offset=8, cleaned_up_to=0)
    assert bench.clean().end_offset == 8
    assert [offset for key, offset in bench.values() if key == b"a"] == [6]


@pytest.mark.parametrize("limit", [{"local_retention_ms": 1000}, {"local_retention_bytes": 0}])
def test_segments_that_leave_the_local_disk_one_by_one_are_not_joined(
    limit: dict[str, int],
) -> None:
    settings = compacted(remote_storage_enable=True, **limit)
    bench = BorderBench(settings=settings, border=RemoteBounds(copied_offset=8, cleaned_up_to=0))
    bench.fill(4)
    bench.clean()
    assert [one.base_offset for one in bench.log.view.closed] == [0, 2, 4, 6]
    assert [offset for key, offset in bench.values() if key == b"a"] == [6]


def test_segments_are_not_joined_across_the_copied_offset() -> None:
    bench = BorderBench(border=RemoteBounds(copied_offset=20, cleaned_up_to=0))
    bench.fill(16)
    bench.clean()
    bases = [segment.base_offset for segment in bench.log.view]
    assert [base for base in bases if base >= 20] == [20, 22, 24, 26, 28, 30, 32]
    assert len([base for base in bases if base < 20]) < 10


def test_what_was_cleaned_before_it_had_to_wait_stays_clean_and_is_not_touched() -> None:
    bench = BorderBench()
    bench.fill(4)
    bench.clean()
    assert bench.directory.cleaner_offset(PARTITION) == 8
    bench.border = RemoteBounds(copied_offset=2, cleaned_up_to=0)
    bench.fill(2)
    before = bench.segments()
    assert bench.clean().rewritten == ()
    assert bench.segments() == before
    assert bench.directory.cleaner_offset(PARTITION) == 8


def test_tombstones_from_the_cleaned_offset_on_stay_and_get_no_horizon() -> None:
    bench = BorderBench(border=RemoteBounds(copied_offset=100, cleaned_up_to=2))
    for key in ("a", "b"):
        bench.put(key, None)
        bench.put(f"after-{key}", "1")
        bench.roll()
    bench.clean()
    horizons = [batch.delete_horizon_ms for batch in bench.batches() if batch.records]
    assert horizons[0] == NOW_MS + RETENTION_MS
    assert horizons[2] is None
    bench.advance(RETENTION_MS + 1)
    bench.clean()
    assert [key for key, _ in bench.values()] == [b"after-a", b"b", b"after-b"]
    bench.border = RemoteBounds(copied_offset=100, cleaned_up_to=100)
    bench.clean()
    assert b"b" in dict(bench.values())
    bench.advance(RETENTION_MS)
    bench.clean()
    assert b"b" not in dict(bench.values())


def test_a_horizon_set_before_the_topic_was_tiered_does_not_pass() -> None:
    bench = BorderBench()
    bench.put("a", None)
    bench.put("b", "1")
    bench.roll()
    bench.clean()
    bench.border = RemoteBounds(copied_offset=100, cleaned_up_to=0)
    bench.advance(RETENTION_MS + 1)
    bench.clean()
    assert [key for key, _ in bench.values()] == [b"a", b"b"]


@pytest.mark.parametrize("committed", [False, True])
def test_a_marker_outlives_local_data_while_the_tier_may_hold_it(committed: bool) -> None:
    bench = BorderBench(
        compacted(remote_storage_enable=True),
        border=RemoteBounds(copied_offset=100, cleaned_up_to=0),
    )
    bench.put("a", "1", producer_id=7, transactional=True)
    bench.roll()
    bench.end_transaction(7, committed=committed)
    bench.put("b", "1")
    bench.roll()
    bench.log.drop_local_segments_before(1, now_ms=bench.now_ms)
    for _ in range(3):
        bench.clean()
        bench.advance(RETENTION_MS + 1)
    assert [batch.is_control for batch in bench.batches() if batch.records] == [True, False]
    aborted = bench.log.aborted_transactions()
    assert [one.first_offset for one in aborted] == ([] if committed else [0])
    bench.border = RemoteBounds(copied_offset=100, cleaned_up_to=100)
    bench.clean()
    bench.advance(RETENTION_MS + 1)
    bench.clean()
    assert [batch.is_control for batch in bench.batches() if batch.records] == [False]
    assert bench.log.aborted_transactions() == []


@pytest.mark.parametrize(
    ("keep_markers_from_offset", "discardable", "kept"),
    [(10, [True, True, True], []), (6, [True, False, False], [1]), (5, [False] * 3, [0, 1])],
)
def test_a_tracker_keeps_an_aborted_transaction_with_its_marker_from_an_offset_on(
    keep_markers_from_offset: int, discardable: list[bool], kept: list[int]
) -> None:
    aborted = [AbortedTransaction(7, 0, 5, 6), AbortedTransaction(7, 6, 8, 9)]
    marks = [
        Mark(5, 7, ControlType.ABORT),
        Mark(8, 7, ControlType.ABORT),
        Mark(9, 8, ControlType.COMMIT),
    ]
    verdicts = TransactionTracker(aborted, keep_markers_from_offset).judge(
        0, LONG_MAX, *make_tables(0, marks)
    )
    assert verdicts.discardable.tolist() == discardable
    assert verdicts.aborted_kept == [aborted[number] for number in kept]


def test_the_copy_ends_the_cleanable_part_and_counts_in_no_ratio() -> None:
    facts = make_facts(Piece(10, 100), Piece(10, 100), Piece(10, 100), Piece(10, 50))
    found = judge_cleanable(facts, 0, NOW_MS, RemoteBounds(copied_offset=20, cleaned_up_to=0))
    assert (found.blocker, found.first_uncleanable_offset) == (CleaningBound.COPY, 20)
    assert found.blocked_by == "the log from offset 20 on waits for the copy to object storage"
    assert (found.cleanable_bytes, found.ratio) == (200, 1.0)
    everything = judge_cleanable(facts, 0, NOW_MS, RemoteBounds(copied_offset=40, cleaned_up_to=0))
    assert everything.blocker is CleaningBound.ACTIVE_SEGMENT


def test_a_border_that_nobody_can_tell_stops_its_partition_alone() -> None:
    other = TopicPartition("other", 0)
    bench = BorderBench()
    bench.store.create(other, TOPIC_ID)
    log = bench.store.get(other)
    bench.fill(3)
    for _ in range(2):
        log.append(build_batch([Record(b"a", b"1")]))
        log.roll()
    down = StoreUnavailable("s3://bucket cannot be reached")
    bench.border = down
    bench.local_topic = other.topic
    assert [one.partition for one in bench.cleaner.run_once(bench.now_ms)] == [other]
    (health,) = [one for one in bench.cleaner.health() if one.partition == PARTITION]
    assert health.error is not None
    assert health.error.startswith("waits for the object store: StoreUnavailable: s3://bucket")
    assert not health.is_healthy
    with pytest.raises(StoreUnavailable):
        bench.cleaner.clean(PARTITION, bench.now_ms)
    asked = len(bench.asked)
    assert bench.cleaner.run_once(bench.now_ms + 1) == []
    assert len(bench.asked) == asked
    bench.border = RemoteBounds(copied_offset=4, cleaned_up_to=0)
    bench.advance(60_000)
    assert [one.partition for one in bench.cleaner.run_once(bench.now_ms)] == [PARTITION]
    (health,) = [one for one in bench.cleaner.health() if one.partition == PARTITION]
    assert health.is_healthy
    assert health.waits_for == "the log from offset 4 on waits for the copy to object storage"


def test_explanations_name_the_copy_and_the_tier() -> None:
    bench = BorderBench(compacted(remote_storage_enable=True))
    bench.fill(1)
    bench.put("a", None)
    bench.end_transaction(9, committed=True)
    bench.roll()
    bench.fill(1)
    border = RemoteBounds(copied_offset=4, cleaned_up_to=2)
    known = ExplainContext(
        remote_bounds=border, find_latest=lambda key, below: Record(b"a", None, offset=2)
    )
    _, cleanable, waiting, _ = explain_log(bench.log, bench.now_ms, known)
    assert cleanable.compaction is not None
    assert waiting.compaction is not None
    assert BlockingRule.COPY not in [block.rule for block in cleanable.compaction.blocks]
    (block,) = [block for block in waiting.compaction.blocks if block.rule is BlockingRule.COPY]
    assert block.text == "waits for the copy to object storage, which has reached offset 4"
    for offset, state in ((2, RecordState.TOMBSTONE), (3, RecordState.CONTROL)):
        explained = explain_offset(bench.log, offset, bench.now_ms, known)
        assert explained.state is state
        assert explained.compaction is not None
        assert explained.compaction.blocks[-1].rule is BlockingRule.REMOTE_TIER
        assert explained.compaction.blocks[-1].text.startswith(
            "kept for older records in the remote"
        )
    bench.log.drop_local_segments_before(2, now_ms=bench.now_ms)
    explained = explain_offset(bench.log, 1, bench.now_ms, known)
    assert (explained.state, explained.segment) == (RecordState.REMOTE, None)
