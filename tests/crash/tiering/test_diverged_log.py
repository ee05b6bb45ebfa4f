"""A log that was cut below what is copied, as an unclean election does: its new history counts."""

from tests.support.tiered_store_bench import TieredStore
from varve.testing.faulty_disk import CrashMode

SEGMENT = [[1, 2], [3, 4], [5, 6], [2, 6], [1, 3]]


def grow(bench: TieredStore, segments: int) -> None:
    """Appends, copies, and lets go of what the local limit does not keep."""
    with bench.step(None, CrashMode.KEEP_ALL):
        bench.append_all(SEGMENT * segments)
        bench.run_once()


def diverge(bench: TieredStore, offset: int) -> None:
    start, end = bench.log.local_start_offset, bench.log.end_offset
    with bench.step(None, CrashMode.KEEP_ALL):
        bench.diverge((offset - start) / (end - start))


def test_a_reader_never_sees_what_was_cut_and_copied_anew() -> None:
    """It has a manifest of a moment ago at hand, which names the copies of the old history."""
    bench = TieredStore(
        {"local.retention.ms": -2, "local.retention.bytes": 1_500, "retention.ms": -1}
    )
    grow(bench, 4)
    bench.check([0.1, 0.5])
    assert 0 < bench.log.local_start_offset < bench.copied_end() - 4
    diverge(bench, bench.copied_end() - 4)
    grow(bench, 4)
    assert bench.log.local_start_offset > bench.log.epochs[-1].start_offset
    bench.check([0.1, 0.5])
    bench.settle()


def test_a_copy_that_the_log_start_has_cut_off_does_not_keep_the_next_from_being_made() -> None:
    bench = TieredStore({"local.retention.ms": 3_600_000, "retention.ms": -1})
    grow(bench, 4)
    first, second = [(one.base_offset, one.end_offset) for one in bench.remote()][:2]
    diverge(bench, second[0] + 2)
    with bench.step(None, CrashMode.KEEP_ALL):
        bench.roll()
        bench.append_all(SEGMENT * 2)
        before = bench.log.view.closed[-1].base_offset
        assert second[0] < before
        bench.delete_records(before / bench.log.high_watermark)
    assert first[1] < bench.log.log_start_offset
    bench.settle()
    assert min(one.base_offset for one in bench.remote() if one.is_readable) <= before
