"""Segments that leave the local disk for object storage are on record, and no loss to an audit."""

import errno
from dataclasses import replace

import pytest

from tests.support.audit_bench import AuditBench
from tests.support.balances import make_expiry
from tests.support.cleaning_bench import PARTITION, CleaningBench, compacted
from tests.support.evictions import evict_local_segments
from varve.cleaning.removals.audit import AuditReport, Outcome, audit_partition
from varve.cleaning.removals.removal import (
    Reason,
    Removal,
    RemovalKind,
    SegmentSummary,
    decode_removal,
    encode_removal,
)
from varve.commit_log.check.findings import Severity
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Unbalanced


@pytest.fixture
def bench() -> AuditBench:
    return AuditBench(MemoryFileSystem(ManualClock()), "/d")


def make_moved(id: int = 1) -> Removal:
    return replace(
        make_expiry(id),
        kind=RemovalKind.EVICTION,
        records={Reason.EVICTED: 7},
        bytes={Reason.EVICTED: 700},
        rule="local.retention.ms=1000",
    )


def move(bench: AuditBench, inputs: list[SegmentSummary], *, is_noted: bool = True) -> None:
    balance = replace(
        bench.expiry(inputs),
        kind=RemovalKind.EVICTION,
        records={Reason.EVICTED: sum(summary.records for summary in inputs)},
        bytes={Reason.EVICTED: sum(summary.size for summary in inputs)},
    )
    bench.evidence.append(balance)
    for summary in inputs:
        bench.fs.remove(bench.log_path(summary.base_offset))
    if is_noted:
        bench.evidence.mark_done(balance.id)


def found(report: AuditReport) -> list[tuple[str, str]]:
    return [(str(finding.severity), finding.rule) for finding in report.findings]


def test_a_move_balances_by_itself_and_removes_nothing() -> None:
    balance = make_moved()
    balance.check()
    assert balance.records_removed == 0
    assert decode_removal(1, encode_removal(balance)) == balance


@pytest.mark.parametrize(
    "change",
    [
        {"records": {Reason.EVICTED: 6}},
        {"records": {Reason.EXPIRED_TIME: 7}},
        {"records": {Reason.EVICTED: 6, Reason.SUPERSEDED: 1}},
        {"outputs": (SegmentSummary(0, 10, 700, 0),)},
        {"inputs": (), "records": {}},
        {"kind": RemovalKind.EXPIRY},
        {"kind": RemovalKind.COMPACTION},
    ],
)
def test_a_move_that_does_not_add_up_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(Unbalanced):
        replace(make_moved(), **change).check()  # type: ignore[arg-type]  # one test, any field


def test_what_was_moved_is_no_loss_even_if_compaction_wrote_it(bench: AuditBench) -> None:
    first, second = bench.write(0, [0, 1, 2, 3]), bench.write(4, [4, 5])
    bench.write(6, [6])
    bench.write_log_start(0)
    output = bench.compact([first], [3])
    move(bench, [output, second])
    report = bench.audit()
    assert report.findings == ()
    assert [entry.outcome for entry in report.entries] == [Outcome.DONE, Outcome.DONE]


def test_a_segment_that_went_beside_the_moved_ones_is_missed(bench: AuditBench) -> None:
    first, second, third = (bench.write(base, [base, base + 1]) for base in (0, 2, 4))
    bench.write(6, [6])
    bench.write_log_start(0)
    second = bench.compact([second], [3])
    move(bench, [first])
    bench.fs.remove(bench.log_path(2))
    bench.fs.remove(bench.log_path(third.base_offset))
    assert found(bench.audit()) == [("error", "output-missing")]


def test_below_the_log_start_a_missing_segment_is_only_warned_of(bench: AuditBench) -> None:
    first, second = bench.write(0, [0, 1]), bench.write(2, [2, 3])
    bench.write(4, [4])
    bench.write_log_start(4)
    move(bench, [first])
    bench.compact([second], [3])
    bench.fs.remove(bench.log_path(2))
    assert found(bench.audit()) == [("warning", "output-missing")]


