"""Data files of a single segment, and their key index told the naive way: one dict."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from varve.cleaning.key_index.key_index import BATCH_ABORTED, KeyIndex
from varve.commit_log import SegmentFiles
from varve.commit_log.names import LOG
from varve.commit_log.segment import Segment
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import FileSystem
from varve.kernels.batch_layout import RecordColumn
from varve.records import Batch, BatchHeader

DIRECTORY = "data/topic-0"
TOPIC_ID = bytes(range(16))

Entry = tuple[int, int, int, int, int, int]


@dataclass
class KeyModel:
    """What the index of these batches has to say."""

    base_offset: int
    entries: list[Entry] = field(default_factory=list)
    batches: list[tuple[int, ...]] = field(default_factory=list)
    marks: list[tuple[int, ...]] = field(default_factory=list)
    record_count: int = 0
    null_key_count: int = 0
    record_bytes: int = 0
    horizons: list[int] = field(default_factory=list)

    @property
    def tombstone_count(self) -> int:
        return sum(entry[5] for entry in self.entries)


def write_segment(fs: FileSystem, base_offset: int, batches: Sequence[bytes]) -> Segment:
    """A closed segment of these batches, in an empty directory."""
    fs.make_directory(DIRECTORY)
    for directory in (".", "data", DIRECTORY):
        fs.sync_directory(directory)
    data = b"".join(batches)
    segment = Segment(SegmentFiles(fs), DIRECTORY, base_offset=base_offset, size=len(data))
    with fs.open_writable(segment.path(LOG)) as file:
        file.write_at(0, data)
        file.sync()
    fs.sync_directory(DIRECTORY)
    return segment


def model_of(
    base_offset: int, batches: Sequence[bytes], aborted: Sequence[AbortedTransaction] = ()
) -> KeyModel:
    model = KeyModel(base_offset)
    latest: dict[tuple[int, int], Entry] = {}
    position = 0
    for data in batches:
        batch = Batch(data)
        header = batch.header
        is_aborted = _is_aborted(header, aborted)
        horizon = -1 if header.delete_horizon_ms is None else header.delete_horizon_ms
        if header.is_transactional or header.is_control:
            number = len(model.batches)
            control = _control_type(batch) if header.is_control else -1
            model.marks.append((number, header.producer_epoch, control, header.producer_id))
        model.batches.append(
            (
                position,
                len(data),
                header.base_offset - base_offset,
                header.last_offset - base_offset,
                header.records_count,
                header.attributes,
                BATCH_ABORTED if is_aborted else 0,
                horizon,
            )
        )
        if horizon >= 0:
            model.horizons.append(horizon)
        if not header.is_control and not is_aborted:
            _add_records(model, latest, batch)
        model.record_count += header.records_count
        position += len(data)
    model.entries = sorted(latest.values())
    return model


def _add_records(model: KeyModel, latest: dict[tuple[int, int], Entry], batch: Batch) -> None:
    columns = batch.columns()
    hashes = columns.hash_keys(TOPIC_ID).tolist()
    for index, row in enumerate(columns.table.tolist()):
        size = row[RecordColumn.RECORD_END] - row[RecordColumn.RECORD_START]
        model.record_bytes += size
        if row[RecordColumn.KEY_SIZE] < 0:
            model.null_key_count += 1
            continue
        high, low = hashes[index]
        offset = row[RecordColumn.OFFSET] - model.base_offset
        is_tombstone = int(row[RecordColumn.VALUE_SIZE] < 0)
        latest[high, low] = (high, low, offset, model.record_count + index, size, is_tombstone)


def _is_aborted(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    if not header.is_transactional or header.is_control:
        return False
    return any(
        one.producer_id == header.producer_id
        and one.first_offset <= header.base_offset <= one.last_offset
        for one in aborted
    )


def _control_type(batch: Batch) -> int:
    if not batch.header.records_count:
        return -2
    key = batch.columns().key(0)
    assert key is not None
    return int.from_bytes(key[2:4], "big")


def check_index(index: KeyIndex, model: KeyModel) -> None:
    """The index says what the model says, and its entries are found one by one."""
    header = index.header
    index.verify()
    count = header.entry_count
    words = np.empty((count, 4), np.uint64)
    index.read_entries(0, count, words)
    assert [_entry(row) for row in words.tolist()] == model.entries
    assert [tuple(row) for row in index.batches().tolist()] == model.batches
    assert [tuple(row) for row in index.marks().tolist()] == model.marks
    assert header.record_count == model.record_count
    assert header.null_key_count == model.null_key_count
    assert header.tombstone_count == model.tombstone_count
    assert header.record_bytes == model.record_bytes
    assert header.earliest_horizon == min(model.horizons, default=-1)
    for high, low, offset, record, size, flags in model.entries[:: max(count // 50, 1)]:
        found = index.find(high, low)
        assert found is not None
        assert found.offset == model.base_offset + offset
        assert (found.record, found.size, found.is_tombstone) == (record, size, flags == 1)
        assert index.find(high, low ^ 1) is None


def _entry(words: list[int]) -> Entry:
    high, low, place, shape = words
    return high, low, place & 0xFFFFFFFF, place >> 32, shape & 0xFFFFFFFF, shape >> 32
