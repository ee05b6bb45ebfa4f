"""Verifies all bytes of segments against the manifest; a task of a verification.

All objects of a segment are fetched once to a scratch directory, and checked like a closed segment
of a local log.

Memory     a chunk, the tables of a segment's batches, and `buffer_bytes` for its keys.
Invariant  reads only. If the data of a segment is damaged, its indexes are not compared with it.
           Findings about a segment that has left the manifest during the run are dropped.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from varve.cleaning.key_index.builder import build_key_index
from varve.cleaning.key_index.key_index import HEADER_BYTES as KEYS_HEADER_BYTES
from varve.cleaning.key_index.key_index import KeyIndexHeader
from varve.commit_log.check.findings import FindingList
from varve.commit_log.check.partition import ignore_progress
from varve.commit_log.check.producers import EpochCheck, ProducerCheck, ProducerSnapshotFile
from varve.commit_log.check.segment import CheckedSegment, SegmentCheck, SegmentFacts, read_indexes
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import INDEX, KEYS, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.commit_log.producer_snapshots import SnapshotEntry, decode_producer_snapshot
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import RealFileSystem
from varve.foundation.errors import Corrupt, ObjectNotFound, OffsetOverflow
from varve.jobs.tier.bucket import BucketAccess
from varve.jobs.tier.remote_files import FileInput, checksum, scratch
from varve.jobs.verify.keys import find_claimed, find_difference
from varve.jobs.verify.result import VERIFY_RULES, VerifyFinding
from varve.kernels.crc import extend_crc32c
from varve.object_store import ObjectStore
from varve.records import HEADER_BYTES, decode_header
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    EPOCHS_PART,
    KEYS_PART,
    LOG_PART,
    SNAPSHOT_PART,
    ObjectPart,
    RemoteSegment,
    is_in_lineage,
)
from varve.tiering.segment_upload import CHUNK_BYTES

_PRODUCER_EXPIRATION_MS: Final = 86_400_000
"""Kafka's default of `producer.id.expiration.ms`; the bucket does not store the setting."""
_BUILT: Final = "built"
"""File name of the key index that is built from the data, beside the fetched parts."""
_KINDS: Final = {LOG_PART: LOG, "index": INDEX, "timeindex": TIME_INDEX, "txnindex": TXN_INDEX}
"""File suffixes of the parts that a local segment has too."""


@dataclass(frozen=True, slots=True)
class SegmentWork:
    """A segment to verify; `previous` is the segment before it, None if it is unknown.

    `missing` are the parts that fsck reports as missing or of another size.
    """

    segment: RemoteSegment
    previous: RemoteSegment | None
    missing: frozenset[str]


@dataclass(frozen=True, slots=True)
class SegmentOutcome:
    """The findings about one segment; `header` is that of a correct key index, else None."""

    id: str
    findings: tuple[VerifyFinding, ...]
    header: KeyIndexHeader | None
    verified_bytes: int
    first_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsTask:
    """Verifies a few segments of one partition, one after another."""

    bucket: BucketAccess
    partition: RemotePath
    works: tuple[SegmentWork, ...]
    aborted: tuple[AbortedTransaction, ...]
    trusted_end: int
    log_start_offset: int
    topic_id: bytes
    now_ms: int
    buffer_bytes: int

    def run(self, shared: None) -> list[SegmentOutcome]:
        return [self._verify(work) for work in self.works]

    def _verify(self, work: SegmentWork) -> SegmentOutcome:
        with scratch() as directory:
            outcome = _SegmentVerification(self, work, directory).run()
        if outcome.findings and not self._is_still_readable(work.segment):
            return SegmentOutcome(work.segment.id, (), None, outcome.verified_bytes, -1)
        return outcome

    def _is_still_readable(self, segment: RemoteSegment) -> bool:
        manifests = self.bucket.manifests(self.partition)
        current = manifests.find_listed(base_offset=segment.base_offset, id=segment.id)
        return current is not None and current.is_readable


