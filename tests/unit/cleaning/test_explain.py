"""Why a segment, a record or a key is still here, and when it can go."""

import json
from typing import Any

import pytest

from tests.support.log_bench import DIRECTORY, NOW_MS, Bench, make_batch, split_batches
from varve.cleaning.explain import (
    ExplainContext,
    explain_key,
    explain_log,
    explain_offset,
)
from varve.cleaning.explanation import Blocker, RecordState, RemovalPath
from varve.cleaning.key_index.segment_indexes import HeldSegment
from varve.cleaning.retention.rules import BlockingRule
from varve.commit_log import Isolation
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import OffsetOutOfRange
from varve.records import Record, build_batch

DAY = 86_400_000
HOUR = 3_600_000


class Asked(Bench):
    """A log to ask about, with a look-up that scans it."""

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def put(self, key: str | None, value: str | None = "value", **batch: Any) -> int:
        record = Record(
            None if key is None else key.encode(),
            None if value is None else value.encode(),
            timestamp=self.now_ms,
        )
        return self.log.append(build_batch([record], **batch)).base_offset

    def find_latest(self, key: bytes, below: int) -> Record | None:
        found = None
        offset = self.log.log_start_offset
        while offset < below:
            fetched = self.log.read(start_offset=offset, isolation=Isolation.LOG_END)
            for batch in split_batches(fetched.data):
                for record in batch.records():
                    if record.key == key and record.offset < below:
                        found = record
            if fetched.next_offset == offset:
                break
            offset = fetched.next_offset
        return found

    def know(self, **known: Any) -> ExplainContext:
        return ExplainContext(**{"find_latest": self.find_latest, **known})

    def explain(self, offset: int, **known: Any) -> Any:
        return explain_offset(self.log, offset, self.now_ms, self.know(**known))

    def segment(self, offset: int, **known: Any) -> Any:
        explained = explain_log(self.log, self.now_ms, self.know(**known))
        return [one for one in explained if one.base_offset <= offset][-1]


def make(**settings: Any) -> Asked:
    clock = ManualClock(NOW_MS)
    bench = Asked(MemoryFileSystem(clock), clock)
    bench.set(**settings).open()
    return bench


@pytest.fixture
def compacted() -> Asked:
    return make(cleanup_policy=("compact",))


def rules(way: RemovalPath | None) -> list[BlockingRule]:
    assert way is not None
    return [block.rule for block in way.blocks]


# Retention


def test_a_young_segment_tells_when_it_will_go() -> None:
    bench = make()
    bench.fill(1, 1)
    found = bench.segment(0)
    assert found.earliest_ms == NOW_MS + 7 * DAY + 1
    assert rules(found.retention) == [BlockingRule.RETENTION_TIME]
    assert (found.base_offset, found.next_offset, found.is_active) == (0, 1, False)
    assert found.compaction is None
    bench.clock.advance(8 * DAY)
    found = bench.segment(0)
    assert (found.earliest_ms, found.retention.blocks) == (bench.now_ms, ())


def test_an_absurd_timestamp_is_told_apart() -> None:
    bench = make()
    bench.fill(1, time=900 * DAY)
    found = bench.segment(0)
    assert found.age_from.is_rejected
    assert found.max_timestamp == NOW_MS + 900 * DAY
    assert found.earliest_ms == NOW_MS + 7 * DAY + 1


def test_a_record_goes_with_its_segment_where_nothing_is_compacted() -> None:
    bench = make()
    bench.fill(2)
    found = bench.explain(1)
    assert (found.state, found.compaction) == (RecordState.PLAIN, None)
    assert found.earliest_ms == NOW_MS + 7 * DAY + 1
    assert (found.key, found.timestamp, found.is_tombstone) == (b"key", NOW_MS, False)


def test_what_the_high_watermark_keeps() -> None:
    bench = make()
    bench.is_alone = False
    bench.open()
    bench.fill(1)
    found = bench.segment(0)
    assert (found.earliest_ms, rules(found.retention)) == (None, [BlockingRule.HIGH_WATERMARK])


def test_compaction_alone_deletes_nothing_by_age(compacted: Asked) -> None:
    compacted.put("a")
    assert rules(compacted.segment(0).retention) == [BlockingRule.POLICY]


def test_all_segments_are_explained_at_once() -> None:
    bench = make()
    bench.fill(1, 1, 1)
    found = explain_log(bench.log, bench.now_ms)
    assert found == [bench.segment(offset) for offset in range(3)]


# Compaction of segments


def test_the_active_segment_is_cleaned_after_it_rolled(compacted: Asked) -> None:
    compacted.put("a")
    found = compacted.segment(0)
    assert rules(found.compaction) == [BlockingRule.ACTIVE_SEGMENT]
    assert found.earliest_ms == NOW_MS + 7 * DAY


