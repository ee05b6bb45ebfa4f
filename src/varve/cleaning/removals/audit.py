"""Checks the removal log of a partition: its sums, its chain, and the segments on disk.

The lines are replayed in order, keeping the segments that must exist by then: a compaction or an
erasure replaces its inputs by its outputs, an expiry and an eviction remove their inputs. The
segments that must exist at the end are read and compared. `varve tier fsck` checks whether object
storage holds the evicted ones.

Invariant  read-only, whether a store has the directory open or not; damaged files are reported
           and do not make it raise. A swap whose new files are all in place counts as carried out,
           as it does at the next open.
Crash      a crash may leave a line without its removal, and a removal without its line `done`: the
           segments in a later line or on disk show whether it was carried out.
"""

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from varve.cleaning.key_index.builder import KeyIndexBuilder
from varve.cleaning.key_index.segment_indexes import HELD_REMEDY
from varve.cleaning.removals.removal import (
    MeasuredSegment,
    Reason,
    Removal,
    RemovalKind,
    SegmentSummary,
    hex_digest,
    measure_segment,
)
from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE, RemovalEntry, read_removal_log
from varve.commit_log import TopicPartition
from varve.commit_log.check import Severity, find_partition
from varve.commit_log.check.partition import ignore_progress
from varve.commit_log.directory_files import decode_partition_metadata
from varve.commit_log.names import (
    CLEANED,
    KEYS,
    LOG,
    LOG_START_OFFSET_FILE,
    PARTITION_METADATA_FILE,
    SWAP,
    TXN_INDEX,
    log_name,
    parse_file_name,
)
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.commit_log.segment_reader import BatchWalk
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import FileSystem, MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, Unbalanced

_DIGEST_BUFFER_BYTES: Final = 16 << 20

Listing = tuple[tuple[str, int], ...]
"""Names and sizes of data files."""


@dataclass(frozen=True, slots=True)
class LiveSegment:
    """A data file that counts; `state` is `.swap` while the swap is not finished, else empty."""

    base_offset: int
    size: int
    state: str


class LiveSegments:
    """The segments that a directory held when it was listed; each file is measured once."""

    def __init__(self, fs: FileSystem, directory: str, *, advance: Callable[[int], None]) -> None:
        self._fs = fs
        self._directory = directory
        self._advance = advance
        self._measured: dict[int, MeasuredSegment] = {}
        self._segments = _choose(list_data(fs, directory), self._measure)

    @property
    def first_offset(self) -> int | None:
        """The base offset of the first segment; None without one."""
        return min(self._segments, default=None)

    def find(self, base_offset: int) -> LiveSegment | None:
        return self._segments.get(base_offset)

    def path(self, segment: LiveSegment, kind: str = LOG) -> str:
        return f"{self._directory}/{log_name(segment.base_offset, kind)}{segment.state}"

    def measure(self, segment: LiveSegment) -> MeasuredSegment:
        """Reads the whole file, with its CRCs."""
        measured = self._measured.get(segment.base_offset)
        if measured is None:
            measured = self._measured[segment.base_offset] = self._measure(segment)
        return measured

    def has_size(self, summary: SegmentSummary) -> bool:
        """Whether the segment exists with the size of its summary; its content is not read."""
        segment = self.find(summary.base_offset)
        return segment is not None and segment.size == summary.size

    def holds(self, summary: SegmentSummary) -> bool:
        """Whether the segment exists with the size, records and CRC of its summary."""
        segment = self.find(summary.base_offset)
        if segment is None or segment.size != summary.size:
            return False
        measured = self.measure(segment)
        return not measured.damage and measured.summary.is_same(summary)

    def digest(
        self, segment: LiveSegment, topic_id: bytes, *, with_aborted: bool = False
    ) -> tuple[int, int]:
        """The digest of a segment's keys; raises Corrupt when its records cannot be read.

        Records of aborted transactions are left out unless `with_aborted`. The key index is built
        in memory, because an audit writes nothing to the directory.
        """
        memory = MemoryFileSystem(ManualClock())
        builder = KeyIndexBuilder(
            memory,
            f"/{log_name(segment.base_offset, KEYS)}",
            base_offset=segment.base_offset,
            topic_id=topic_id,
            buffer_bytes=_DIGEST_BUFFER_BYTES,
            aborted=() if with_aborted else self._aborted(segment),
        )
        with self._fs.open(self.path(segment)) as file:
            walk = BatchWalk(file, start=0, end=segment.size, verify_crc=True)
            for table in walk:
                builder.add(table)
                self._advance(table.end - table.start)
            walk.check_ended(self.path(segment), remedy=HELD_REMEDY)
        builder.finish(segment.size)
        return builder.digest

    def _aborted(self, segment: LiveSegment) -> Sequence[AbortedTransaction]:
        path = self.path(segment, TXN_INDEX)
        if not self._fs.exists(path):
            path = path.removesuffix(SWAP)
        if not self._fs.exists(path):
            return ()
        return TransactionIndex.decode(self._fs.read(path), segment.base_offset, path).entries()

    def _measure(self, segment: LiveSegment) -> MeasuredSegment:
        with self._fs.open(self.path(segment)) as file:
            return measure_segment(
                file,
                base_offset=segment.base_offset,
                size=segment.size,
                verify_crc=True,
                advance=self._advance,
            )