class _SegmentVerification:
    """Verifies one segment in a scratch directory."""

    def __init__(self, task: SegmentsTask, work: SegmentWork, directory: str) -> None:
        self._task = task
        self._segment = work.segment
        self._work = work
        self._directory = directory
        self._fs = RealFileSystem()
        self._objects: ObjectStore = task.bucket.objects()
        self._paths = {part.name: self._path(part.name) for part in work.segment.parts}
        self._fetched: set[str] = set()
        self._wrong_crcs: dict[str, int] = {}
        self._findings: list[VerifyFinding] = []
        self._verified = 0
        self._header: KeyIndexHeader | None = None

    def run(self) -> SegmentOutcome:
        for part in self._segment.parts:
            if part.name not in self._work.missing:
                self._fetch(part)
        first_timestamp = -1
        snapshot, epochs = self._read_snapshot(), self._read_epochs()
        if LOG_PART in self._fetched:
            first_timestamp = self._first_timestamp()
            self._check_data(snapshot, epochs)
        findings = tuple(self._list_findings())
        header = None if any(finding.is_damage for finding in findings) else self._header
        return SegmentOutcome(self._segment.id, findings, header, self._verified, first_timestamp)

    def _path(self, name: str) -> str:
        kind = _KINDS.get(name)
        return f"{self._directory}/{log_name(self._segment.base_offset, kind) if kind else name}"

    def _key(self, name: str) -> str:
        return self._task.partition.part_key(self._segment, name)

    # Fetching

    def _fetch(self, part: ObjectPart) -> None:
        crc, size = 0, 0
        try:
            with open(self._paths[part.name], "wb") as file:
                for start in range(0, part.size, CHUNK_BYTES):
                    end = min(start + CHUNK_BYTES, part.size)
                    data = self._objects.get_range(self._key(part.name), start, end)
                    crc = int(extend_crc32c(crc, np.frombuffer(data, np.uint8), 0, len(data)))
                    size += len(data)
                    file.write(data)
        except ObjectNotFound:
            self._add(
                "object-missing",
                part.name,
                "the object is missing",
                expected=f"{part.size} bytes",
                found="nothing",
            )
            return
        self._fetched.add(part.name)
        if crc == part.crc32c and size == part.size:
            self._verified += size
        else:
            self._wrong_crcs[part.name] = crc

    # Producer snapshot and leader epochs

    def _read_snapshot(self) -> ProducerSnapshotFile | None:
        if SNAPSHOT_PART not in self._fetched:
            return None
        path = self._paths[SNAPSHOT_PART]
        try:
            data = self._fs.read(path)
            return ProducerSnapshotFile(path, data, decode_producer_snapshot(data, path))
        except Corrupt as error:
            self._add("snapshot-corrupt", SNAPSHOT_PART, self._clean(str(error)))
            return None

    def _read_epochs(self) -> LeaderEpochs | None:
        if EPOCHS_PART not in self._fetched:
            return None
        path = self._paths[EPOCHS_PART]
        try:
            epochs = LeaderEpochs.decode(self._fs.read(path), path)
        except Corrupt as error:
            self._add("epochs-corrupt", EPOCHS_PART, self._clean(str(error)))
            return None
        segment = self._segment
        if not is_in_lineage(segment, epochs.entries, log_end_offset=segment.end_offset + 1):
            self._add(
                "segment-epochs",
                EPOCHS_PART,
                "the leader epochs of the epochs object are not those of the manifest",
                expected=str(list(segment.epochs)),
                found=str([tuple(entry) for entry in epochs.entries]),
            )
        return epochs

    def _read_previous(self) -> ProducerSnapshotFile | None:
        """Reads the producers at the start of the segment; None if they are unknown."""
        previous = self._work.previous
        part = None if previous is None else previous.find_part(SNAPSHOT_PART)
        if previous is None or part is None:
            return None
        key = self._task.partition.part_key(previous, SNAPSHOT_PART)
        try:
            data = bytes(self._objects.get(key))
            is_intact = checksum(data) == part.crc32c
            entries = decode_producer_snapshot(data, key)
        except (Corrupt, ObjectNotFound):
            return None  # Reported with the previous segment.
        return ProducerSnapshotFile(key, data, entries) if is_intact else None

    # Data, and the indexes derived from it

    def _first_timestamp(self) -> int:
        if self._segment.size < HEADER_BYTES:
            return -1
        with self._fs.open(self._paths[LOG_PART]) as file:
            data = file.read_at(0, HEADER_BYTES)
        try:
            return decode_header(data).base_timestamp
        except Corrupt:
            return -1

    def _check_data(
        self, snapshot: ProducerSnapshotFile | None, epochs: LeaderEpochs | None
    ) -> None:
        findings = FindingList()
        facts = self._walk(findings, snapshot, epochs)
        for finding in findings.all():
            name = self._name_of(finding.path)
            if name not in self._work.missing:
                message = self._clean(finding.message)
                severity, position = finding.severity, finding.position
                self._add(finding.rule, name, message, severity=severity, position=position)
        if facts.fault is not None:
            fault = facts.fault
            self._add(fault.rule, LOG_PART, self._clean(fault.message), position=fault.position)
        if self._has_bad_data():
            return
        end = self._segment.end_offset + 1
        if facts.next_offset > end:
            self._add(
                "segment-offsets",
                LOG_PART,
                "a batch has offsets after the segment's last offset",
                offset=facts.next_offset - 1,
                expected=f"offsets up to {end - 1}",
                found=f"offset {facts.next_offset - 1}",
            )
        header = self._build_keys()
        if header is not None:
            self._check_figures(header, facts, snapshot)
            if KEYS_PART in self._fetched:
                self._compare_keys()

    def _walk(
        self,
        findings: FindingList,
        snapshot: ProducerSnapshotFile | None,
        epochs: LeaderEpochs | None,
    ) -> SegmentFacts:
        segment, task = self._segment, self._task
        previous = self._read_previous()
        snapshots = {} if snapshot is None else {segment.end_offset + 1: snapshot}
        if previous is not None:
            snapshots[segment.base_offset] = previous
        producers = ProducerCheck(findings, snapshots, task.now_ms, _PRODUCER_EXPIRATION_MS)
        producers.begin(segment.base_offset, task.log_start_offset)
        # Records that were compacted away at the end are in no batch.
        producers.has_gaps = segment.record_count != segment.end_offset - segment.base_offset + 1
        epoch_check = EpochCheck(findings, self._path(EPOCHS_PART), epochs, task.log_start_offset)
        checked = CheckedSegment(
            directory=self._directory, base_offset=segment.base_offset, is_recovered=False
        )
        check = SegmentCheck(
            findings, producers=producers, epochs=epoch_check, deep=False, advance=ignore_progress
        )
        with self._fs.open(self._paths[LOG_PART]) as file:
            facts = check.check(
                checked, file, file.size(), read_indexes(self._fs, checked, findings)
            )
        if facts.fault is None:
            producers.finish(segment.end_offset + 1)
            if epochs is not None:
                epoch_check.finish(segment.end_offset + 1)
        return facts

    def _build_keys(self) -> KeyIndexHeader | None:
        """Builds the key index from the data; None if a record cannot be read."""
        segment, task = self._segment, self._task
        claimed: tuple[AbortedTransaction, ...] = ()
        if KEYS_PART in self._fetched:
            claimed = find_claimed(self._fs, self._paths[KEYS_PART], from_offset=task.trusted_end)
        path = self._paths[LOG_PART]
        with self._fs.open(path) as file:
            source = FileInput(segment.base_offset, file.size(), path, file)
            try:
                return build_key_index(
                    self._fs,
                    source,
                    topic_id=task.topic_id,
                    aborted=(*task.aborted, *claimed),
                    buffer_bytes=task.buffer_bytes,
                    path=self._path(_BUILT),
                )
            except (Corrupt, OffsetOverflow) as error:
                self._add("records-corrupt", LOG_PART, self._clean(str(error)))
                return None

    def _compare_keys(self) -> None:
        difference = find_difference(self._fs, self._paths[KEYS_PART], self._path(_BUILT))
        if difference is None:
            with self._fs.open(self._paths[KEYS_PART]) as file:
                self._header = KeyIndexHeader.decode(file.read_at(0, KEYS_HEADER_BYTES))
            return
        self._add("keys-untrue", KEYS_PART, **asdict(difference))

    def _check_figures(
        self, header: KeyIndexHeader, facts: SegmentFacts, snapshot: ProducerSnapshotFile | None
    ) -> None:
        for name, listed, actual in self._figures(header, facts, snapshot):
            if listed != actual:
                self._add(
                    "segment-figures",
                    LOG_PART,
                    f"the manifest has another {name}",
                    expected=f"{name} {actual}",
                    found=f"{name} {listed}",
                )

    def _figures(
        self, header: KeyIndexHeader, facts: SegmentFacts, snapshot: ProducerSnapshotFile | None
    ) -> Iterator[tuple[str, object, object]]:
        """Yields the name of each figure, its value in the manifest, and its actual value."""
        segment = self._segment
        yield "size", segment.size, header.log_size
        yield "record count", segment.record_count, header.record_count
        yield "largest timestamp", segment.max_timestamp, facts.max_timestamp
        if segment.key_count is not None and KEYS_PART in self._paths:
            yield "key count", segment.key_count, header.entry_count
        if segment.delete_horizon_ms is not None:
            yield "delete horizon", segment.delete_horizon_ms, header.earliest_horizon
        if "txnindex" not in self._paths or "txnindex" in self._fetched:
            yield "mark of aborted transactions", segment.has_aborted, self._has_aborted()
        if snapshot is not None:
            undecided = _find_undecided(snapshot.entries)
            yield "first undecided offset", segment.undecided_from, undecided

    def _has_aborted(self) -> bool:
        if "txnindex" not in self._fetched:
            return False
        data = self._fs.read(self._paths["txnindex"])
        try:
            return bool(TransactionIndex.decode(data, self._segment.base_offset).entries())
        except Corrupt:
            return self._segment.has_aborted  # Reported already.

    # Findings

    def _add(self, rule: str, name: str, message: str, **details: Any) -> None:
        base_offset = self._segment.base_offset
        self._findings.append(
            VerifyFinding.of(rule, self._key(name), message, base_offset=base_offset, **details)
        )

    def _has_bad_data(self) -> bool:
        key = self._key(LOG_PART)
        return any(finding.where == key and finding.is_damage for finding in self._findings)

    def _list_findings(self) -> list[VerifyFinding]:
        """Lists findings; those about an object with a wrong checksum become its details."""
        findings = self._findings
        if self._has_bad_data() or LOG_PART in self._wrong_crcs:
            # Comparisons with damaged data are meaningless.
            findings = [finding for finding in findings if self._stands_alone(finding)]
        damaged: list[VerifyFinding] = []
        for part in self._segment.parts:
            key = self._key(part.name)
            if part.name in self._wrong_crcs:
                details = [finding for finding in findings if finding.where == key]
                findings = [finding for finding in findings if finding.where != key]
                damaged.append(self._checksum_finding(part, details))
        return [*damaged, *findings]

    def _stands_alone(self, finding: VerifyFinding) -> bool:
        is_decoded = finding.rule in ("snapshot-corrupt", "epochs-corrupt", "object-missing")
        return is_decoded or finding.where == self._key(LOG_PART)

    def _checksum_finding(self, part: ObjectPart, details: list[VerifyFinding]) -> VerifyFinding:
        first = details[0] if details else None
        problem = "its bytes differ from those that were copied"
        rule = "keys-untrue" if part.name == KEYS_PART else "object-checksum"
        return VerifyFinding.of(
            "object-checksum",
            self._key(part.name),
            problem if first is None else f"{problem}: {first.message}",
            remedy=VERIFY_RULES[rule].remedy,
            base_offset=self._segment.base_offset,
            position=None if first is None else first.position,
            offset=None if first is None else first.offset,
            expected=f"CRC-32C {part.crc32c:08x}",
            found=f"CRC-32C {self._wrong_crcs[part.name]:08x}",
        )

    def _name_of(self, path: str) -> str:
        """Returns the part name of a file in the scratch directory."""
        name = path.removeprefix(f"{self._directory}/")
        suffix = name[name.rfind(".") :] if "." in name else ""
        return suffix.removeprefix(".") if suffix in (*_KINDS.values(), KEYS) else name

    def _clean(self, message: str) -> str:
        """Replaces paths of the scratch directory in a message by part names."""
        for name in (*self._paths, _BUILT):
            message = message.replace(f"{self._path(name)}: ", "")
            message = message.replace(self._path(name), name)
        return message


def _find_undecided(entries: list[SnapshotEntry]) -> int | None:
    firsts = [entry.transaction_first_offset for entry in entries]
    return min((first for first in firsts if first >= 0), default=None)