def test_an_open_transaction_is_named_with_its_producer(compacted: Asked) -> None:
    compacted.put("a")
    compacted.put("a", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    compacted.log.roll()
    found = compacted.segment(0)
    assert rules(found.compaction) == [BlockingRule.OPEN_TRANSACTION]
    assert "producer 7 is undecided since offset 1" in found.compaction.blocks[0].text
    assert found.compaction.earliest_ms is None
    compacted.log.end_transaction(producer_id=7, producer_epoch=0, committed=True)
    assert rules(compacted.segment(0).compaction) == []


def test_a_young_segment_is_protected_until_its_lag_is_over() -> None:
    bench = make(cleanup_policy=("compact",), min_compaction_lag_ms=DAY)
    bench.put("a")
    bench.log.roll()
    bench.clock.advance(HOUR)
    found = bench.segment(0)
    assert found.compaction.blocks[0].rule is BlockingRule.MIN_COMPACTION_LAG
    assert found.compaction.earliest_ms == NOW_MS + DAY
    bench.clock.advance(DAY)
    assert rules(bench.segment(0).compaction) == []


def test_a_log_too_clean_tells_its_figures() -> None:
    bench = make(cleanup_policy=("compact",), max_compaction_lag_ms=10 * DAY)
    for _ in range(3):
        bench.put("a")
        bench.log.roll()
    size = bench.log.view.closed[0].size
    found = bench.segment(0, first_dirty_offset=2)
    assert rules(found.compaction) == [BlockingRule.DIRTY_RATIO]
    assert f"{size} of {3 * size} bytes are dirty, a ratio of 0.333" in (
        found.compaction.blocks[0].text
    )
    assert found.compaction.earliest_ms == NOW_MS + 10 * DAY + 1
    assert found.dirty_ratio == pytest.approx(1 / 3)


def test_a_clean_segment_with_little_stale_in_it_is_not_rewritten(compacted: Asked) -> None:
    compacted.put("a")
    for _ in range(3):
        compacted.log.roll()
        compacted.put("a")
    compacted.log.roll()

    def block(stale: int) -> list[BlockingRule]:
        known = {"first_dirty_offset": 1, "stale_bytes": {0: stale}}
        return rules(compacted.segment(0, **known).compaction)

    size = compacted.log.view.closed[0].size
    assert block(0) == [BlockingRule.NOTHING_STALE]
    assert block(1) == [BlockingRule.STALE_SHARE]
    assert block(size // 2) == []


def test_a_held_segment_says_so(compacted: Asked) -> None:
    compacted.put("a")
    compacted.log.roll()
    hold = HeldSegment(0, 80, None, "bad checksum", NOW_MS, 3, NOW_MS + HOUR)
    found = compacted.segment(0, holds=(hold,))
    assert found.compaction.blocks == (
        Blocker(
            BlockingRule.HELD, "held after 3 attempts, it is damaged: bad checksum", NOW_MS + HOUR
        ),
    )
    assert found.compaction.earliest_ms == NOW_MS + HOUR


# Records of a compacted topic


def test_the_newest_value_of_a_key_stays(compacted: Asked) -> None:
    compacted.put("a")
    compacted.put("b")
    compacted.log.roll()
    found = compacted.explain(1)
    assert found.state is RecordState.NEWEST
    assert (found.earliest_ms, rules(found.compaction)) == (None, [BlockingRule.NEWEST_VALUE])


def test_a_superseded_record_names_its_successor_and_goes(compacted: Asked) -> None:
    compacted.put("a")
    compacted.put("a")
    compacted.log.roll()
    found = compacted.explain(0)
    assert (found.state, found.superseded_by) == (RecordState.SUPERSEDED, 1)
    assert (found.earliest_ms, found.compaction.blocks) == (NOW_MS, ())


def test_a_successor_in_the_active_segment_must_roll_first(compacted: Asked) -> None:
    compacted.put("a")
    compacted.log.roll()
    compacted.clock.advance(HOUR)
    compacted.put("a")
    found = compacted.explain(0)
    assert (found.state, found.superseded_by) == (RecordState.SUPERSEDED, 1)
    assert rules(found.compaction) == [BlockingRule.ACTIVE_SEGMENT]
    assert found.compaction.blocks[0].text.startswith("offset 1 replaces it, but:")
    assert found.earliest_ms == NOW_MS + HOUR + 7 * DAY


def test_a_deleted_record_goes_whatever_the_share(compacted: Asked) -> None:
    compacted.put("a")
    compacted.log.roll()
    compacted.put("a", None)
    compacted.log.roll()
    compacted.put("b")
    known = {"first_dirty_offset": 1, "stale_bytes": {0: 1}}
    assert BlockingRule.STALE_SHARE not in rules(compacted.explain(0, **known).compaction)


def test_a_tombstone_waits_for_its_horizon(compacted: Asked) -> None:
    compacted.put("a", None)
    compacted.log.roll()
    found = compacted.explain(0)
    assert (found.state, found.is_tombstone) == (RecordState.TOMBSTONE, True)
    assert rules(found.compaction) == [BlockingRule.DELETE_HORIZON]
    assert found.earliest_ms == NOW_MS + DAY
    assert found.delete_horizon_ms is None


def test_a_horizon_that_a_cleaning_has_set_is_told() -> None:
    bench = make(cleanup_policy=("compact",))
    bench.put("a", None)
    bench.log.close()
    _stamp_horizon(bench, NOW_MS + HOUR)
    bench.open(clean=True, recovery_point=1)
    bench.log.roll()
    found = bench.explain(0)
    assert found.delete_horizon_ms == NOW_MS + HOUR
    assert found.earliest_ms == NOW_MS + HOUR


def _stamp_horizon(bench: Bench, horizon_ms: int) -> None:
    with bench.fs.open_writable(f"{DIRECTORY}/{0:020d}.log") as file:
        file.write_at(21, (0x40).to_bytes(2, "big"))
        file.write_at(27, horizon_ms.to_bytes(8, "big"))


def test_records_of_transactions_are_told_apart(compacted: Asked) -> None:
    sent: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    compacted.put("a", base_sequence=0, **sent)
    compacted.log.end_transaction(producer_id=7, producer_epoch=0, committed=False)
    compacted.put("a", base_sequence=1, **sent)
    compacted.log.roll()
    states = [compacted.explain(offset).state for offset in range(3)]
    assert states == [RecordState.ABORTED, RecordState.CONTROL, RecordState.UNDECIDED]
    assert compacted.explain(0).producer_id == 7
    assert BlockingRule.OPEN_TRANSACTION in rules(compacted.explain(0).compaction)


def test_a_record_without_a_key_goes_with_the_next_cleaning() -> None:
    bench = make()
    bench.put(None)
    bench.set(cleanup_policy=("compact",)).reopen()
    bench.log.roll()
    found = bench.explain(0)
    assert (found.state, found.key, found.earliest_ms) == (RecordState.NO_KEY, None, NOW_MS)


def test_without_a_look_up_nobody_can_tell(compacted: Asked) -> None:
    compacted.put("a")
    compacted.log.roll()
    found = compacted.explain(0, find_latest=None)
    assert (found.state, rules(found.compaction)) == (RecordState.UNKNOWN, [BlockingRule.UNKNOWN])


def test_what_is_below_the_log_start_or_a_hole_is_said() -> None:
    bench = make()
    bench.fill(3)
    bench.log.delete_records(2)
    found = bench.explain(1)
    assert found.state is RecordState.BELOW_LOG_START
    assert found.segment is not None
    batch = bytearray(make_batch(2))
    batch[0:8] = (9).to_bytes(8, "big")
    bench.is_alone = False
    bench.open()
    bench.log.append_replicated(bytes(batch))
    assert bench.explain(5).state is RecordState.REMOVED


@pytest.mark.parametrize("offset", [-1, 2, 99])
def test_an_offset_that_no_record_has_is_refused(compacted: Asked, offset: int) -> None:
    compacted.put("a")
    compacted.put("a")
    with pytest.raises(OffsetOutOfRange, match="use one of these"):
        compacted.explain(offset)


def test_a_key_is_explained_by_its_newest_record(compacted: Asked) -> None:
    for value in ("1", "2"):
        compacted.put("a", value)
    compacted.put("b")
    found = explain_key(compacted.log, b"a", compacted.now_ms, compacted.know())
    assert found is not None
    assert (found.offset, found.state) == (1, RecordState.NEWEST)
    assert explain_key(compacted.log, b"c", compacted.now_ms, compacted.know()) is None


def test_an_answer_becomes_json(compacted: Asked) -> None:
    compacted.put("a")
    compacted.log.append(build_batch([Record(b"\xff\x00", b"x")]))
    document = json.loads(json.dumps(compacted.explain(1).to_json()))
    assert document["key"] == "0xff00"
    assert document["partition"] == document["segment"]["partition"] == "topic-0"
    assert document["compaction"]["blocks"][0]["rule"] == "newest value of its key"
    assert document["segment"]["compaction"]["blocks"][0]["rule"] == "active segment"
