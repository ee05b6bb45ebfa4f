"""What a dump consists of, and the dump of a data file: its batches and their records.

Layout     types and fields: docs/reference/dump-json.md
Invariant  a chunk of the file and one batch are in memory, however large the file is.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from varve.commit_log.segment_reader import BatchTable, BatchWalk
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn, ScanStatus, status_text
from varve.records import (
    Batch,
    BatchHeader,
    Codec,
    RecordColumns,
    TimestampType,
    decode_control_record,
    increment_sequence,
)

TIMESTAMP_TYPE_NAMES = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
_CODEC_NAMES = tuple(codec.name.lower() for codec in Codec)
_CODEC_MASK = 0x07
_NO_OFFSET = -1


class DumpEntry(NamedTuple):
    """One line of a dump before it is formatted, with Kafka's names for its fields."""

    type: str
    fields: Mapping[str, object]


def problem(message: str, position: int | None = None) -> DumpEntry:
    return DumpEntry("problem", {"position": position, "message": message})


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """What is read of the files."""

    has_records: bool = False
    has_values: bool = False
    max_bytes: int | None = None
    verify_index: bool = False
    sanity_check: bool = False
    advance: Callable[[int], None] = lambda size: None


@dataclass(frozen=True, slots=True)
class DumpSource:
    """A file to dump; `offset` is that of its name, 0 where the name has none."""

    fs: FileSystem
    path: str
    offset: int

    def sibling(self, name: str) -> str:
        """The path of another file in the same directory."""
        directory, slash, _ = self.path.rpartition("/")
        return f"{directory}{slash}{name}"


def dump_data(source: DumpSource, options: DumpOptions) -> Iterator[DumpEntry]:
    """Every whole batch, then what ended the file before its end."""
    gaps = GapFinder()
    with source.fs.open(source.path) as file:
        size = file.size()
        end = size if options.max_bytes is None else min(size, options.max_bytes)
        walk = BatchWalk(file, start=0, end=end, verify_crc=False)
        for table in walk:
            for row in range(len(table.rows)):
                yield from _dump_batch(table, row, source, options, gaps)
            options.advance(table.end - table.start)
    yield from _dump_end(walk, end, is_cut=options.max_bytes is not None)
    yield from gaps.entries


class GapFinder:
    """Notes where record offsets are not consecutive: normal once a log is compacted."""

    def __init__(self) -> None:
        self._previous = _NO_OFFSET
        self.entries: list[DumpEntry] = []

    def see(self, offset: int) -> None:
        previous, self._previous = self._previous, offset
        if previous not in (_NO_OFFSET, offset - 1):
            gap = {"offset": previous, "nextOffset": offset}
            self.entries.append(DumpEntry("nonConsecutive", gap))


def _dump_end(walk: BatchWalk, end: int, *, is_cut: bool) -> Iterator[DumpEntry]:
    if walk.status not in (ScanStatus.END, ScanStatus.INCOMPLETE):
        yield problem(status_text(walk.status), walk.position)
    if walk.position < end and not is_cut:
        yield DumpEntry("trailingBytes", {"size": end - walk.position})


def _dump_batch(
    table: BatchTable, row: int, source: DumpSource, options: DumpOptions, gaps: GapFinder
) -> Iterator[DumpEntry]:
    position = int(table.rows[row, BatchColumn.POSITION])
    batch = Batch(table.bytes_of(row), where=source.path)
    is_valid = batch.is_valid_crc()
    yield _batch_entry(batch.header, position, is_valid)
    if not is_valid:
        yield problem(status_text(ScanStatus.BAD_CRC), position)
    if options.has_records:
        try:
            yield from _dump_records(batch, options, gaps)
        except Corrupt as error:
            yield problem(str(error), position)


def _batch_entry(header: BatchHeader, position: int, is_valid: bool) -> DumpEntry:
    codec = header.attributes & _CODEC_MASK
    return DumpEntry(
        "batch",
        {
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.records_count,
            "baseSequence": header.base_sequence,
            "lastSequence": header.last_sequence,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.partition_leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": header.delete_horizon_ms,
            "position": position,
            "timestampType": TIMESTAMP_TYPE_NAMES[header.timestamp_type],
            "maxTimestamp": header.max_timestamp,
            "size": header.size,
            "magic": header.magic,
            "compression": _CODEC_NAMES[codec] if codec < len(_CODEC_NAMES) else str(codec),
            "crc": header.crc,
            "isValid": is_valid,
        },
    )


def _dump_records(batch: Batch, options: DumpOptions, gaps: GapFinder) -> Iterator[DumpEntry]:
    header = batch.header
    columns = batch.columns()
    timestamp_type = TIMESTAMP_TYPE_NAMES[header.timestamp_type]
    for index, (offset, timestamp, key_size, value_size) in enumerate(
        zip(
            columns.offsets.tolist(),
            columns.timestamps.tolist(),
            columns.key_sizes.tolist(),
            columns.value_sizes.tolist(),
            strict=True,
        )
    ):
        gaps.see(offset)
        headers = columns.headers(index)
        fields: dict[str, object] = {
            "offset": offset,
            "timestampType": timestamp_type,
            "timestamp": timestamp,
            "keySize": key_size,
            "valueSize": value_size,
            "sequence": _sequence(header, offset),
            "headerKeys": [name for name, _ in headers],
        }
        if header.is_control:
            fields |= _control_fields(columns, index)
        elif options.has_values:
            fields |= {"key": columns.key(index), "value": columns.value(index)}
            fields["headers"] = list(headers)
        yield DumpEntry("record", fields)


def _sequence(header: BatchHeader, offset: int) -> int:
    if header.base_sequence < 0:
        return -1
    return increment_sequence(header.base_sequence, offset - header.base_offset)


def _control_fields(columns: RecordColumns, index: int) -> dict[str, object]:
    key = columns.key(index)
    control = decode_control_record(key, columns.value(index))
    assert key is not None
    return {
        "controlType": control.type.name,
        "controlTypeId": int.from_bytes(key[2:4], "big", signed=True),
        "coordinatorEpoch": control.coordinator_epoch,
    }
