"""The baseline: a cleaner by Kafka's method, two passes around a map from key to latest offset.

Pass 1 reads the dirty range and puts the hash and the offset of every key into the map. Pass 2
reads every segment from the start of the log again, looks each key up and writes what stays to new
segments, which take the old ones' place. A map that is full ends pass 1 early; the rest is left to
further rounds, which copy the clean part again.

It is made as well as that method can be here: both passes are compiled loops over large chunks,
records that stay are copied in runs without being encoded anew, and no checksum is verified on
reading. Data and index files are synced, the directory once for each swap, as Kafka does.

Limits     no transactions and no producer state: batches that need either are refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.compaction.offset_map_kernels import (
    FilterCount,
    MapState,
    Slots,
    Step,
    filter_batches,
    filter_records,
    map_batches,
    map_records,
    seal_batch,
)
from varve.commit_log import LogSettings
from varve.commit_log.names import CLEANED, DELETED, INDEX, LOG, SWAP, TIME_INDEX, log_name
from varve.commit_log.segment_recovery import SegmentIndexer
from varve.commit_log.segment_scan import BatchTable, BatchWalk
from varve.disk import FileSystem
from varve.foundation.errors import InvalidRequest
from varve.kernels.batch_scan import FIELD_COUNT, HEADER_SIZE, Field, scan_batches
from varve.records import Batch, BinaryColumn, Codec, build_batch_from_columns, empty_batch
from varve.records.compression import compress, decompress_to_array
from varve.records.header import CODEC_MASK, decode_header

Bytes = npt.NDArray[np.uint8]

SLOT_BYTES = 24
LOAD_FACTOR = 0.9
_OUT_BYTES = 4 << 20
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

    def clear(self, first_dirty: int) -> None:
        self.slots[:] = 0
        self.state[MapState.COUNT] = 0
        self.state[MapState.LATEST_OFFSET] = first_dirty - 1

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

    def clean(self, *, first_dirty: int, end_offset: int) -> OffsetMapReport:
        """Rounds of both passes until everything from `first_dirty` to `end_offset` is clean."""
        rounds = 0
        while first_dirty < end_offset:
            first_dirty = self._run_round(first_dirty, end_offset)
            rounds += 1
        return OffsetMapReport(
            rounds=rounds,
            records_read=int(self._totals.counts[FilterCount.READ]),
            records_kept=int(self._totals.counts[FilterCount.KEPT]),
            bytes_written=self._totals.bytes_written,
            end_offset=end_offset,
        )

    def _run_round(self, first_dirty: int, end_offset: int) -> int:
        sources = self._find_sources(end_offset)
        self._map.clear(first_dirty)
        self._fill_map(sources, first_dirty, end_offset)
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

    def _walk(self, source: Source) -> Iterator[BatchTable]:
        path = self._path(source.base_offset, LOG)
        with self._fs.open(path) as file:
            walk = BatchWalk(file, start=0, end=source.size, verify_crc=False)
            for table in walk:
                attributes = table.rows[:, Field.ATTRIBUTES]
                if np.any(attributes & _TRANSACTIONAL_OR_CONTROL):
                    raise InvalidRequest(f"{path} has transactions, which the baseline cannot do")
                if np.any(table.rows[:, Field.PRODUCER_ID] >= 0):
                    raise InvalidRequest(f"{path} has producers, which the baseline cannot do")
                yield table
            walk.check_ended(path)

    def _fill_map(self, sources: Sequence[Source], first_dirty: int, end_offset: int) -> None:
        ends = [*(source.base_offset for source in sources[1:]), end_offset]
        for source, end in zip(sources, ends, strict=True):
            if end <= first_dirty:
                continue
            for table in self._walk(source):
                rows = table.rows[table.rows[:, Field.LAST_OFFSET] >= first_dirty]
                if not self._map_table(table, rows, first_dirty):
                    return
            self._map.state[MapState.LATEST_OFFSET] = end - 1

    def _map_table(self, table: BatchTable, rows: npt.NDArray[np.int64], first_dirty: int) -> bool:
        """False when the map is full."""
        buffer, row, step = np.frombuffer(table.buffer, np.uint8), 0, Step.DONE
        offset_map = self._map
        while row < len(rows):
            row, reason = map_batches(
                buffer,
                table.start,
                rows,
                row,
                first_dirty,
                offset_map.capacity,
                _K0,
                _K1,
                offset_map.slots,
                offset_map.state,
            )
            step = Step(reason)
            if step is Step.COMPRESSED:
                step = self._map_compressed(table, rows[row], first_dirty)
                row += 1
            if step is Step.MAP_FULL:
                return False
            self._check(step)
        return True

    def _map_compressed(
        self, table: BatchTable, row: npt.NDArray[np.int64], first_dirty: int
    ) -> Step:
        payload = _decompress(_bytes_of(table, row), row)
        step = map_records(
            payload,
            0,
            len(payload),
            int(row[Field.RECORD_COUNT]),
            int(row[Field.BASE_OFFSET]),
            first_dirty,
            self._map.capacity,
            _K0,
            _K1,
            self._map.slots,
            self._map.state,
        )
        if step == Step.DONE:
            self._map.state[MapState.LATEST_OFFSET] = row[Field.LAST_OFFSET]
        return Step(step)

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
        writer = _SegmentWriter(self._fs, self._path(base_offset, LOG), base_offset, self._settings)
        for source in group:
            for table in self._walk(source):
                self._filter_table(table, writer, shell_end)
        modified_ms = self._fs.info(self._path(group[-1].base_offset, LOG)).modified_ms
        self._totals.bytes_written += writer.finish(modified_ms)
        self._swap(base_offset, group)

    def _filter_table(self, table: BatchTable, writer: "_SegmentWriter", shell_end: int) -> None:
        buffer, rows, row = np.frombuffer(table.buffer, np.uint8), table.rows, 0
        keep = np.empty(int(rows[:, Field.RECORD_COUNT].max(initial=1)), np.uint8)
        while row < len(rows):
            row, writer.filled, reason = filter_batches(
                buffer,
                table.start,
                rows,
                row,
                self._map.latest_offset,
                shell_end,
                self._now_ms,
                _K0,
                _K1,
                self._map.slots,
                writer.out,
                writer.filled,
                keep,
                self._totals.counts,
            )
            step = Step(reason)
            if step is Step.NO_ROOM:
                writer.make_room(int(rows[row, Field.SIZE]))
            elif step in (Step.COMPRESSED, Step.NEEDS_HORIZON, Step.EMPTY):
                writer.add(self._filter_batch(table, rows[row], keep, shell_end))
                row += 1
            else:
                self._check(step)

    def _filter_batch(
        self, table: BatchTable, row: npt.NDArray[np.int64], keep: Bytes, shell_end: int
    ) -> Bytes:
        """What stays of one batch: the batch itself, a smaller one, its shell, or nothing."""
        batch = _bytes_of(table, row)
        payload = _decompress(batch, row)
        has_horizon = decode_header(batch.data).has_delete_horizon
        out = np.empty(HEADER_SIZE + len(payload), np.uint8)
        step, kept, end, largest, tombstones = filter_records(
            payload,
            0,
            len(payload),
            int(row[Field.RECORD_COUNT]),
            int(row[Field.BASE_OFFSET]),
            int(row[Field.BASE_TIMESTAMP]),
            self._map.latest_offset,
            has_horizon and self._now_ms >= int(row[Field.BASE_TIMESTAMP]),
            _K0,
            _K1,
            self._map.slots,
            out,
            HEADER_SIZE,
            keep,
        )
        self._check(Step(step))
        self._totals.counts[FilterCount.READ] += row[Field.RECORD_COUNT]
        self._totals.counts[FilterCount.KEPT] += kept
        if tombstones and not has_horizon:
            return self._with_horizon(batch, keep)
        if kept == row[Field.RECORD_COUNT]:
            return batch
        if kept:
            return _rebuilt(batch, out[HEADER_SIZE:end], row, kept=kept, largest=largest)
        is_last = int(row[Field.LAST_OFFSET]) + 1 == shell_end
        return np.frombuffer(empty_batch(decode_header(batch.data)) if is_last else b"", np.uint8)

    def _with_horizon(self, batch: Bytes, keep: Bytes) -> Bytes:
        """The records that stay, their timestamps counted from the delete horizon."""
        source = Batch(batch.data)
        header, columns = source.header, source.columns_as_sent()
        chosen = np.flatnonzero(keep[: len(columns)])
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

    def _check(self, step: Step) -> None:
        if step is Step.FAULT:
            raise InvalidRequest(f"{self._directory} holds records that cannot be parsed")


class _SegmentWriter:
    """The `.cleaned` files of one new segment."""

    def __init__(self, fs: FileSystem, path: str, base_offset: int, settings: LogSettings) -> None:
        self._fs = fs
        self._path = path
        self._file = fs.open_writable(path + CLEANED)
        self._indexer = SegmentIndexer(base_offset, settings, path)
        self._size = 0
        self.out: Bytes = np.empty(_OUT_BYTES, np.uint8)
        self.filled = 0

    def make_room(self, size: int) -> None:
        self._write_out()
        if size > len(self.out):
            self.out = np.empty(size, np.uint8)

    def add(self, batch: Bytes) -> None:
        if len(batch) > len(self.out) - self.filled:
            self.make_room(len(batch))
        self.out[self.filled : self.filled + len(batch)] = batch
        self.filled += len(batch)

    def _write_out(self) -> None:
        rows = np.empty((self.filled // HEADER_SIZE, FIELD_COUNT), np.int64)
        count, _, _ = scan_batches(self.out, 0, self.filled, False, rows)
        rows[:count, Field.POSITION] += self._size
        end = self._size + self.filled
        self._indexer.add(BatchTable(rows[:count], self.out.data, self._size, end))
        self._file.write_at(self._size, self.out.data[: self.filled])
        self._size, self.filled = end, 0

    def finish(self, modified_ms: int) -> int:
        """Writes and syncs data and indexes; gives the size of the data file."""
        self._write_out()
        self._file.sync()
        self._file.close()
        self._fs.set_modified_ms(self._path + CLEANED, modified_ms)
        contents = {
            INDEX: self._indexer.offset_index().encode(),
            TIME_INDEX: self._indexer.time_index().encode(),
        }
        for kind, data in contents.items():
            path = self._path.removesuffix(LOG) + kind + CLEANED
            with self._fs.open_writable(path) as file:
                file.write_at(0, data)
                file.sync()
        return self._size


def _bytes_of(table: BatchTable, row: npt.NDArray[np.int64]) -> Bytes:
    position = int(row[Field.POSITION]) - table.start
    return np.frombuffer(table.buffer[position : position + int(row[Field.SIZE])], np.uint8)


def _decompress(batch: Bytes, row: npt.NDArray[np.int64]) -> Bytes:
    codec = Codec(int(row[Field.ATTRIBUTES]) & CODEC_MASK)
    return decompress_to_array(codec, batch.data[HEADER_SIZE:])


def _rebuilt(
    batch: Bytes, records: Bytes, row: npt.NDArray[np.int64], *, kept: int, largest: int
) -> Bytes:
    attributes = int(row[Field.ATTRIBUTES])
    payload = np.frombuffer(compress(Codec(attributes & CODEC_MASK), records.data), np.uint8)
    rebuilt = np.concatenate([batch[:HEADER_SIZE], payload])
    seal_batch(rebuilt, 0, len(rebuilt), attributes, kept, largest)
    return rebuilt
