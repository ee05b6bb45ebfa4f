"""The baseline: a cleaner by Kafka's method, two passes around a map from key to latest offset.

Pass 1 reads the dirty range and puts the hash and the offset of every key into the map. Pass 2
reads every segment from the start of the log again, looks each key up and writes what stays to new
segments, which take the old ones' place. A map that is full ends pass 1 early; the rest is left to
further rounds, which copy the clean part again.

It is made as well as that method can be here: both passes are compiled loops over large chunks,
keys are hashed by varve's own kernel, lookups overlap, records that stay are copied in runs without
being encoded anew, and no checksum is verified on reading. Data and index files are synced, the
directory once for each swap, as Kafka does.

Limits     no transactions and no producer state: batches that need either are refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.compaction.offset_map_kernels import (
    Fate,
    FilterCount,
    MapState,
    Slots,
    Step,
    copy_batches,
    copy_records,
    judge_entries,
    map_entries,
    seal_batch,
)
from benchmarks.compaction.offset_map_segments import Run, SegmentWriter, split_runs
from varve.commit_log import LogSettings
from varve.commit_log.names import CLEANED, DELETED, INDEX, LOG, SWAP, TIME_INDEX, log_name
from varve.commit_log.segment_reader import BatchTable, BatchWalk
from varve.disk import FileSystem
from varve.foundation.errors import InvalidRequest
from varve.kernels.batch_layout import HEADER_BYTES, BatchColumn, RecordStatus, status_text
from varve.kernels.key_entries import ENTRY_WORDS, Entries, scan_keys, scan_payload_keys
from varve.records import Batch, BinaryColumn, build_batch_from_columns, empty_batch
from varve.records.batch_format import decode_header
from varve.records.compression import compress

Bytes = npt.NDArray[np.uint8]

SLOT_BYTES = 24
LOAD_FACTOR = 0.9
_KINDS = (LOG, INDEX, TIME_INDEX)
_TRANSACTIONAL_OR_CONTROL = 0x30
_OFFSET_RANGE_MAX = 2**31 - 1
_K0 = np.uint64(0x0706050403020100)
_K1 = np.uint64(0x0F0E0D0C0B0A0908)


@dataclass(frozen=True, slots=True)
class Source:
    """A closed segment to be cleaned."""

    base_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class OffsetMapReport:
    """One cleaning; records and bytes count what all rounds together read and wrote."""

    rounds: int
    records_read: int
    records_kept: int
    bytes_written: int
    end_offset: int


class OffsetMap:
    """The memory of a cleaner thread: taken once, cleared for every round."""

    def __init__(self, buffer_bytes: int) -> None:
        self.slots: Slots = np.zeros((buffer_bytes // SLOT_BYTES, 3), np.uint64)
        self.capacity = int(len(self.slots) * LOAD_FACTOR)
        self.state = np.zeros(len(MapState), np.int64)
        if self.capacity < 2:
            raise InvalidRequest(f"a map of {buffer_bytes} bytes holds no key; give it more")

    def clear(self, first_dirty_offset: int) -> None:
        self.slots[:] = 0
        self.state[MapState.COUNT] = 0
        self.state[MapState.LATEST_OFFSET] = first_dirty_offset - 1

    @property
    def latest_offset(self) -> int:
        return int(self.state[MapState.LATEST_OFFSET])


@dataclass(slots=True)
class _Totals:
    bytes_written: int = 0
    counts: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(len(FilterCount), np.int64)
    )


class OffsetMapCleaner:
    """Cleans the closed segments of a partition's directory, whose log is not open."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        settings: LogSettings,
        offset_map: OffsetMap,
        *,
        now_ms: int,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._settings = settings
        self._map = offset_map
        self._now_ms = now_ms
        self._totals = _Totals()
        self._entries: Entries = np.empty((0, ENTRY_WORDS), np.uint64)
        self._fates: Bytes = np.empty(0, np.uint8)

    def clean(self, *, first_dirty_offset: int, end_offset: int) -> OffsetMapReport:
        """Rounds of both passes until all from `first_dirty_offset` to `end_offset` is clean."""
        rounds = 0
        while first_dirty_offset < end_offset:
            first_dirty_offset = self._run_round(first_dirty_offset, end_offset)
            rounds += 1
        return OffsetMapReport(
            rounds=rounds,
            records_read=int(self._totals.counts[FilterCount.READ]),
            records_kept=int(self._totals.counts[FilterCount.KEPT]),
            bytes_written=self._totals.bytes_written,
            end_offset=end_offset,
        )

    def _run_round(self, first_dirty_offset: int, end_offset: int) -> int:
        sources = self._find_sources(end_offset)
        self._map.clear(first_dirty_offset)
        self._fill_map(sources, first_dirty_offset, end_offset)
        latest = self._map.latest_offset
        concerned = [source for source in sources if source.base_offset <= latest]
        for group in self._group(concerned, end_offset):
            self._clean_group(group, shell_end=end_offset)
        return latest + 1

    def _find_sources(self, end_offset: int) -> list[Source]:
        found = [
            Source(int(info.name.removesuffix(LOG)), info.size)
            for info in self._fs.scan(self._directory)
            if info.name.endswith(LOG)
        ]
        return [source for source in found if source.base_offset < end_offset]

    def _path(self, base_offset: int, kind: str) -> str:
        return f"{self._directory}/{log_name(base_offset, kind)}"

    def _walk(self, source: Source) -> Iterator[Run]:
        """The batches of a segment in runs of uncompressed ones, and each compressed one alone."""
        path = self._path(source.base_offset, LOG)
        with self._fs.open(path) as file:
            walk = BatchWalk(file, start=0, end=source.size, verify_crc=False)
            for table in walk:
                self._check_supported(table, path)
                yield from split_runs(table, source.base_offset)
            walk.check_ended(path)

    def _check_supported(self, table: BatchTable, path: str) -> None:
        if np.any(table.rows[:, BatchColumn.ATTRIBUTES] & _TRANSACTIONAL_OR_CONTROL):
            raise InvalidRequest(f"{path} has transactions, which the baseline cannot do")
        if np.any(table.rows[:, BatchColumn.PRODUCER_ID] >= 0):
            raise InvalidRequest(f"{path} has producers, which the baseline cannot do")

    def _fill_map(
        self, sources: Sequence[Source], first_dirty_offset: int, end_offset: int
    ) -> None:
        ends = [*(source.base_offset for source in sources[1:]), end_offset]
        for source, end in zip(sources, ends, strict=True):
            if end <= first_dirty_offset:
                continue
            for run in self._walk(source):
                if run.last_offset >= first_dirty_offset and not self._map_run(
                    run, first_dirty_offset
                ):
                    return
            self._map.state[MapState.LATEST_OFFSET] = end - 1

    def _map_run(self, run: Run, first_dirty_offset: int) -> bool:
        """False when the map is full."""
        offset_map = self._map
        entries = self._scan(run)
        step = map_entries(
            entries,
            run.base_offset,
            first_dirty_offset,
            offset_map.capacity,
            offset_map.slots,
            offset_map.state,
        )
        if step == Step.MAP_FULL:
            return False
        offset_map.state[MapState.LATEST_OFFSET] = run.last_offset
        return True

    def _scan(self, run: Run) -> Entries:
        """The keys of a run, in file order, as entries in a buffer that the next scan reuses."""
        if len(self._entries) < run.record_count:
            self._entries = np.empty((run.record_count, ENTRY_WORDS), np.uint64)
            self._fates = np.empty(run.record_count, np.uint8)
        out = self._entries
        rows = run.rows
        if run.is_compressed:
            base, last = (
                int(rows[0, BatchColumn.BASE_OFFSET]),
                int(rows[0, BatchColumn.LAST_OFFSET]),
            )
            count, _, status, *_ = scan_payload_keys(
                run.payload,
                0,
                len(run.payload),
                0,
                run.record_count,
                -1,
                last - base,
                base - run.base_offset,
                0,
                _K0,
                _K1,
                out,
            )
        else:
            skip = np.zeros(len(rows), np.uint8)
            count, *_, status, _row = scan_keys(
                run.payload,
                run.payload_start,
                rows,
                0,
                len(rows),
                run.base_offset,
                0,
                skip,
                _K0,
                _K1,
                out,
            )
        if status != RecordStatus.OK:
            raise InvalidRequest(f"{self._directory}: {status_text(status)}")
        return out[:count]

    def _group(self, sources: Sequence[Source], end_offset: int) -> Iterator[list[Source]]:
        """Neighbours that fit one segment by their sizes before cleaning."""
        ends = [*(source.base_offset for source in sources[1:]), end_offset]
        group: list[Source] = []
        for source, end in zip(sources, ends, strict=True):
            size = sum(one.size for one in group) + source.size
            is_far = bool(group) and end - 1 - group[0].base_offset > _OFFSET_RANGE_MAX
            if group and (size > self._settings.segment_bytes or is_far):
                yield group
                group = []
            group.append(source)
        if group:
            yield group

    def _clean_group(self, group: Sequence[Source], *, shell_end: int) -> None:
        base_offset = group[0].base_offset
        writer = SegmentWriter(self._fs, self._path(base_offset, LOG), base_offset, self._settings)
        for source in group:
            for run in self._walk(source):
                entries = self._scan(run)
                fates = self._fates[: run.record_count]
                fates[:] = Fate.GONE
                judge_entries(entries, run.base_offset, self._map.slots, fates)
                if run.is_compressed:
                    batch = run.batch(0)
                    writer.add(self._filter_batch(batch, run.payload, fates, shell_end))
                else:
                    self._filter_run(run, fates, writer, shell_end)
        modified_ms = self._fs.info(self._path(group[-1].base_offset, LOG)).modified_ms
        self._totals.bytes_written += writer.finish(modified_ms)
        self._swap(base_offset, group)

    def _filter_run(self, run: Run, fates: Bytes, writer: SegmentWriter, shell_end: int) -> None:
        row, record = 0, 0
        while row < len(run.rows):
            row, record, writer.filled, step = copy_batches(
                run.payload,
                run.payload_start,
                run.rows,
                row,
                record,
                self._map.latest_offset,
                shell_end,
                self._now_ms,
                fates,
                writer.out,
                writer.filled,
                self._totals.counts,
            )
            if step == Step.NO_ROOM:
                writer.make_room(int(run.rows[row, BatchColumn.SIZE]))
            elif step != Step.DONE:
                batch, count = run.batch(row), int(run.rows[row, BatchColumn.RECORD_COUNT])
                chosen = fates[record : record + count]
                writer.add(self._filter_batch(batch, batch[HEADER_BYTES:], chosen, shell_end))
                row, record = row + 1, record + count

    def _filter_batch(self, batch: Bytes, records: Bytes, fates: Bytes, shell_end: int) -> Bytes:
        """What stays of one batch: the batch itself, a smaller one, its shell, or nothing."""
        header = decode_header(batch.data)
        out = np.empty(len(records), np.uint8)
        horizon_ms = header.delete_horizon_ms
        kept, end, largest, tombstones = copy_records(
            records,
            0,
            header.records_count,
            header.base_offset,
            header.base_timestamp,
            self._map.latest_offset,
            horizon_ms is not None and self._now_ms >= horizon_ms,
            fates,
            out,
            0,
        )
        self._totals.counts[FilterCount.READ] += header.records_count
        self._totals.counts[FilterCount.KEPT] += kept
        if tombstones and horizon_ms is None:
            return self._with_horizon(batch, fates)
        if kept == header.records_count:
            return batch
        if kept:
            payload = compress(header.codec, out.data[:end])
            rebuilt = np.concatenate([batch[:HEADER_BYTES], np.frombuffer(payload, np.uint8)])
            seal_batch(rebuilt, 0, len(rebuilt), header.attributes, kept, largest)
            return rebuilt
        is_last = header.next_offset == shell_end
        return np.frombuffer(empty_batch(header) if is_last else b"", np.uint8)

    def _with_horizon(self, batch: Bytes, fates: Bytes) -> Bytes:
        """The records that stay, their timestamps counted from the delete horizon."""
        source = Batch(batch.data)
        header, columns = source.header, source.columns_as_sent()
        chosen = np.flatnonzero(fates)
        keys, values = columns.keys_column(), columns.values_column()
        rebuilt = build_batch_from_columns(
            BinaryColumn.at(keys.data, starts=keys.starts[chosen], sizes=keys.sizes[chosen]),
            BinaryColumn.at(values.data, starts=values.starts[chosen], sizes=values.sizes[chosen]),
            columns.timestamps[chosen],
            base_offset=header.base_offset,
            codec=header.codec,
            leader_epoch=header.partition_leader_epoch,
            delete_horizon_ms=self._now_ms + self._settings.delete_retention_ms,
            offset_deltas=columns.offsets[chosen] - header.base_offset,
            last_offset_delta=header.last_offset_delta,
        )
        return np.frombuffer(rebuilt, np.uint8)

    def _swap(self, base_offset: int, group: Sequence[Source]) -> None:
        """§6.9 of Kafka's protocol, with its one sync of the directory."""
        for kind in _KINDS:
            path = self._path(base_offset, kind)
            self._fs.rename(path + CLEANED, path + SWAP)
        for source in group:
            for kind in _KINDS:
                path = self._path(source.base_offset, kind)
                self._fs.rename(path, path + DELETED)
        for kind in _KINDS:
            path = self._path(base_offset, kind)
            self._fs.rename(path + SWAP, path)
        self._fs.sync_directory(self._directory)
