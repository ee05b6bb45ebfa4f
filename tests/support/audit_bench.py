"""A partition directory made by hand, with removals that are put on record and carried out."""

from dataclasses import replace

from varve.cleaning.removals.audit import AuditReport, audit_partition
from varve.cleaning.removals.removal import (
    Reason,
    Removal,
    RemovalKind,
    SegmentSummary,
    SegmentSummaryBuilder,
)
from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE, RemovalLog
from varve.commit_log import TopicPartition
from varve.commit_log.names import LOG_START_OFFSET_FILE, log_name
from varve.commit_log.offset_checkpoints import encode_offsets
from varve.commit_log.segment_reader import BatchWalk
from varve.disk import FileSystem
from varve.records import Record, build_batch

DIGEST = "0123456789abcdef" * 2


class AuditBench:
    """Segments hold one batch per record; a removal keeps some of their offsets."""

    def __init__(self, fs: FileSystem, path: str, name: str = "orders-0") -> None:
        self.fs = fs
        self.path = path
        self.directory = f"{path}/{name}"
        self.evidence_path = f"{self.directory}/{REMOVAL_LOG_FILE}"
        topic, _, number = name.rpartition("-")
        self.partition = TopicPartition(topic, int(number))
        fs.make_directory(self.directory)
        self.evidence = RemovalLog(fs, self.directory)

    def log_path(self, base_offset: int, suffix: str = "") -> str:
        return f"{self.directory}/{log_name(base_offset)}{suffix}"

    def write(self, base_offset: int, offsets: list[int], suffix: str = "") -> SegmentSummary:
        """A data file with a record at each offset."""
        data = b"".join(
            build_batch([Record(b"key", b"value %d" % offset)], base_offset=offset)
            for offset in offsets
        )
        path = self.log_path(base_offset, suffix)
        builder = SegmentSummaryBuilder(base_offset)
        with self.fs.open_writable(path) as file:
            file.truncate(0)
            file.write_at(0, data)
            for table in BatchWalk(file, start=0, end=len(data), verify_crc=True):
                builder.add(table)
        return builder.summary()

    def compaction(
        self, inputs: list[SegmentSummary], outputs: list[SegmentSummary], digest: str = DIGEST
    ) -> Removal:
        before = sum(summary.records for summary in inputs)
        kept = sum(summary.records for summary in outputs)
        return Removal(
            id=self.evidence.next_id(),
            partition=self.partition,
            kind=RemovalKind.COMPACTION,
            at_ms=1_700_000_000_000,
            inputs=tuple(replace(summary, log_crc=None) for summary in inputs),
            outputs=tuple(outputs),
            records={Reason.KEPT: kept, Reason.SUPERSEDED: before - kept},
            bytes={Reason.KEPT: kept * 10, Reason.SUPERSEDED: (before - kept) * 10},
            keys_before=digest,
            keys_after=digest,
            rule="cleanup.policy compact",
            end_offset=inputs[-1].next_offset,
        )

    def expiry(self, inputs: list[SegmentSummary]) -> Removal:
        return Removal(
            id=self.evidence.next_id(),
            partition=self.partition,
            kind=RemovalKind.EXPIRY,
            at_ms=1_700_000_000_000,
            inputs=tuple(inputs),
            outputs=(),
            records={Reason.EXPIRED_TIME: sum(summary.records for summary in inputs)},
            bytes={Reason.EXPIRED_TIME: sum(summary.size for summary in inputs)},
            rule="retention.ms=1000",
            end_offset=inputs[-1].next_offset,
        )

    def compact(
        self, inputs: list[SegmentSummary], offsets: list[int], *, is_noted: bool = True
    ) -> SegmentSummary:
        """Puts a compaction into one segment on record and carries it out."""
        base = inputs[0].base_offset
        output = self.write(base, offsets, ".cleaned")
        balance = self.compaction(inputs, [output])
        self.evidence.append(balance)
        for summary in inputs:
            self.fs.remove(self.log_path(summary.base_offset))
        self.fs.rename(self.log_path(base, ".cleaned"), self.log_path(base))
        if is_noted:
            self.evidence.mark_done(balance.id)
        return output

    def expire(self, inputs: list[SegmentSummary], *, is_noted: bool = True) -> None:
        balance = self.expiry(inputs)
        self.evidence.append(balance)
        for summary in inputs:
            self.fs.remove(self.log_path(summary.base_offset))
        if is_noted:
            self.evidence.mark_done(balance.id)

    def write_log_start(self, offset: int) -> None:
        with self.fs.open_writable(f"{self.path}/{LOG_START_OFFSET_FILE}") as file:
            file.truncate(0)
            file.write_at(0, encode_offsets({self.partition: offset}))

    def change_line(self, number: int, old: bytes, new: bytes) -> None:
        lines = self.fs.read(self.evidence_path).splitlines(keepends=True)
        assert old in lines[number - 1]
        lines[number - 1] = lines[number - 1].replace(old, new)
        self.put_lines(lines)

    def put_lines(self, lines: list[bytes]) -> None:
        with self.fs.open_writable(self.evidence_path) as file:
            file.truncate(0)
            file.write_at(0, b"".join(lines))

    def audit(self, head: str | None = None) -> AuditReport:
        return audit_partition(self.fs, self.directory, head=head)