def list_data(fs: FileSystem, directory: str) -> Listing:
    """Names and sizes of the data files in any state, sorted by name."""
    return tuple(
        (entry.name, entry.size)
        for entry in fs.scan(directory)
        if (file := parse_file_name(entry.name)) is not None and file.kind == LOG
    )


def _choose(
    listing: Listing, measure: Callable[[LiveSegment], MeasuredSegment]
) -> dict[int, LiveSegment]:
    """The data files that the next open would keep, by base offset."""
    files = [(file, size) for name, size in listing if (file := parse_file_name(name)) is not None]
    first_cleaned = min((file.offset for file, _ in files if file.state == CLEANED), default=None)
    swaps = [
        LiveSegment(file.offset, size, SWAP)
        for file, size in files
        if file.state == SWAP and (first_cleaned is None or file.offset < first_cleaned)
    ]
    swaps.sort(key=lambda segment: segment.base_offset)
    live = {
        file.offset: LiveSegment(file.offset, size, "") for file, size in files if not file.state
    }
    if not swaps:
        return live
    ends = [measure(segment).summary.next_offset for segment in swaps]
    start, end = swaps[0].base_offset, max(*ends, swaps[-1].base_offset + 1)
    kept = {base: segment for base, segment in live.items() if not start <= base < end}
    # An empty segment after the first only marks the end of the swap.
    kept |= {
        segment.base_offset: segment for segment in swaps if segment is swaps[0] or segment.size
    }
    return kept


AUDIT_RULES: Final = {
    "chain": "Every line of the removal log is as it was written, right after the one before.",
    "head": "A chain noted earlier is still in the file.",
    "torn-line": "The last line is whole; one that is not had no removal and is cut later.",
    "other-partition": "A line is about the partition whose directory it is in.",
    "unbalanced": "The records of all inputs are accounted for, and the outputs hold the rest.",
    "changed-between": "A removal found its inputs as the one before had left them.",
    "unclear": "The inputs of a removal, or else its outputs, exist or a later line removes them.",
    "output-changed": "A segment holds the records that the removal log says.",
    "output-damaged": "Every batch of a segment on record can be read and has its CRC.",
    "output-missing": "A segment on record exists until another line removes it.",
    "still-there": "A segment that is recorded as removed does not exist.",
    "keys-differ": "The keys of a segment are those that were planned to survive.",
    "in-use": "The directory did not change while it was looked at.",
}

ATTEMPTS: Final = 3


