"""Power lost at every step of a move to object storage: log and evidence stay whole."""

from tests.support.cleaning_bench import CleaningBench, compacted
from tests.support.crash_images import crash_images, named, record
from tests.support.evictions import evict_local_segments
from varve.cleaning.removals.audit import audit_partition
from varve.cleaning.removals.removal import RemovalKind

MOVED_UP_TO = 4


def prepare() -> CleaningBench:
    """Two segments that compaction wrote, and two behind them."""
    bench = CleaningBench(settings=compacted(remote_storage_enable=True))
    for number in range(8):
        bench.put(f"key-{number % 3}", f"{number}")
        if number % 2:
            bench.roll()
        if number == MOVED_UP_TO:
            bench.roll()
            bench.clean()
    bench.log.flush()
    return bench


def move(bench: CleaningBench) -> None:
    base = max(one.base_offset for one in bench.log.view if one.base_offset <= MOVED_UP_TO)
    evict_local_segments(bench.log, base, bench.now_ms, bench.cleaner.removals.get(bench.log))


def test_a_move_is_explained_wherever_it_was_cut() -> None:
    prepared = prepare()
    points = record(lambda: move(prepared), lambda: None, disk=prepared.faulty)
    for image in crash_images(points):
        with named(image):
            bench = prepared.on(image.disk)
            check(bench)
            move(bench)
            check(bench)
            entries = bench.cleaner.removals.get(bench.log).read()
            assert entries[-1].removal.kind == RemovalKind.EVICTION
            assert bench.log.log_start_offset == 0
            assert bench.log.local_start_offset > 0


def check(bench: CleaningBench) -> None:
    report = audit_partition(bench.disk, bench.log.directory, deep=True)
    assert report.is_clean, report.findings
