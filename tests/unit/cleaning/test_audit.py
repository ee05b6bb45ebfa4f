"""An audit finds what does not fit, and tells removals that a crash cut short from wrong ones."""

from uuid import UUID

import pytest

from tests.support.audit_bench import AuditBench
from varve.cleaning.removals.audit import AUDIT_RULES, AuditReport, Outcome, audit_partition
from varve.cleaning.removals.removal_log import FIRST_CHAIN
from varve.commit_log.check.findings import Severity
from varve.commit_log.directory_files import encode_partition_metadata
from varve.commit_log.names import PARTITION_METADATA_FILE
from varve.disk import FileInfo, MemoryFileSystem
from varve.foundation.clock import ManualClock


@pytest.fixture
def bench() -> AuditBench:
    return AuditBench(MemoryFileSystem(ManualClock()), "/d")


def rules(report: AuditReport, severity: Severity = Severity.ERROR) -> list[str]:
    assert all(finding.rule in AUDIT_RULES for finding in report.findings)
    return [finding.rule for finding in report.findings if finding.severity is severity]


def outcomes(report: AuditReport) -> list[Outcome]:
    return [entry.outcome for entry in report.entries]


def test_a_partition_without_evidence_has_nothing_wrong(bench: AuditBench) -> None:
    bench.write(0, [0, 1, 2])
    report = bench.audit()
    assert report.is_clean
    assert (report.entries, report.findings, report.head) == ((), (), FIRST_CHAIN)


def test_removals_one_after_the_other_are_followed_to_what_is_there(bench: AuditBench) -> None:
    first, second = bench.write(0, [0, 1, 2, 3]), bench.write(4, [4, 5, 6])
    third = bench.write(7, [7, 8])
    bench.write(9, [9])
    merged = bench.compact([first, second], [1, 3, 4, 6])
    again = bench.compact([merged], [3, 6])
    compacted = bench.compact([third], [8])
    report = bench.audit()
    assert report.findings == ()
    assert outcomes(report) == [Outcome.DONE] * 3
    assert [entry.verified for entry in report.entries] == [0, 1, 1]
    assert report.segments_verified == 2
    assert report.bytes_verified == again.size + compacted.size


def test_expired_segments_are_gone(bench: AuditBench) -> None:
    first, second = bench.write(0, [0, 1, 2, 3]), bench.write(4, [4, 5, 6])
    bench.write(7, [7])
    output = bench.compact([first], [3])
    bench.expire([output, second])
    report = bench.audit()
    assert report.findings == ()
    assert outcomes(report) == [Outcome.DONE, Outcome.DONE]


def test_a_crash_before_the_swap_leaves_a_record_that_was_not_carried_out(
    bench: AuditBench,
) -> None:
    first = bench.write(0, [0, 1, 2])
    bench.write(3, [3])
    output = bench.write(0, [2], ".cleaned")
    bench.evidence.append(bench.compaction([first], [output]))
    report = bench.audit()
    assert report.findings == ()
    assert outcomes(report) == [Outcome.NOT_DONE]


def test_a_crash_after_the_swap_leaves_one_that_was(bench: AuditBench) -> None:
    first = bench.write(0, [0, 1, 2])
    bench.write(3, [3])
    bench.compact([first], [2], is_noted=False)
    report = bench.audit()
    assert report.findings == ()
    assert outcomes(report) == [Outcome.DONE_UNMARKED]
    assert report.segments_verified == 1


def test_a_swap_that_the_next_open_will_finish_is_carried_out(bench: AuditBench) -> None:
    first, second = bench.write(0, [0, 1, 2]), bench.write(3, [3, 4])
    bench.write(5, [5])
    output = bench.write(0, [2], ".swap")
    bench.write(3, [], ".swap")
    bench.evidence.append(bench.compaction([first, second], [output]))
    report = bench.audit()
    assert report.findings == ()
    assert outcomes(report) == [Outcome.DONE_UNMARKED]