class Outcome(StrEnum):
    """The outcome of a recorded removal."""

    DONE = "carried out"
    DONE_UNMARKED = "carried out, not noted"
    NOT_DONE = "not carried out"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A broken rule of `AUDIT_RULES`; `id` is that of the removal it is about, if any."""

    severity: Severity
    rule: str
    message: str
    id: int | None = None


@dataclass(frozen=True, slots=True)
class AuditedEntry:
    """A removal and its outcome; `verified` of its outputs are on disk as recorded."""

    removal: Removal
    outcome: Outcome
    verified: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit of one partition found; `head` is the chain to note elsewhere."""

    partition: TopicPartition
    directory: str
    entries: tuple[AuditedEntry, ...]
    findings: tuple[AuditFinding, ...]
    head: str
    segments_verified: int
    bytes_verified: int

    @property
    def carried_out(self) -> list[Removal]:
        done = (Outcome.DONE, Outcome.DONE_UNMARKED)
        return [entry.removal for entry in self.entries if entry.outcome in done]

    @property
    def moved_records(self) -> int:
        """Records that were evicted from the local disk, and are in object storage."""
        return sum(removal.records.get(Reason.EVICTED, 0) for removal in self.carried_out)

    @property
    def is_clean(self) -> bool:
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def audit_partition(
    fs: FileSystem,
    directory: str,
    *,
    deep: bool = False,
    head: str | None = None,
    advance: Callable[[int], None] = ignore_progress,
) -> AuditReport:
    """Audits one partition's directory.

    `head` is the head of an earlier audit, which must still be in the file: only it shows that
    lines were cut off the end. `deep` also compares the keys of all records. When a store changes
    the directory meanwhile the audit starts over, up to `ATTEMPTS` times.
    """
    directory = directory.rstrip("/")
    for attempt in range(1, ATTEMPTS + 1):
        before = _take_snapshot(fs, directory)
        audit = _Audit(fs, directory, deep=deep, advance=advance)
        try:
            report = audit.run(head)
        except FileNotFoundError:
            if attempt == ATTEMPTS:
                raise
            continue
        if report.is_clean or _is_unchanged(before, _take_snapshot(fs, directory)):
            return report
    audit.warn("in-use", f"changed in each of {ATTEMPTS} attempts: findings may be temporary")
    return audit.report()


def _take_snapshot(fs: FileSystem, directory: str) -> tuple[int, Listing]:
    path = f"{directory}/{REMOVAL_LOG_FILE}"
    return fs.info(path).size if fs.exists(path) else 0, list_data(fs, directory)


def _is_unchanged(before: tuple[int, Listing], after: tuple[int, Listing]) -> bool:
    """Whether nothing was removed meanwhile; appends let the last file grow and new ones follow."""
    return before[0] == after[0] and set(before[1][:-1]) <= set(after[1])


