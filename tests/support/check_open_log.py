"""Checks an open log: what it holds in memory against its files.

Threads    takes the log's lock while it looks; for tests and for a log at rest.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from varve.commit_log.check.findings import RULES, Finding, FindingList
from varve.commit_log.check.producers import EpochCheck, ProducerCheck, ProducerSnapshotFile
from varve.commit_log.check.segment import (
    CheckedSegment,
    SegmentCheck,
    SegmentFacts,
    SegmentIndexes,
)
from varve.commit_log.log import Log
from varve.commit_log.names import (
    INDEX,
    LEADER_EPOCH_FILE,
    LOG,
    SNAPSHOT,
    log_name,
    parse_file_name,
)
from varve.commit_log.producer_snapshots import decode_producer_snapshot, encode_snapshot
from varve.commit_log.segment_reader import ReadableSegment
from varve.foundation.errors import Corrupt

Integers = npt.NDArray[np.int64]

OPEN_LOG_RULES = {
    "offset-order": "Log start, last stable, high watermark and log end are in order.",
    "view-order": "Segments in memory are in order.",
    "view-files": "Segments in memory are those on disk.",
    "snapshot-files": "Snapshots in memory are those on disk.",
    "segment-size": "Sizes in memory are those on disk.",
    "active-extent": "The log ends where its last batch does.",
    "active-timestamp": "The active segment knows its largest timestamp.",
    "index-corrupt": "The indexes of an open log can be read.",
    "producer-state": "Producers in memory are those of the batches.",
    "epochs-file": "Leader epochs in memory are those on disk.",
}


def check_log(log: Log, *, deep: bool = True) -> list[Finding]:
    """Every invariant of an open log; empty when all hold."""
    with log.lock:
        return OpenLogCheck(log, deep=deep).run()


class OpenLogCheck:
    """One check of one open log."""

    def __init__(self, log: Log, *, deep: bool) -> None:
        self._log = log
        self._deep = deep
        self._found = FindingList(RULES | OPEN_LOG_RULES)
        self._where = log.directory

    def run(self) -> list[Finding]:
        log = self._log
        self._check_offsets()
        names = log.segments.fs.names(log.directory)
        self._check_names(names)
        epochs = EpochCheck(
            self._found,
            f"{self._where}/{LEADER_EPOCH_FILE}",
            log.leader_epochs,
            log.log_start_offset,
        )
        producers = ProducerCheck(
            self._found, self._read_snapshots(), log.clock.now_ms(), 86_400_000
        )
        producers.begin(log.view.first_base_offset, log.log_start_offset)
        segments = self._check_segments(producers, epochs)
        producers.finish(log.end_offset)
        self._compare_producers(producers)
        epochs.finish(log.end_offset)
        self._check_active(segments[-1])
        self._check_epoch_file(names)
        return self._found.all()

    def _check_offsets(self) -> None:
        log = self._log
        first = ("first base offset", log.view.first_base_offset)
        offsets = [
            # Where the cold tier holds the beginning, the local segments begin anywhere.
            *([] if log.settings.remote_storage_enable else [first]),
            ("log start offset", log.log_start_offset),
            ("last stable offset", log.last_stable_offset),
            ("high watermark", log.high_watermark),
            ("log end offset", log.end_offset),
        ]
        for (name, offset), (next_name, next_offset) in pairwise(offsets):
            if offset > next_offset:
                message = f"{name} {offset} lies above the {next_name} {next_offset}"
                self._found.error(self._where, "offset-order", message)
        if log.recovery_point > log.end_offset:
            message = f"recovery point {log.recovery_point} lies above the log end offset "
            message += str(log.end_offset)
            self._found.error(self._where, "offset-order", message)
        bases = [segment.base_offset for segment in log.view]
        if any(later <= base for base, later in pairwise(bases)):
            self._found.error(self._where, "view-order", f"base offsets do not ascend: {bases}")

    def _check_names(self, names: list[str]) -> None:
        """The files are those that the log knows."""
        parsed = {name: file for name in names if (file := parse_file_name(name)) is not None}
        plain = [file for file in parsed.values() if not file.state]
        bases = {segment.base_offset for segment in self._log.view}
        on_disk = {file.offset for file in plain if file.kind == LOG}
        if on_disk != bases:
            message = f"segments {sorted(bases)} in memory, {sorted(on_disk)} on disk"
            self._found.error(self._where, "view-files", message)
        snapshots = {file.offset for file in plain if file.kind == SNAPSHOT}
        if snapshots != set(self._log.snapshots.offsets):
            message = f"snapshots {self._log.snapshots.offsets} in memory, "
            message += f"{sorted(snapshots)} on disk"
            self._found.error(self._where, "snapshot-files", message)
        for file in plain:
            if file.kind not in (LOG, SNAPSHOT) and file.offset not in bases:
                path = f"{self._where}/{log_name(file.offset, file.kind)}"
                self._found.error(path, "orphan-index", "an index without its data file")
        pending = {path for _, path in self._log.segments.pending_deletions}
        for name, file in parsed.items():
            if file.state and f"{self._where}/{name}" not in pending:
                path = f"{self._where}/{name}"
                rule = f"leftover-{file.state.removeprefix('.')}"
                self._found.warning(path, rule, "the open log knows nothing of this file")

    def _read_snapshots(self) -> dict[int, ProducerSnapshotFile]:
        known = {}
        for offset in self._log.snapshots.offsets:
            path = self._log.snapshots.path(offset)
            try:
                data = self._log.segments.fs.read(path)
                known[offset] = ProducerSnapshotFile(
                    path, data, decode_producer_snapshot(data, path)
                )
            except FileNotFoundError:
                continue  # named by _check_names
            except Corrupt as error:
                self._found.error(path, "snapshot-corrupt", str(error))
        return known

    def _check_segments(self, producers: ProducerCheck, epochs: EpochCheck) -> list[SegmentFacts]:
        check = SegmentCheck(
            self._found,
            producers=producers,
            epochs=epochs,
            deep=self._deep,
            advance=lambda size: None,
        )
        facts: list[SegmentFacts] = []
        for segment in self._log.view:
            is_last = segment is self._log.view.active
            checked = CheckedSegment(
                directory=self._where,
                base_offset=segment.base_offset,
                is_recovered=False,
            )
            found = self._check_segment(check, checked, segment, is_last=is_last)
            if found is None:
                continue
            if facts and facts[-1].next_offset > segment.base_offset:
                message = f"begins at offset {segment.base_offset}, the segment before ends at "
                message += str(facts[-1].next_offset)
                self._found.error(checked.path(LOG), "segments-overlap", message)
            facts.append(found)
        return facts

    def _check_segment(
        self,
        check: SegmentCheck,
        checked: CheckedSegment,
        segment: ReadableSegment,
        *,
        is_last: bool,
    ) -> SegmentFacts | None:
        path = checked.path(LOG)
        try:
            file = segment.file()
            on_disk = file.size()
            indexes = self._indexes(segment, is_last=is_last)
        except Corrupt as error:
            self._found.error(path, "index-corrupt", str(error))
            return None
        if on_disk < segment.size or (on_disk > segment.size and not is_last):
            message = f"{segment.size} bytes in memory, {on_disk} on disk"
            self._found.error(path, "segment-size", message)
        facts = check.check(checked, file, min(segment.size, on_disk), indexes)
        if facts.fault is not None:
            fault = facts.fault
            self._found.error(path, fault.rule, fault.message, position=fault.position)
        return facts

    def _indexes(self, segment: ReadableSegment, *, is_last: bool) -> SegmentIndexes:
        times = segment.time_index().entries()
        aborted = list(segment.txn_index().entries())
        if is_last:
            # The final time entry is added when the segment is closed; until then it is a field.
            latest = (segment.max_timestamp, segment.max_timestamp_offset)
            last = segment.time_index().last
            if latest[0] > last[0]:
                times = _with_entry(times, latest)
        elif not self._log.segments.fs.exists(segment.path(INDEX)):
            return SegmentIndexes(None, times, aborted)
        return SegmentIndexes(segment.offset_index().entries(), times, aborted)

    def _compare_producers(self, check: ProducerCheck) -> None:
        """The producers in memory against those that the batches tell of."""
        live = {
            entry.producer_id: entry
            for entry in decode_producer_snapshot(encode_snapshot(self._log.producers))
        }
        for producer_id, replayed in check.states.entries.items():
            entry = live.get(producer_id)
            if entry is None:
                if check.is_exact and not replayed.is_expired(check.now_ms, check.expiration_ms):
                    message = f"producer {producer_id} is not known in memory"
                    self._found.error(self._where, "producer-state", message)
                continue
            difference = check.find_difference(entry, replayed)
            if difference:
                message = f"producer {producer_id} in memory: {difference}"
                self._found.error(self._where, "producer-state", message)

    def _check_active(self, facts: SegmentFacts) -> None:
        active = self._log.view.active
        if facts.base_offset != active.base_offset:
            return
        # After a truncation within a batch the log ends before its last batch would have.
        if facts.good_end != active.size or facts.next_offset > self._end():
            message = f"ends at offset {self._end()}, position {active.size} in memory; the "
            message += f"batches end at offset {facts.next_offset}, position {facts.good_end}"
            self._found.error(active.path(LOG), "active-extent", message)
        known = (active.max_timestamp, active.max_timestamp_offset)
        if known[0] != facts.max_timestamp:
            message = f"largest timestamp {known[0]} in memory, {facts.max_timestamp} in the "
            message += "batches"
            self._found.error(active.path(LOG), "active-timestamp", message)

    def _end(self) -> int:
        return self._log.end_offset

    def _check_epoch_file(self, names: list[str]) -> None:
        path = f"{self._where}/{LEADER_EPOCH_FILE}"
        stored = self._log.segments.fs.read(path) if LEADER_EPOCH_FILE in names else None
        if stored is None and not self._log.leader_epochs.entries:
            return
        if stored != self._log.leader_epochs.encode():
            self._found.error(path, "epochs-file", "is not what the log holds in memory")


def _with_entry(times: Integers, entry: tuple[int, int]) -> Integers:
    return np.concatenate([times, np.array([entry], np.int64)])
