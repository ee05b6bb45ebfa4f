"""A compaction of the cold tier is killed at every request, or beset by others: G3, G5, G6."""

from dataclasses import replace

import pytest

from tests.support.crash_images import distinct_buckets, named, record
from tests.support.remote_compaction import RemoteCompaction
from tests.support.rounds import IS_LONG
from tests.support.task_runners import InterferingRunner
from tests.support.tier_bench import TierBench, tiered
from varve.jobs.key_plans import INLINE_BYTES
from varve.jobs.tasks import LocalRunner
from varve.testing import FaultKind, FaultyObjectStore
from varve.tiering.manifest.segment import SegmentState

STRIDE = 1 if IS_LONG else 9
"""Between the requests that fail in a run of their own; a long run takes every one."""


def prepare(inline_bytes: int = INLINE_BYTES) -> RemoteCompaction:
    """Segments that make two groups, with a tombstone and an aborted transaction."""
    remote = RemoteCompaction(TierBench(tiered(segment_bytes=300)), inline_bytes=inline_bytes)
    remote.bench.fill(5, 6)
    remote.hot.put("key-1", None)
    remote.hot.put("key-2", "void", producer_id=7, transactional=True)
    remote.hot.end_transaction(7, committed=False)
    remote.hot.roll()
    remote.bench.fill(3)
    remote.copy()
    return remote


def contents(remote: RemoteCompaction) -> list[bytes | None]:
    return [batch.data for batch in remote.batches()]


def finish(remote: RemoteCompaction, old: list[bytes | None], new: list[bytes | None]) -> None:
    """The old or the new state is read, and the next run ends with the new one, swept."""
    assert contents(remote) in (old, new)
    assert remote.state() == remote.true_state()
    assert remote.compact().error is None
    assert contents(remote) == new
    assert remote.pending(SegmentState.COPY_STARTED) == 0
    remote.check()


@pytest.mark.parametrize("inline_bytes", [0, INLINE_BYTES], ids=["stored", "inline"])
def test_a_kill_at_any_request_leaves_the_old_state_or_the_new(inline_bytes: int) -> None:
    whole = prepare(inline_bytes)
    old = contents(whole)
    objects = FaultyObjectStore(whole.bench.bucket)

    def compact() -> None:
        result = whole.compact(objects)
        assert {one.name: one.tasks for one in result.stages}["rewrite"] == 2

    points = record(compact, lambda: None, objects=objects)
    new = contents(whole)
    for point in distinct_buckets(points):
        with named(point):
            finish(replace(whole, bench=whole.bench.on(point.objects())), old, new)


@pytest.mark.parametrize(
    "kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.REPEATED]
)
def test_a_failed_request_fails_the_run_or_nothing(kind: FaultKind) -> None:
    whole = prepare(0)
    old = contents(whole)
    objects = FaultyObjectStore(whole.bench.bucket)
    whole.compact(objects)
    new = contents(whole)
    for step in range(1, objects.steps + 1, STRIDE):
        remote = prepare(0)
        faulty = FaultyObjectStore(remote.bench.bucket)
        faulty.fail_at(step, kind)
        remote.compact(faulty)
        finish(remote, old, new)


def test_what_a_server_copies_meanwhile_stays() -> None:
    """Its copier takes unfinished outputs back, so the run may have to be repeated."""
    remote = prepare()
    end = remote.hot.log.end_offset

    def copy() -> None:
        remote.bench.fill(2)
        remote.copy()

    remote.runner = InterferingRunner(copy, stage="rewrite")
    assert remote.compact().error is None
    assert remote.bench.manifests().load().highest_offset == end + 1
    assert remote.state() == remote.true_state()
    remote.runner = LocalRunner()
    assert remote.compact().cleaned_up_to == end + 2
    assert remote.state() == remote.true_state()
    remote.check()


def test_groups_that_were_taken_back_meanwhile_are_void() -> None:
    remote = prepare()
    old = contents(remote)

    def take_back() -> None:
        ids = [one.id for one in remote.bench.segments() if not one.is_readable]
        remote.change_manifest(lambda manifest: manifest.start_delete(ids, at_ms=1))

    remote.runner = InterferingRunner(take_back, stage="rewrite")
    result = remote.compact()
    assert result.error is None
    assert result.voided_groups > 0
    assert result.segments_rewritten == 0
    assert result.cleaned_up_to == 0
    assert contents(remote) == old
    remote.runner = LocalRunner()
    assert remote.compact().segments_rewritten >= 2
    assert remote.state() == remote.true_state()
    remote.check()


def test_a_tombstone_outlives_what_a_void_group_still_holds() -> None:
    """The first group's input expires in part: nothing behind it may go in."""
    remote = prepare()
    remote.runner = InterferingRunner(remote.expire_first, stage="rewrite")
    result = remote.compact()
    assert result.error is None
    assert result.voided_groups == 2
    assert remote.state() == remote.true_state()
    remote.runner = LocalRunner()
    assert remote.compact().error is None
    assert remote.state() == remote.true_state()
    assert remote.pending(SegmentState.COPY_STARTED) == 0
