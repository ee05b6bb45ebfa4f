"""Checks one partition directory: names, segments in order, snapshots, epochs, metadata.

Invariant  a check only reads, and damage never raises: it becomes a finding. The packages that
           write key indexes and evidence check their content.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from varve.commit_log.append_times import ENTRY_BYTES, decode_append_times
from varve.commit_log.check.findings import Finding, FindingList, Severity
from varve.commit_log.check.producers import (
    REMOVE_SNAPSHOT,
    EpochCheck,
    ProducerCheck,
    ProducerSnapshotFile,
    read_epochs,
)
from varve.commit_log.check.segment import CheckedSegment, SegmentCheck, SegmentFacts, read_indexes
from varve.commit_log.directory_files import decode_partition_metadata
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import (
    APPEND_TIMES_FILE,
    DELETED,
    KEYS,
    LEADER_EPOCH_FILE,
    LOG,
    OWN_PREFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT,
    SegmentFileName,
    is_unfinished_key_index,
    log_name,
    parse_file_name,
)
from varve.commit_log.producer_snapshots import decode_producer_snapshot
from varve.disk import TEMPORARY_SUFFIX, FileInfo, FileSystem
from varve.foundation.errors import Corrupt

_KNOWN_NAMES: Final = (LEADER_EPOCH_FILE, PARTITION_METADATA_FILE)
NEEDS_PERMISSION: Final = "needs --allow-data-loss"


def ignore_progress(size: int) -> None:
    """Progress callback that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionContext:
    """What the log directory's files state about a partition, and options of the check."""

    clean: bool = False
    recovery_point: int | None = None
    """None when unknown: only the last segment then counts as unsynced."""
    log_start_offset: int = 0
    high_watermark: int | None = None
    now_ms: int = 0
    producer_expiration_ms: int = 86_400_000
    deep: bool = False
    advance: Callable[[int], None] = ignore_progress


@dataclass(frozen=True, slots=True)
class Loss:
    """Bytes that recovery would remove from a data file, from a position to its end."""

    path: str
    position: int
    size: int


@dataclass(slots=True, kw_only=True)
class PartitionFacts:
    """The result of checking a partition."""

    directory: str
    findings: list[Finding]
    first_base_offset: int
    end_offset: int
    epochs: LeaderEpochs
    """The leader epochs according to the batches."""
    history: LeaderEpochs
    """The leader epochs in the stored file, which may include epochs without local batches."""
    topic_id: UUID | None
    losses: list[Loss] = field(default_factory=list)
    segments: list[SegmentFacts] = field(default_factory=list)

    @property
    def bad_snapshots(self) -> list[str]:
        rules = ("snapshot-corrupt", "snapshot-untrue", "snapshot-incomplete")
        return sorted({finding.path for finding in self.findings if finding.rule in rules})

    @property
    def has_bad_epochs(self) -> bool:
        rules = ("epochs-corrupt", "epochs-order", "epochs-untrue", "epochs-incomplete")
        return any(finding.rule in (*rules, "missing-epochs") for finding in self.findings)


