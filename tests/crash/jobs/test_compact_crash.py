"""A compaction of the cold tier is killed at every request, or beset by others: G3, G5, G6."""

import os
from collections.abc import Iterator, Sequence
from typing import TypeVar

import pytest

from tests.support.cold_compaction import ColdCompaction
from tests.support.tier_bench import TierBench, tiered
from varve.foundation.errors import PowerLoss
from varve.jobs.key_plans import INLINE_BYTES
from varve.jobs.tasks import LocalRunner, Task, TaskError
from varve.testing import FaultKind, FaultyObjectStore
from varve.tiering.manifest.segment import SegmentState

STRIDE = 1 if os.environ.get("VARVE_ROUNDS") == "long" else 3
"""Between the requests at which a run is cut; a long run takes every one."""

T = TypeVar("T")


def prepare(inline_bytes: int = INLINE_BYTES) -> ColdCompaction:
    """Segments that make two groups, with a tombstone and an aborted transaction."""
    cold = ColdCompaction(TierBench(tiered(segment_bytes=300)), inline_bytes=inline_bytes)
    cold.bench.fill(5, 6)
    cold.hot.put("key-1", None)
    cold.hot.put("key-2", "void", producer_id=7, transactional=True)
    cold.hot.end_transaction(7, committed=False)
    cold.hot.roll()
    cold.bench.fill(3)
    cold.copy()
    return cold


def contents(cold: ColdCompaction) -> list[bytes | None]:
    return [batch.data for batch in cold.batches()]


def finish(cold: ColdCompaction, old: list[bytes | None], new: list[bytes | None]) -> None:
    """The old or the new state is read, and the next run ends with the new one, swept."""
    assert contents(cold) in (old, new)
    assert cold.state() == cold.true_state()
    assert cold.compact().error is None
    assert contents(cold) == new
    assert cold.pending(SegmentState.COPY_STARTED) == 0
    cold.check()


@pytest.mark.parametrize("inline_bytes", [0, INLINE_BYTES], ids=["stored", "inline"])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_request_leaves_the_old_state_or_the_new(
    is_after: bool, inline_bytes: int
) -> None:
    whole = prepare(inline_bytes)
    old = contents(whole)
    objects = FaultyObjectStore(whole.bench.bucket)
    result = whole.compact(objects)
    assert {one.name: one.tasks for one in result.stages}["rewrite"] == 2
    new = contents(whole)
    for step in range(1, objects.steps + 1, STRIDE):
        cold = prepare(inline_bytes)
        faulty = FaultyObjectStore(cold.bench.bucket)
        faulty.crash_at(step, after=is_after)
        with pytest.raises(PowerLoss):
            cold.compact(faulty)
        finish(cold, old, new)


@pytest.mark.parametrize(
    "kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.REPEATED]
)
def test_a_failed_request_fails_the_run_or_nothing(kind: FaultKind) -> None:
    whole = prepare(0)
    old = contents(whole)
    objects = FaultyObjectStore(whole.bench.bucket)
    whole.compact(objects)
    new = contents(whole)
    for step in range(1, objects.steps + 1, 3 * STRIDE):
        cold = prepare(0)
        faulty = FaultyObjectStore(cold.bench.bucket)
        faulty.fail_at(step, kind)
        cold.compact(faulty)
        finish(cold, old, new)


class Meanwhile(LocalRunner):
    """Something happens once the groups are written, before they are committed."""

    def __init__(self, cold: ColdCompaction, event: str) -> None:
        self._cold = cold
        self._event = event

    def try_run(
        self, stage: str, tasks: Sequence[Task[T]], shared: object = None
    ) -> Iterator[T | TaskError]:
        outcomes = list(super().try_run(stage, tasks, shared))
        if stage == "rewrite":
            getattr(self, self._event)()
        return iter(outcomes)

    def copy(self) -> None:
        self._cold.bench.fill(2)
        self._cold.copy()

    def expire(self) -> None:
        manifests = self._cold.bench.manifests()
        first = self._cold.bench.readable()[0]
        manifests.commit(
            lambda manifest: manifest.start_delete([first.id], at_ms=1).raise_log_start(
                first.end_offset + 1
            ),
            leader_epoch=None,
            writer="expiry",
            now_ms=1,
        )

    def take_back(self) -> None:
        manifests = self._cold.bench.manifests()
        ids = [one.id for one in self._cold.bench.segments() if not one.is_readable]
        manifests.commit(
            lambda manifest: manifest.start_delete(ids, at_ms=1),
            leader_epoch=None,
            writer="server",
            now_ms=1,
        )


def test_what_a_server_copies_meanwhile_stays() -> None:
    """Its copier takes unfinished outputs back, so the run may have to be repeated."""
    cold = prepare()
    end = cold.hot.log.end_offset
    cold.runner = Meanwhile(cold, "copy")
    assert cold.compact().error is None
    assert cold.bench.manifests().load().highest_offset == end + 1
    assert cold.state() == cold.true_state()
    cold.runner = LocalRunner()
    assert cold.compact().cleaned_up_to == end + 2
    assert cold.state() == cold.true_state()
    cold.check()


def test_groups_that_were_taken_back_meanwhile_are_void() -> None:
    cold = prepare()
    old = contents(cold)
    cold.runner = Meanwhile(cold, "take_back")
    result = cold.compact()
    assert result.error is None
    assert result.voided_groups > 0
    assert result.segments_rewritten == 0
    assert result.cleaned_up_to == 0
    assert contents(cold) == old
    cold.runner = LocalRunner()
    assert cold.compact().segments_rewritten >= 2
    assert cold.state() == cold.true_state()
    cold.check()


def test_a_tombstone_outlives_what_a_void_group_still_holds() -> None:
    """The first group's input expires in part: nothing behind it may go in."""
    cold = prepare()
    cold.runner = Meanwhile(cold, "expire")
    result = cold.compact()
    assert result.error is None
    assert result.voided_groups == 2
    assert cold.state() == cold.true_state()
    cold.runner = LocalRunner()
    assert cold.compact().error is None
    assert cold.state() == cold.true_state()
    assert cold.pending(SegmentState.COPY_STARTED) == 0
