"""Compaction of the cold tier: what stays, what goes, and what is told of it: G4, G5."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.remote_compaction import RemoteCompaction
from tests.support.task_runners import InterferingRunner, TravellingRunner
from tests.support.tier_bench import TierBench, tiered
from varve.cleaning.removals.removal import Reason
from varve.foundation.errors import InvalidRequest
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.key_plans import remove_folder
from varve.jobs.tasks import LocalRunner
from varve.records import Record
from varve.tiering.manifest.segment import SegmentState


def make(*segments: int, **settings: Any) -> RemoteCompaction:
    remote = RemoteCompaction(TierBench(tiered(**settings)))
    remote.bench.fill(*segments)
    remote.copy()
    return remote


def test_one_manifest_replaces_what_was_read() -> None:
    remote = make(4, 5, 4)
    version = remote.bench.manifests().load().version
    result = remote.compact()
    manifest = remote.bench.manifests().load()
    assert manifest.version == version + 2, "one announcement, one commit"
    assert manifest.cleaned_up_to == 13 == result.cleaned_up_to
    assert (result.segments_before, result.segments_after) == (3, 2)
    assert result.bytes_after < result.bytes_before
    gone = [one for one in manifest.segments if one.state is SegmentState.DELETE_STARTED]
    assert {one.replaced_until_ms for one in gone} == {remote.hot.now_ms + 5000}
    assert len(gone) == 2
    new, untouched = remote.bench.readable()
    assert (new.key_count, new.stale_bytes, new.record_count) == (1, 0, 1)
    assert (new.base_offset, new.end_offset, untouched.base_offset) == (0, 8, 9)


def test_replaced_objects_go_with_a_run_after_their_time() -> None:
    remote = make(4, 4)
    remote.compact()
    assert remote.compact().swept == 0
    assert remote.pending(SegmentState.DELETE_STARTED) == 1
    remote.hot.advance(5000)
    assert remote.compact().swept == 1
    assert remote.pending(SegmentState.DELETE_STARTED) == 0
    remote.check()
    assert len(remote.bench.segments()) == 2


def test_what_an_undecided_transaction_touches_waits() -> None:
    remote = make(2, 2)
    remote.hot.put("key-0", "open", producer_id=5, transactional=True)
    remote.hot.roll()
    remote.bench.fill(2)
    remote.hot.end_transaction(5, committed=True)
    remote.copy()
    result = remote.compact()
    assert result.cleaned_up_to == 4
    assert "undecided" in result.note
    remote.hot.roll()
    remote.copy()
    assert remote.compact().cleaned_up_to == remote.hot.log.end_offset
    assert remote.state() == remote.true_state()


def test_a_segment_without_a_key_index_gets_one() -> None:
    remote = make(4, cleanup_policy=("delete",))
    assert remote.bench.readable()[0].find_part("keys") is None
    remote.bench.fill(4)
    remote.copy()
    settings = CompactSettings(log=tiered(), is_forced=True, replaced_retention_ms=5000)
    assert remote.compact(settings=settings).records[Reason.SUPERSEDED] == 4
    assert all(one.find_part("keys") is not None for one in remote.bench.segments())
    remote.check()


def test_a_damaged_key_index_is_made_anew() -> None:
    remote = make(4, 4)
    remote.flip(0, "keys", 140)
    assert remote.compact().records[Reason.SUPERSEDED] == 4
    assert remote.state() == remote.true_state()


def test_damaged_data_is_left_alone_and_told() -> None:
    remote = make(4, 4, segment_bytes=600)
    first = remote.bench.readable()[0]
    remote.flip(0, "log")
    remote.bench.bucket.delete([remote.bench.home.part_key(first, "keys")])
    result = remote.compact()
    assert result.held == [0]
    assert result.cleaned_up_to == 0
    assert first.id in {one.id for one in remote.bench.readable()}


def test_damage_that_a_rewrite_meets_holds_that_segment_alone() -> None:
    remote = make(4)
    for number in range(3):
        remote.hot.put(f"key-{number}", "stale")
    remote.hot.put("only", "here")
    remote.hot.roll()
    remote.bench.fill(5, 5)
    remote.copy()
    bad = remote.bench.readable()[1]
    key = remote.flip(1, "log")
    result = remote.compact()
    assert result.error is None
    assert result.held == [bad.base_offset]
    assert "CRC" in result.note
    assert result.cleaned_up_to == bad.base_offset
    assert result.segments_rewritten == 2, "those before and behind it"
    assert bad.id in {one.id for one in remote.bench.readable()}
    remote.check()
    assert remote.flip(1, "log") == key, "the bit is right again"
    assert remote.state() == remote.true_state()
    assert remote.compact().cleaned_up_to == remote.hot.log.end_offset
    assert remote.state() == remote.true_state()
    assert remote.pending(SegmentState.COPY_STARTED) == 0


def test_what_is_not_dirty_enough_waits_unless_forced() -> None:
    remote = make(4, 4, min_cleanable_dirty_ratio=0.6)
    remote.compact()
    remote.bench.fill(1)
    remote.copy()
    calm = replace(remote.settings(), is_forced=False)
    result = remote.compact(settings=calm)
    assert "not due" in result.note
    assert result.segments_rewritten == 0
    assert remote.compact().segments_rewritten > 0


def test_young_records_wait_for_the_lag() -> None:
    remote = make(4, 4, min_compaction_lag_ms=1000)
    result = remote.compact()
    assert result.segments_rewritten == 0
    assert "min.compaction.lag.ms" in result.note
    remote.hot.advance(1001)
    assert remote.compact().records[Reason.SUPERSEDED] == 4


@pytest.mark.parametrize("is_dry_run", [False, True])
def test_a_plan_that_is_put_aside_gives_the_same_and_leaves_nothing(is_dry_run: bool) -> None:
    results = []
    for inline_bytes in (0, 1 << 20):
        remote = make(*[40] * 5)
        remote.range_bytes, remote.inline_bytes = 32 * 10, inline_bytes
        settings = replace(remote.settings(), is_dry_run=is_dry_run)
        results.append(remote.compact(settings=settings).to_json())
        assert remote.state() == remote.true_state()
        remote.check()
    assert results[0] == results[1]


def test_work_that_another_job_removes_fails_the_run_and_the_next_succeeds() -> None:
    remote = make(*[40] * 3)
    remote.inline_bytes = 0

    remote.runner = InterferingRunner(
        lambda: remove_folder(remote.bench.bucket, remote.bench.home.work_folder),
        stage="rewrite",
        is_before=True,
    )
    assert "another job has removed the work" in (remote.compact().error or "")
    remote.runner = LocalRunner()
    assert remote.compact().error is None
    assert remote.state() == remote.true_state()
    remote.check()


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_passes_through_the_driver_does_not_grow_with_the_records(is_stored: bool) -> None:
    """Ten times the records in as many segments, batches and ranges, with keys of their own."""
    passed = []
    for count in (1_000, 10_000):
        remote = RemoteCompaction(TierBench(tiered()))
        for segment in range(4):
            numbers = range(segment * count // 2, segment * count // 2 + count)
            records = [Record(b"%d" % number, b"v", timestamp=1) for number in numbers]
            remote.hot.append(records)
            remote.hot.roll()
        remote.copy()
        remote.inline_bytes = 0 if is_stored else 1 << 20
        remote.range_bytes = 32 * 4 * count // 8
        remote.runner = runner = TravellingRunner()
        result = remote.compact()
        assert result.error is None
        assert result.records[Reason.SUPERSEDED] == 3 * count // 2
        assert {one.name: one.tasks for one in result.stages}["plan"] == 8
        passed.append(runner.bytes)
    if is_stored:
        assert passed[1] < 1.05 * passed[0]
    else:
        assert passed[1] > 1.5 * passed[0], "the measure sees bits that pass"


def test_a_topic_that_is_not_compacted_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="compact"):
        CompactSettings(log=replace(tiered(), cleanup_policy=("delete",)))