class PartitionCheck:
    """One check of one partition directory."""

    def __init__(self, fs: FileSystem, directory: str, context: PartitionContext) -> None:
        self._fs = fs
        self._directory = directory
        self._context = context
        self._findings = FindingList()

    def run(self) -> PartitionFacts:
        """Raises only OSError, when the directory itself cannot be listed."""
        entries = self._fs.scan(self._directory)
        self._check_own_files(entries)
        names = [entry.name for entry in entries if not entry.is_directory]
        parsed = {name: file for name in names if (file := parse_file_name(name)) is not None}
        self._check_names(names, parsed)
        plain = [file for file in parsed.values() if not file.state]
        bases = sorted(file.offset for file in plain if file.kind == LOG)
        self._check_orphans(plain, bases)
        topic_id = self._check_metadata(names)
        epoch_path = f"{self._directory}/{LEADER_EPOCH_FILE}"
        stored = read_epochs(self._fs, epoch_path, self._findings)
        epochs = EpochCheck(self._findings, epoch_path, stored, self._context.log_start_offset)
        producers = ProducerCheck(
            self._findings,
            self._read_snapshots(plain, bases),
            self._context.now_ms,
            self._context.producer_expiration_ms,
        )
        first_base = bases[0] if bases else self._context.log_start_offset
        producers.begin(first_base, self._context.log_start_offset)
        segments = self._check_segments(bases, producers, epochs)
        end_offset = segments[-1].next_offset if segments else first_base
        losses = self._check_faults(segments)
        if not any(segment.fault for segment in segments):
            producers.finish(end_offset)
            epochs.finish(end_offset)
        return PartitionFacts(
            directory=self._directory,
            findings=self._findings.all(),
            first_base_offset=first_base,
            end_offset=end_offset,
            epochs=epochs.rebuilt,
            history=stored or epochs.rebuilt,
            topic_id=topic_id,
            losses=losses,
            segments=segments,
        )

    def _check_own_files(self, entries: Sequence[FileInfo]) -> None:
        """Checks the append times, and for directories with the name of a key index."""
        for entry in entries:
            path = f"{self._directory}/{entry.name}"
            file = parse_file_name(entry.name)
            if entry.name == APPEND_TIMES_FILE and not entry.is_directory:
                self._check_append_times(path)
            elif entry.name == APPEND_TIMES_FILE:
                message = "a directory where append times belong: the log cannot be opened until "
                self._findings.error(path, "not-a-file", message + "it is moved away")
            elif entry.is_directory and file is not None and file.kind == KEYS:
                message = "a directory where the key index belongs: the partition is not compacted "
                self._findings.error(path, "not-a-file", message + "until it is moved away")

    def _check_append_times(self, path: str) -> None:
        try:
            data = self._fs.read(path)
        except FileNotFoundError:
            self._findings.note(path, "vanished", "removed while it was checked")
            return
        count, trailing_size = divmod(len(data), ENTRY_BYTES)
        invalid = count - sum(1 for _ in decode_append_times(data))
        if invalid or trailing_size:
            message = (
                f"{invalid} of {count} entries do not match their CRC, {trailing_size} trailing "
                "bytes are not a whole entry; both are ignored, and a segment without an entry "
                "counts as appended when its data file was last changed"
            )
            self._findings.note(path, "append-times-corrupt", message)

    def _check_names(self, names: list[str], parsed: dict[str, SegmentFileName]) -> None:
        for name in names:
            path = f"{self._directory}/{name}"
            file = parsed.get(name)
            if file is None:
                if name.endswith(TEMPORARY_SUFFIX) or is_unfinished_key_index(name):
                    message = "left over from a write that did not finish"
                    self._findings.note(path, "leftover-tmp", message, repair="remove the file")
                elif name not in _KNOWN_NAMES and not name.startswith(OWN_PREFIX):
                    self._findings.note(path, "unknown-file", "not a file of a partition; ignored")
            elif file.state == DELETED:
                message = "deleted, but not yet removed"
                self._findings.note(path, "leftover-deleted", message, repair="remove the file")
            elif file.state:
                message = "a cleaning or split was cut short"
                repair = "finish the swap or drop it, as the next open would"
                rule = f"leftover-{file.state.removeprefix('.')}"
                self._findings.warning(path, rule, message, repair=repair)

    def _check_orphans(self, plain: list[SegmentFileName], bases: list[int]) -> None:
        for file in plain:
            if file.kind not in (LOG, SNAPSHOT) and file.offset not in bases:
                path = f"{self._directory}/{log_name(file.offset, file.kind)}"
                message = "an index without its data file"
                # Kafka's cleaner does not remove the key indexes of segments that it merges.
                report = self._findings.note if file.kind == KEYS else self._findings.error
                report(path, "orphan-index", message, repair="remove the index")

    def _check_metadata(self, names: list[str]) -> UUID | None:
        path = f"{self._directory}/{PARTITION_METADATA_FILE}"
        if PARTITION_METADATA_FILE not in names:
            message = "no topic id; Kafka would set the partition aside as stray"
            self._findings.warning(path, "missing-partition-metadata", message)
            return None
        try:
            return decode_partition_metadata(self._fs.read(path), where=path)
        except Corrupt as error:
            self._findings.add_corrupt(path, "partition-metadata-corrupt", error)
            return None

    def _read_snapshots(
        self, plain: list[SegmentFileName], bases: list[int]
    ) -> dict[int, ProducerSnapshotFile]:
        """The readable snapshots by offset; reports the others, and strays."""
        offsets = sorted(file.offset for file in plain if file.kind == SNAPSHOT)
        snapshots = {}
        for offset in offsets:
            path = f"{self._directory}/{log_name(offset, SNAPSHOT)}"
            is_latest = offset == offsets[-1] and bool(bases) and offset >= bases[-1]
            if offset not in bases and not is_latest:
                message = "belongs to no segment; the next open removes it"
                self._findings.note(path, "snapshot-stray", message, repair="remove the snapshot")
            try:
                data = self._fs.read(path)
                snapshots[offset] = ProducerSnapshotFile(
                    path, data, decode_producer_snapshot(data, path)
                )
            except FileNotFoundError:
                self._findings.note(path, "vanished", "removed while it was checked")
            except Corrupt as error:
                self._findings.add_corrupt(path, "snapshot-corrupt", error, repair=REMOVE_SNAPSHOT)
        return snapshots

    def _check_segments(
        self, bases: list[int], producers: ProducerCheck, epochs: EpochCheck
    ) -> list[SegmentFacts]:
        check = SegmentCheck(
            self._findings,
            producers=producers,
            epochs=epochs,
            deep=self._context.deep,
            advance=self._context.advance,
        )
        facts: list[SegmentFacts] = []
        recovery_point = self._context.recovery_point
        if recovery_point is None:
            recovery_point = max(bases, default=0)
        for number, base in enumerate(bases):
            is_last = number + 1 == len(bases)
            is_recovered = is_last or bases[number + 1] > recovery_point
            checked = CheckedSegment(
                directory=self._directory,
                base_offset=base,
                is_recovered=is_recovered and not self._context.clean,
            )
            try:
                indexes = read_indexes(self._fs, checked, self._findings)
                with self._fs.open(checked.path(LOG)) as file:
                    segment = check.check(checked, file, file.size(), indexes)
            except FileNotFoundError:
                self._findings.note(checked.path(LOG), "vanished", "removed while it was checked")
                continue
            if facts and facts[-1].next_offset > base:
                message = f"begins at offset {base}, the segment before ends at "
                message += str(facts[-1].next_offset)
                self._findings.error(checked.path(LOG), "segments-overlap", message)
            facts.append(segment)
        return facts

    def _check_faults(self, segments: list[SegmentFacts]) -> list[Loss]:
        """Reports where recovery would truncate; returns the bytes that would be lost."""
        losses: list[Loss] = []
        for number, segment in enumerate(segments):
            fault = segment.fault
            if fault is None:
                continue
            path = f"{self._directory}/{log_name(segment.base_offset, LOG)}"
            later = segments[number + 1 :]
            is_first = not losses
            if is_first and (not fault.is_zeros or later):
                losses.append(Loss(path, segment.good_end, segment.size - segment.good_end))
                losses += [
                    Loss(f"{self._directory}/{log_name(s.base_offset, LOG)}", 0, s.size)
                    for s in later
                    if s.size
                ]
            self._findings.add(
                self._fault_severity(segment, is_last=not later),
                path,
                fault.rule,
                f"{fault.message}; {segment.size - segment.good_end} bytes from there on",
                position=fault.position,
                repair=_fault_repair(segment, len(later)),
            )
        return losses

    def _fault_severity(self, segment: SegmentFacts, *, is_last: bool) -> Severity:
        """After a crash the last segment may end in zeros or in an incomplete batch."""
        assert segment.fault is not None
        context = self._context
        if context.clean or not is_last or segment.next_offset < (context.recovery_point or 0):
            return Severity.ERROR
        if segment.fault.is_zeros:
            return Severity.NOTE
        return Severity.WARNING if segment.fault.rule == "torn-tail" else Severity.ERROR


def _fault_repair(segment: SegmentFacts, later_count: int) -> str | None:
    fault = segment.fault
    if fault is None or fault.rule == "old-format":
        return None
    cut = f"cut {segment.size - segment.good_end} bytes at {segment.good_end}"
    if later_count:
        cut += f" and drop {later_count} later segments"
    return cut if fault.is_zeros and not later_count else f"{cut} ({NEEDS_PERMISSION})"
