"""Power lost at every request and at every file operation of a copy: G1, G3, G6."""

import pytest

from tests.support.crash_images import crash_images, named, record
from tests.support.tier_bench import TierBench, tiered
from varve.foundation.errors import StoreUnavailable
from varve.testing import FaultKind
from varve.testing.faulty_disk import CrashMode

Faults = pytest.mark.parametrize(
    "kind",
    [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.REPEATED],
)


def prepare() -> TierBench:
    """One copied segment, a second that is not, and one with an aborted transaction."""
    bench = TierBench()
    bench.fill(2)
    bench.copy()
    bench.fill(2)
    bench.hot.put("a", "1", producer_id=5, transactional=True)
    bench.hot.end_transaction(5, committed=False)
    bench.hot.roll()
    bench.hot.log.flush()
    return bench


def go_on(bench: TierBench) -> None:
    """The next start finds no half-readable segment, and two rounds leave everything copied."""
    bench.note(bench.local_files())
    bench.check()
    for _ in range(2):
        report = bench.copy()
        assert report.error is None
        bench.check()
    assert report.copied_offset == 6
    assert len(bench.segments()) == 3
    keys = {entry.key for entry in bench.bucket.list(bench.home.segment_folder)}
    assert len(keys) == sum(len(one.parts) for one in bench.segments())


def test_a_crash_at_any_request_or_file_operation_of_a_copy_is_made_good() -> None:
    """The disk and the bucket are recorded on one axis: each is judged beside the other."""
    prepared = prepare()
    disk = prepared.hot.faulty
    first = disk.steps
    points = record(prepared.copy, lambda: None, disk=disk, objects=prepared.objects)
    assert disk.steps > first
    for image in crash_images(points):
        with named(image):
            bench = prepared.on(image.point.objects(), image.disk)
            readable_end = bench.manifests().load().highest_offset + 1
            assert bench.hot.log.end_offset >= readable_end
            go_on(bench)


@Faults
def test_a_failing_request_is_told_and_the_next_round_makes_it_good(kind: FaultKind) -> None:
    whole = prepare()
    start = whole.objects.steps
    whole.copy()
    for step in range(start + 1, whole.objects.steps + 1):
        bench = prepare()
        bench.objects.fail_at(step, kind)
        bench.copy()
        go_on(bench)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_what_is_copied_is_on_the_local_disk_first(mode: CrashMode) -> None:
    """Else the log would go on below its copies, with other records at their offsets."""
    bench = TierBench(settings=tiered(cleanup_policy=("delete",)))
    bench.fill(2, 2)
    assert bench.hot.log.recovery_point < 4, "not synced by the roll"
    assert bench.copy().copied_offset == 4
    bench.crash(mode)
    assert bench.hot.log.end_offset == 4
    bench.check()


def test_a_store_that_is_down_leaves_the_log_as_it_is() -> None:
    bench = prepare()
    bench.objects.go_down()
    report = bench.copy()
    assert report.error is not None
    bench.hot.put("b", "2")
    with pytest.raises(StoreUnavailable):
        bench.hot.clean()
    bench.objects.come_up()
    go_on(bench)