def test_a_moved_segment_that_was_changed_before_is_told(bench: AuditBench) -> None:
    first = bench.write(0, [0, 1, 2])
    bench.write(3, [3])
    output = bench.compact([first], [1, 2])
    move(bench, [replace(output, records=1, log_crc=7)])
    assert found(bench.audit()) == [("error", "changed-between")]


def test_a_move_cut_short_is_told_by_what_is_left(bench: AuditBench) -> None:
    first, second = bench.write(0, [0, 1]), bench.write(2, [2, 3])
    bench.write(4, [4])
    move(bench, [first, second], is_noted=False)
    assert [one.outcome for one in bench.audit().entries] == [Outcome.DONE_UNMARKED]
    bench.write(2, [2, 3])
    report = bench.audit()
    assert report.findings == ()
    assert [one.outcome for one in report.entries] == [Outcome.DONE_UNMARKED]
    bench.write(0, [0, 1])
    assert [one.outcome for one in bench.audit().entries] == [Outcome.NOT_DONE]


def test_a_moved_segment_that_is_there_all_the_same_is_verified_and_told(bench: AuditBench) -> None:
    first = bench.write(0, [0, 1, 2])
    bench.write(3, [3])
    output = bench.compact([first], [2])
    move(bench, [output])
    bench.write(0, [2])
    report = bench.audit()
    assert found(report) == [("warning", "still-there")]
    assert report.segments_verified == 1


def test_a_log_moves_its_segments_out_on_record() -> None:
    hot = CleaningBench(settings=compacted(remote_storage_enable=True))
    for number in range(6):
        hot.put("a", str(number))
        if number % 2:
            hot.roll()
    evidence = hot.cleaner.removals.get(hot.log)
    gone = evict_local_segments(hot.log, 4, hot.now_ms, evidence)
    assert [segment.base_offset for segment in gone] == [0, 2]
    assert (hot.log.log_start_offset, hot.log.local_start_offset) == (0, 4)
    (entry,) = evidence.read()
    assert entry.is_done
    assert entry.removal.records == {Reason.EVICTED: 4}
    assert entry.removal.rule == "2 in object storage alone: segment 2, a test"
    assert evict_local_segments(hot.log, 4, hot.now_ms, evidence) == []
    assert len(evidence.read()) == 1
    report = audit_partition(hot.disk, hot.log.directory)
    assert [one for one in report.findings if one.severity is Severity.ERROR] == []


def test_what_was_compacted_and_then_moved_leaves_a_clean_audit() -> None:
    hot = CleaningBench(settings=compacted(remote_storage_enable=True))
    for number in range(6):
        hot.put("a", str(number))
        hot.roll()
    hot.clean()
    evidence = hot.cleaner.removals.get(hot.log)
    left = hot.log.view.closed
    evict_local_segments(hot.log, hot.log.view.active.base_offset, hot.now_ms, evidence)
    report = audit_partition(hot.disk, hot.log.directory, deep=True)
    assert report.findings == ()
    assert report.partition == PARTITION
    removal = report.entries[-1].removal
    assert removal.kind is RemovalKind.EVICTION
    assert [summary.size for summary in removal.inputs] == [segment.size for segment in left]
    assert removal.records_before == 1
    assert {one.removal.kind for one in report.entries[:-1]} == {RemovalKind.COMPACTION}


def test_an_eviction_on_a_full_disk_is_recorded_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hot = CleaningBench(settings=compacted(remote_storage_enable=True))
    for number in range(4):
        hot.put(f"k{number}", "v")
        hot.roll()
    removals = hot.cleaner.removals.get(hot.log)

    def refuse(removal: Removal) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(removals, "append", refuse)
        gone = evict_local_segments(hot.log, 2, hot.now_ms, removals)
    assert [segment.base_offset for segment in gone] == [0, 1]
    assert removals.read() == []
    evict_local_segments(hot.log, 3, hot.now_ms, removals)
    late, own = removals.read()
    assert late.is_done
    assert own.is_done
    assert [summary.base_offset for summary in late.removal.inputs] == [0, 1]
    assert "the disk was full" in late.removal.rule
    assert audit_partition(hot.disk, hot.log.directory).findings == ()
