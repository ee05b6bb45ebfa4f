"""G5: whatever step of a cleaning a crash hits, the evidence and the disk still agree."""

from tests.support.cleaning_bench import DIRECTORY, CleaningBench, compacted
from tests.support.crash_images import crash_images, named, record
from varve.cleaning.removals.audit import AuditReport, Outcome, audit_partition
from varve.cleaning.removals.removal import RemovalKind
from varve.testing.faulty_disk import CrashMode

VALUE = "v" * 40


def prepare() -> CleaningBench:
    """Three closed segments with stale records, an aborted transaction and a tombstone."""
    bench = CleaningBench(settings=compacted(cleanup_policy=("compact", "delete")))
    for number in range(4):
        bench.put(f"key-{number}", VALUE)
    bench.put("aborted", VALUE, producer_id=9, transactional=True)
    bench.end_transaction(9, committed=False)
    bench.roll()
    for number in range(2, 6):
        bench.put(f"key-{number}", VALUE)
    bench.put("key-0", None)
    bench.roll()
    bench.put("key-1", VALUE)
    bench.put("key-5", VALUE)
    bench.roll()
    bench.put("last", VALUE)
    bench.log.flush()
    return bench


def clean_twice(bench: CleaningBench) -> None:
    """The second run finds tombstone and marker past their horizon."""
    bench.clean()
    bench.advance(20_000)
    bench.put("key-2", VALUE)
    bench.roll()
    bench.log.flush()
    bench.clean()


def audit(bench: CleaningBench, *, deep: bool = True) -> AuditReport:
    report = audit_partition(bench.disk, DIRECTORY, deep=deep)
    problems = [finding for finding in report.findings if finding.rule != "torn-line"]
    assert problems == [], bench.faulty.describe_trace()
    return report


def test_what_was_cleaned_is_on_record_and_verified_down_to_its_keys() -> None:
    bench = prepare()
    clean_twice(bench)
    report = audit(bench)
    assert {entry.outcome for entry in report.entries} == {Outcome.DONE}
    assert report.segments_verified > 0
    removed = sum(entry.removal.records_removed for entry in report.entries)
    assert removed == bench.log.end_offset - len(bench.offsets())


def test_the_evidence_agrees_with_the_disk_after_a_crash_at_any_step() -> None:
    prepared = prepare()
    points = record(lambda: clean_twice(prepared), lambda: None, disk=prepared.faulty)
    assert len(points) > 40
    outcomes = set()
    for image in crash_images(points, _power_losses):
        with named(image):
            report = audit_partition(image.disk, DIRECTORY)
            assert report.is_clean, report.findings
            bench = prepared.on(image.disk)
            after = audit(bench, deep=False)
            outcomes |= {entry.outcome for entry in after.entries}
            if image.step % 5 == 0:
                bench.clean()
                audit(bench)
    assert outcomes >= {Outcome.DONE, Outcome.DONE_UNMARKED, Outcome.NOT_DONE}


def _power_losses(step: int) -> list[tuple[CrashMode, int]]:
    return [(CrashMode.LOSE_UNSYNCED, 0), (CrashMode.RANDOM, step)]


def test_expired_segments_are_on_record() -> None:
    bench = prepare()
    bench.clean()
    bench.reopen(retention_ms=1000)
    bench.advance(60_000)
    bench.cleaner.run_once(bench.now_ms)
    report = audit(bench)
    assert report.entries[-1].removal.kind == RemovalKind.EXPIRY
    assert bench.log.log_start_offset > 0