def test_a_swap_that_the_next_open_will_undo_is_not(bench: AuditBench) -> None:
    first, second = bench.write(0, [0, 1, 2]), bench.write(3, [3, 4])
    bench.write(5, [5])
    output = bench.write(0, [2], ".cleaned")
    bench.write(3, [], ".swap")
    bench.evidence.append(bench.compaction([first, second], [output]))
    report = bench.audit()
    assert report.findings == ()
    assert outcomes(report) == [Outcome.NOT_DONE]


def test_unnoted_removals_are_told_by_what_the_next_one_found(bench: AuditBench) -> None:
    first = bench.write(0, [0, 1, 2])
    bench.write(3, [3])
    output = bench.write(0, [1, 2], ".cleaned")
    bench.evidence.append(bench.compaction([first], [output]))
    merged = bench.compact([first], [1, 2], is_noted=False)
    bench.compact([merged], [2])
    report = bench.audit()
    assert report.findings == ()
    assert outcomes(report) == [Outcome.NOT_DONE, Outcome.DONE_UNMARKED, Outcome.DONE]


def test_an_expiry_that_was_cut_short_explains_what_it_took(bench: AuditBench) -> None:
    first, second = bench.write(0, [0, 1, 2]), bench.write(3, [3, 4])
    bench.write(5, [5])
    first, second = bench.compact([first], [2]), bench.compact([second], [4])
    bench.evidence.append(bench.expiry([first, second]))
    assert outcomes(bench.audit())[-1] is Outcome.NOT_DONE
    assert bench.audit().segments_verified == 2
    bench.fs.remove(bench.log_path(0))
    report = bench.audit()
    assert report.findings == ()
    assert outcomes(report)[-1] is Outcome.DONE_UNMARKED
    assert report.segments_verified == 1


def test_a_changed_line_is_found_and_so_is_its_arithmetic(bench: AuditBench) -> None:
    bench.write(3, [3])
    bench.compact([bench.write(0, [0, 1, 2])], [2])
    bench.change_line(1, b'"superseded":2', b'"superseded":1')
    report = bench.audit()
    assert rules(report) == ["chain", "unbalanced"]
    assert not report.is_clean


def test_a_line_taken_out_of_the_middle_is_found(bench: AuditBench) -> None:
    bench.write(3, [3])
    output = bench.compact([bench.write(0, [0, 1, 2])], [1, 2])
    bench.compact([output], [2])
    lines = bench.fs.read(bench.evidence_path).splitlines(keepends=True)
    bench.put_lines(lines[2:])
    assert rules(bench.audit()) == ["chain"]


def test_lines_taken_off_the_end_are_found_by_the_disk_or_by_an_earlier_head(
    bench: AuditBench,
) -> None:
    bench.write(3, [3])
    output = bench.compact([bench.write(0, [0, 1, 2])], [1, 2])
    bench.compact([output], [2])
    head = bench.audit().head
    assert bench.audit(head).is_clean
    lines = bench.fs.read(bench.evidence_path).splitlines(keepends=True)
    bench.put_lines(lines[:2])
    assert rules(bench.audit()) == ["output-changed"]
    assert rules(bench.audit(head)) == ["head", "output-changed"]


def test_a_torn_line_is_no_error(bench: AuditBench) -> None:
    bench.write(3, [3])
    bench.compact([bench.write(0, [0, 1, 2])], [2])
    lines = bench.fs.read(bench.evidence_path).splitlines(keepends=True)
    bench.put_lines([*lines, b'{"version":1'])
    report = bench.audit()
    assert report.is_clean
    assert rules(report, Severity.NOTE) == ["torn-line"]


def test_evidence_of_another_partition_is_found(bench: AuditBench) -> None:
    bench.write(3, [3])
    bench.compact([bench.write(0, [0, 1, 2])], [2])
    other = AuditBench(bench.fs, "/d", "orders-1")
    for name in bench.fs.names(bench.directory):
        with bench.fs.open_writable(f"{other.directory}/{name}") as file:
            file.write_at(0, bench.fs.read(f"{bench.directory}/{name}"))
    assert rules(other.audit()) == ["other-partition"]