class _Audit:
    """One pass over one directory."""

    def __init__(
        self, fs: FileSystem, directory: str, *, deep: bool, advance: Callable[[int], None]
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._deep = deep
        self._partition = find_partition(directory)
        self._history = read_removal_log(fs, directory)
        self._live = LiveSegments(fs, directory, advance=advance)
        self._log_start = self._find_log_start()
        self._findings: list[AuditFinding] = []
        self._outcomes: dict[int, Outcome] = {}
        self._expected: dict[int, tuple[SegmentSummary, int]] = {}
        self._verified: dict[int, list[LiveSegment]] = {}

    def run(self, head: str | None) -> AuditReport:
        self._check_file(head)
        entries = self._history.entries
        for number, entry in enumerate(entries):
            self._check_removal(entry.removal)
            outcome = Outcome.DONE
            if not entry.is_done:
                outcome = find_outcome(entry.removal, entries[number + 1 :], self._live)
            self._outcomes[entry.removal.id] = outcome
            self._replay(entry.removal, outcome)
        for summary, id in self._expected.values():
            self._check_live(summary, id)
        if self._deep:
            self._check_keys()
        return self.report()

    def report(self) -> AuditReport:
        verified = self._verified
        return AuditReport(
            partition=self._partition or TopicPartition(posixpath.basename(self._directory), 0),
            directory=self._directory,
            entries=tuple(
                AuditedEntry(
                    entry.removal,
                    self._outcomes[entry.removal.id],
                    len(verified.get(entry.removal.id, ())),
                )
                for entry in self._history.entries
            ),
            findings=tuple(self._findings),
            head=self._history.head,
            segments_verified=sum(len(segments) for segments in verified.values()),
            bytes_verified=sum(
                segment.size for segments in verified.values() for segment in segments
            ),
        )

    def warn(self, rule: str, message: str, id: int | None = None) -> None:
        self._add(Severity.WARNING, rule, message, id)

    def _error(self, rule: str, message: str, id: int | None = None) -> None:
        self._add(Severity.ERROR, rule, message, id)

    def _add(self, severity: Severity, rule: str, message: str, id: int | None) -> None:
        assert rule in AUDIT_RULES, f"{rule} is not a rule"
        self._findings.append(AuditFinding(severity, rule, message, id))

    def _find_log_start(self) -> int:
        """Where the log starts: with its first segment or, by the checkpoint, elsewhere.

        Evicted segments lie before the first local segment, but not before the log start.
        """
        written, first = self._read_log_start(), self._live.first_offset or 0
        is_tiered = any(
            entry.removal.kind == RemovalKind.EVICTION for entry in self._history.entries
        )
        if is_tiered and written is not None:
            return written
        return max(first, written or 0)

    def _read_log_start(self) -> int | None:
        """The log start offset in the checkpoint of the log directory; None without an entry."""
        path = f"{posixpath.dirname(self._directory) or '.'}/{LOG_START_OFFSET_FILE}"
        if self._partition is None or not self._fs.exists(path):
            return None
        try:
            return decode_offsets(self._fs.read(path), where=path).get(self._partition)
        except Corrupt:
            return None

    def _check_file(self, head: str | None) -> None:
        for fault in self._history.faults:
            self._error("chain", f"line {fault.line_number}: {fault.message}")
        if head is not None and head not in self._history.chains:
            if self._history.dropped:
                message = "or is of one of the oldest lines, which were dropped"
                self.warn(
                    "head", f"the chain {head[:64]} is not in the file: it was cut, {message}"
                )
            else:
                self._error("head", f"the chain {head[:64]} is not in the file: its end was cut")
        if self._history.torn_bytes:
            message = f"{self._history.torn_bytes} bytes of a line that was not finished"
            self._add(Severity.NOTE, "torn-line", message, None)

    def _check_removal(self, removal: Removal) -> None:
        if self._partition is not None and removal.partition != self._partition:
            message = f"is about {removal.partition}, but in the directory of {self._partition}"
            self._error("other-partition", message, removal.id)
        try:
            removal.check()
        except Unbalanced as error:
            self._error("unbalanced", str(error), removal.id)

    def _replay(self, removal: Removal, outcome: Outcome) -> None:
        """Changes the segments that must exist as the removal did."""
        for summary in removal.inputs:
            self._check_input(summary, removal)
        is_done = outcome in (Outcome.DONE, Outcome.DONE_UNMARKED)
        for summary in removal.inputs if is_done else ():
            still_exists = removal.removes_whole_segments and self._live.has_size(summary)
            if still_exists and outcome is Outcome.DONE:
                self._report_existing(summary, removal)
            if not still_exists:
                self._expected.pop(summary.base_offset, None)
        for summary in removal.outputs if is_done else ():
            self._expected[summary.base_offset] = summary, removal.id
        if outcome is Outcome.UNCLEAR and not self._is_below_log_start(removal.inputs[-1:]):
            message = "neither its inputs nor its outputs exist, and no later line removes them"
            self._error("unclear", message, removal.id)

    def _report_existing(self, summary: SegmentSummary, removal: Removal) -> None:
        message = f"segment {summary.base_offset} is recorded as removed and exists"
        if removal.kind == RemovalKind.EVICTION:
            self.warn("still-there", f"{message}, as well as in object storage", removal.id)
        elif self._is_below_log_start([summary]):
            self.warn("still-there", f"{message}; the next open removes it", removal.id)
        else:
            self._error("still-there", message, removal.id)

    def _is_below_log_start(self, summaries: Sequence[SegmentSummary]) -> bool:
        return all(summary.next_offset <= self._log_start for summary in summaries)

    def _check_input(self, summary: SegmentSummary, removal: Removal) -> None:
        expected, left_by = self._expected.get(summary.base_offset, (summary, 0))
        # A damaged segment is counted as far as it can be read.
        is_cut_short = removal.removes_whole_segments and summary.log_crc is None
        if expected.is_same(summary) or (is_cut_short and expected.size == summary.size):
            return
        message = (
            f"found segment {summary.base_offset} with {_describe(summary)}, removal {left_by} had "
            f"left {_describe(expected)}: it was changed without a record"
        )
        self._error("changed-between", message, removal.id)

    def _check_live(self, summary: SegmentSummary, id: int) -> None:
        """Compares a segment that must exist with the one on disk."""
        name = f"segment {summary.base_offset}"
        segment = self._live.find(summary.base_offset)
        if segment is None and self._is_below_log_start([summary]):
            message = f"{name} is missing without a record, below the log start {self._log_start}"
            self.warn("output-missing", message, id)
        elif segment is None:
            self._error("output-missing", f"{name} is missing without a record", id)
        elif segment.size != summary.size:
            message = f"{name} has {segment.size} bytes, {summary.size} are on record"
            self._error("output-changed", message, id)
        else:
            self._compare(segment, summary, id)

    def _compare(self, segment: LiveSegment, summary: SegmentSummary, id: int) -> None:
        measured = self._live.measure(segment)
        if measured.damage:
            self._error("output-damaged", f"segment {summary.base_offset}: {measured.damage}", id)
        elif not measured.summary.is_same(summary):
            message = (
                f"segment {summary.base_offset} has {_describe(measured.summary)}, on record are "
                f"{_describe(summary)}"
            )
            self._error("output-changed", message, id)
        else:
            self._verified.setdefault(id, []).append(segment)

    def _check_keys(self) -> None:
        path = f"{self._directory}/{PARTITION_METADATA_FILE}"
        try:
            topic_id = decode_partition_metadata(self._fs.read(path), where=path).bytes
        except (FileNotFoundError, Corrupt) as error:
            self.warn(
                "keys-differ", f"keys are not compared, as the topic id is not known: {error}"
            )
            return
        for entry in self._history.entries:
            removal = entry.removal
            segments = self._verified.get(removal.id, [])
            # The digest covers all outputs, so it can be compared only while all of them exist.
            if segments and len(segments) == len(removal.outputs):
                self._compare_keys(removal, segments, topic_id)

    def _compare_keys(
        self, removal: Removal, segments: Sequence[LiveSegment], topic_id: bytes
    ) -> None:
        try:
            # An erasure covers aborted and undecided records too.
            with_aborted = removal.kind is RemovalKind.ERASURE
            digests = [
                self._live.digest(segment, topic_id, with_aborted=with_aborted)
                for segment in segments
            ]
            digest = hex_digest(*digests)
        except Corrupt as error:
            self._error("output-damaged", str(error), removal.id)
            return
        if digest != removal.keys_after:
            message = f"the keys have digest {digest}, on record is {removal.keys_after[:64]}"
            self._error("keys-differ", message, removal.id)


def find_outcome(removal: Removal, later: Sequence[RemovalEntry], live: LiveSegments) -> Outcome:
    """The outcome of a removal without a line `done`.

    Its segments show it: in the first later line that reads any of them, else on disk.
    """
    if not removal.inputs:
        return Outcome.UNCLEAR
    start, end = removal.inputs[0].base_offset, removal.inputs[-1].next_offset
    is_there: Callable[[SegmentSummary], bool] = (
        live.has_size if removal.removes_whole_segments else live.holds
    )
    for entry in later:
        later_inputs = entry.removal.inputs
        if any(start <= summary.base_offset < max(end, start + 1) for summary in later_inputs):
            is_there = partial(_is_among, later_inputs)
            break
    inputs = [is_there(summary) for summary in removal.inputs]
    if removal.removes_whole_segments:
        return Outcome.NOT_DONE if all(inputs) else Outcome.DONE_UNMARKED
    outputs = [is_there(summary) for summary in removal.outputs]
    if all(inputs):
        return Outcome.NOT_DONE
    if all(outputs) or (any(outputs) and not any(inputs)):
        return Outcome.DONE_UNMARKED
    return Outcome.NOT_DONE if any(inputs) else Outcome.UNCLEAR


def _is_among(summaries: Sequence[SegmentSummary], summary: SegmentSummary) -> bool:
    return any(summary.is_same(other) for other in summaries)


def _describe(summary: SegmentSummary) -> str:
    crc = "" if summary.log_crc is None else f" and checksum {summary.log_crc:08x}"
    return f"{summary.records} records in {summary.size} bytes{crc}"
