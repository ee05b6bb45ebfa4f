"""Holds a cleaned log to the model, and to the promises that go before any model.

`foretell` looks at the log before a run, the checks look at it afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.check_open_log import check_log
from tests.support.cleaning_bench import PARTITION, CleaningBench, SegmentContent
from tests.support.cleaning_model import (
    ModelBatch,
    Outcome,
    Run,
    Transactions,
    Verdict,
    check_batches,
    clean,
    newest_offsets,
)
from tests.support.log_model import split_batches
from varve.cleaning.metrics import CleanReport
from varve.cleaning.removals.removal import Reason
from varve.records import Record


@dataclass(frozen=True, slots=True)
class Foretold:
    """A log before a run, and what the run has to leave of it."""

    first_dirty_offset: int
    segments: tuple[SegmentContent, ...]
    run: Run
    outcome: Outcome

    @property
    def cleaned(self) -> list[SegmentContent]:
        return [one for one in self.segments if one.base_offset < self.run.first_uncleanable_offset]

    @property
    def untouched(self) -> list[SegmentContent]:
        return [
            one for one in self.segments if one.base_offset >= self.run.first_uncleanable_offset
        ]


def foretell(bench: CleaningBench) -> Foretold:
    segments = tuple(bench.segments())
    first_dirty_offset = find_first_dirty(bench)
    first_uncleanable_offset = find_first_uncleanable(bench, segments, first_dirty_offset)
    run = Run(
        batches=[
            batch
            for segment in segments
            if segment.base_offset < first_uncleanable_offset
            for batch in segment.batches
        ],
        aborted=bench.log.aborted_transactions(),
        producers=bench.shells(),
        first_uncleanable_offset=first_uncleanable_offset,
        now_ms=bench.now_ms,
        delete_retention_ms=bench.settings.delete_retention_ms,
    )
    return Foretold(first_dirty_offset, segments, run, clean(run))


def find_first_dirty(bench: CleaningBench) -> int:
    checkpoint = bench.directory.cleaner_offset(PARTITION)
    start, end = bench.log.log_start_offset, bench.log.end_offset
    return checkpoint if checkpoint is not None and start <= checkpoint <= end else start


def find_first_uncleanable(
    bench: CleaningBench, segments: Sequence[SegmentContent], first_dirty_offset: int
) -> int:
    bound = min(bench.log.last_stable_offset, segments[-1].base_offset)
    lag_ms = bench.settings.min_compaction_lag_ms
    if lag_ms > 0:
        young = (
            one.base_offset
            for one in segments[:-1]
            if one.end_offset > first_dirty_offset
            if _newest_timestamp(bench, one) > bench.now_ms - lag_ms
        )
        bound = min(bound, next(young, bound))
    bound = max(bound, first_dirty_offset)
    return max(one.base_offset for one in segments if one.base_offset <= bound)


def _newest_timestamp(bench: CleaningBench, segment: SegmentContent) -> int:
    newest = max((batch.max_timestamp for batch in segment.batches), default=-1)
    path = f"{bench.path}/{PARTITION}/{segment.base_offset:020d}.log"
    return newest if newest >= 0 else bench.disk.info(path).modified_ms


# After a run


def check_exact(bench: CleaningBench, foretold: Foretold, report: CleanReport) -> None:
    """Everything is as Apache Kafka would have left it, and so is what goes beyond the bytes."""
    after = bench.segments()
    end = foretold.run.first_uncleanable_offset
    found = [batch for segment in after if segment.base_offset < end for batch in segment.batches]
    check_batches(found, foretold.outcome.batches)
    check_untouched(foretold, after)
    check_regrouped(bench, foretold, after)
    aborted = sorted(bench.log.aborted_transactions(), key=lambda one: one.last_offset)
    assert aborted == sorted(foretold.outcome.aborted, key=lambda one: one.last_offset)
    assert _removed(report.records) == _removed(foretold.outcome.records)
    assert report.end_offset == end
    assert bench.directory.cleaner_offset(PARTITION) == max(end, foretold.first_dirty_offset)
    assert not report.holds
    check_promises(bench)


def check_promised(bench: CleaningBench, foretold: Foretold, report: CleanReport) -> None:
    """What holds when clean segments may stay as they are: the dirty part is exact, each segment of
    the clean part is as before or as foretold, and a deleted key has no older value left.
    """
    after = bench.segments()
    found = [batch for segment in after for batch in segment.batches]
    check_mixture(found, foretold)
    dirty = [one for one in foretold.cleaned if one.base_offset >= foretold.first_dirty_offset]
    for segment in dirty:
        check_batches(_between(found, segment), _between(foretold.outcome.batches, segment))
    check_deletes(bench, foretold)
    check_untouched(foretold, after)
    check_regrouped(bench, foretold, after)
    assert report.end_offset == foretold.run.first_uncleanable_offset
    # Records may have been deleted up to within the active segment, which is not cleaned.
    noted = max(foretold.run.first_uncleanable_offset, foretold.first_dirty_offset)
    assert bench.directory.cleaner_offset(PARTITION) == noted
    assert not report.holds
    check_promises(bench)


def _removed(counts: dict[Reason, int]) -> dict[Reason, int]:
    return {reason: n for reason, n in counts.items() if n and reason is not Reason.KEPT}


def _between(batches: Sequence[ModelBatch], segment: SegmentContent) -> list[ModelBatch]:
    start, end = segment.base_offset, segment.end_offset
    return [batch for batch in batches if start <= batch.base_offset < end]


def check_mixture(found: Sequence[ModelBatch], foretold: Foretold) -> None:
    """What stood in a segment is as it was before the run, or as it has to be after it."""
    for segment in foretold.segments:
        one = _between(found, segment)
        if [batch.data for batch in one] == [batch.data for batch in segment.batches]:
            continue
        assert segment.base_offset < foretold.run.first_uncleanable_offset
        check_batches(one, _between(foretold.outcome.batches, segment))


def check_untouched(foretold: Foretold, after: Sequence[SegmentContent]) -> None:
    end = foretold.run.first_uncleanable_offset
    left = [(one.base_offset, one.data) for one in after if one.base_offset >= end]
    assert left == [(one.base_offset, one.data) for one in foretold.untouched]


def check_regrouped(
    bench: CleaningBench, foretold: Foretold, after: Sequence[SegmentContent]
) -> None:
    """A new segment has the name of its first old one; several make one only if that fits.

    Batches stamped with a horizon have larger timestamp deltas, by which it may be exceeded.
    """
    old = {one.base_offset: one for one in foretold.segments}
    assert {one.base_offset for one in after} <= set(old)
    assert after[0].base_offset == foretold.segments[0].base_offset
    for one in after:
        joined = [each for each in old.values() if one.base_offset <= each.base_offset]
        joined = [each for each in joined if each.base_offset < one.end_offset]
        if len(joined) > 1:
            before = sum(each.size for each in joined)
            after_stamps = sum(9 * len(batch.records) for batch in one.batches)
            assert min(before, one.size - after_stamps) <= bench.settings.segment_bytes
    assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]


def check_deletes(bench: CleaningBench, foretold: Foretold) -> None:
    """A key whose latest record is a tombstone has no older one that could be read and cleaned."""
    transactions = Transactions(sorted(foretold.run.aborted, key=lambda one: one.first_offset))
    judged = [(batch, transactions.judge(batch)) for batch in foretold.run.batches]
    values = {
        record.offset: record.value
        for batch, verdict in judged
        if verdict is Verdict.LIVE
        for record in batch.records
    }
    deleted = {key: at for key, at in newest_offsets(judged).items() if values[at] is None}
    aborted = {batch.base_offset for batch, verdict in judged if verdict is Verdict.ABORTED}
    for batch in bench.batches():
        if batch.is_control or batch.base_offset in aborted:
            continue
        for record in batch.records:
            is_cleaned = (
                bench.log.log_start_offset <= record.offset < foretold.run.first_uncleanable_offset
            )
            if record.key in deleted and is_cleaned:
                assert record.offset >= deleted[record.key], f"{record} was deleted"


def check_promises(bench: CleaningBench) -> None:
    """G4, G5 and the invariants of a log: no latest value is lost, nothing was made up."""
    assert bench.state() == bench.true_state()
    check_subset(bench)
    check_reads(bench)
    findings = [
        finding
        for finding in check_log(bench.log)
        # A producer that was forgotten and came back is known by less than its batches tell.
        if not (bench.has_forgotten and finding.rule in ("producer-state", "snapshot-untrue"))
    ]
    assert not findings, "; ".join(map(str, findings))


def check_subset(bench: CleaningBench) -> None:
    """Every record in the log was appended there, with the same content."""
    appended: dict[int, Record] = {
        record.offset: record for batch in bench.history.batches for record in batch.records
    }
    for batch in bench.batches():
        for record in batch.records:
            assert appended[record.offset] == record


def check_reads(bench: CleaningBench) -> None:
    """A reader gets every batch of the files from the log start on, in order, and once."""
    start = bench.log.log_start_offset
    stored = [batch for batch in bench.batches() if batch.last_offset >= start]
    assert bench.read_all() == [batch.data for batch in stored]
    for share in (0.25, 0.5, 0.75):
        offset = start + int(share * (bench.log.end_offset - start))
        fetched = split_batches(bench.log.read(start_offset=offset, max_bytes=1).data)
        following = [batch.data for batch in stored if batch.last_offset >= offset]
        assert fetched == following[: len(fetched)]
        assert bool(fetched) == bool(following)