def test_a_segment_that_changed_is_found(bench: AuditBench) -> None:
    bench.write(9, [9])
    bench.compact([bench.write(0, [0, 1, 2])], [1, 2])
    bench.write(0, [0, 2])
    assert rules(bench.audit()) == ["output-changed"]
    bench.write(0, [2])
    assert rules(bench.audit()) == ["output-changed"]


def test_a_damaged_segment_is_found(bench: AuditBench) -> None:
    bench.write(9, [9])
    output = bench.compact([bench.write(0, [0, 1, 2])], [1, 2])
    with bench.fs.open_writable(bench.log_path(0)) as file:
        file.write_at(output.size - 3, b"\xff")
    report = bench.audit()
    assert rules(report) == ["output-damaged"]
    assert "CRC" in report.findings[0].message


def test_a_segment_that_vanished_is_found_unless_the_log_begins_behind_it(
    bench: AuditBench,
) -> None:
    bench.write(0, [0])
    bench.write(9, [9])
    bench.compact([bench.write(3, [3, 4, 5])], [5])
    bench.fs.remove(bench.log_path(3))
    assert rules(bench.audit()) == ["output-missing"]
    bench.write_log_start(6)
    report = bench.audit()
    assert report.is_clean
    assert rules(report, Severity.WARNING) == ["output-missing"]


def test_a_removal_of_which_nothing_is_left_is_unclear(bench: AuditBench) -> None:
    bench.write(0, [0])
    bench.write(9, [9])
    bench.compact([bench.write(3, [3, 4, 5])], [5], is_noted=False)
    bench.write(3, [4])
    report = bench.audit()
    assert outcomes(report) == [Outcome.UNCLEAR]
    assert rules(report) == ["unclear"]


def test_a_change_between_two_removals_is_found(bench: AuditBench) -> None:
    bench.write(9, [9])
    bench.compact([bench.write(0, [0, 1, 2, 3])], [1, 2, 3])
    changed = bench.write(0, [2, 3])
    bench.compact([changed], [3])
    report = bench.audit()
    assert rules(report) == ["changed-between"]
    assert "removal 1 had left 3 records" in report.findings[0].message


def test_a_segment_that_was_noted_as_gone_is_found(bench: AuditBench) -> None:
    first = bench.write(0, [0, 1, 2])
    bench.write(9, [9])
    bench.expire([first])
    bench.write(0, [0, 1, 2])
    assert rules(bench.audit()) == ["still-there"]
    bench.write_log_start(9)
    report = bench.audit()
    assert rules(report, Severity.WARNING) == ["still-there"]


def test_an_audit_starts_over_when_a_cleaning_happens_meanwhile(bench: AuditBench) -> None:
    """The listing that the audit works on is older than what it then reads."""
    bench.write(9, [9])
    output = bench.compact([bench.write(0, [0, 1, 2])], [1, 2])

    class Busy(MemoryFileSystem):
        """Cleans when the directory is listed for the second time: right before it is read."""

        listings = 0

        def scan(self, path: str) -> list[FileInfo]:
            found = bench.fs.scan(path)
            Busy.listings += 1
            if Busy.listings == 2:
                bench.compact([output], [2])
            return found

        def __getattribute__(self, name: str) -> object:
            return object.__getattribute__(self if name == "scan" else bench.fs, name)

    report = audit_partition(Busy(ManualClock()), bench.directory)
    assert report.findings == ()
    assert Busy.listings > 2
    assert len(report.entries) == 2


def test_keys_that_differ_from_the_record_are_found_when_looked_at(bench: AuditBench) -> None:
    path = f"{bench.directory}/{PARTITION_METADATA_FILE}"
    with bench.fs.open_writable(path) as file:
        file.write_at(0, encode_partition_metadata(UUID(int=5)))
    bench.write(9, [9])
    bench.compact([bench.write(0, [0, 1, 2])], [1, 2])
    assert bench.audit().findings == ()
    assert rules(audit_partition(bench.fs, bench.directory, deep=True)) == ["keys-differ"]
    names = bench.fs.names(bench.directory)
    assert len(names) == 4, "an audit writes nothing"
