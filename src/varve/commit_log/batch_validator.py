"""Validates a batch before the leader appends it, and converts it to its stored form.

Invariant  the input is never modified; the result is the stored batch except for base offset and
           leader epoch.
Threads    pure; runs before the log's lock is taken.
"""

from typing import Final

import numpy as np

from varve.commit_log.producer_snapshots import decode_marker
from varve.commit_log.producer_state import AppendOrigin, BatchSummary, Marker
from varve.commit_log.settings import LONG_MAX, LogSettings
from varve.disk import Buffer
from varve.foundation.errors import (
    Corrupt,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnsupportedFormat,
)
from varve.foundation.units import format_duration
from varve.kernels.batch_layout import (
    CODEC_MASK,
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    BatchColumn,
    InspectionColumn,
    RecordStatus,
    ScanStatus,
    status_text,
)
from varve.kernels.batch_scan import VALID_AS_SENT, inspect_append, inspection_row
from varve.kernels.record_parse import summarize_records
from varve.records import (
    HEADER_BYTES,
    Batch,
    Codec,
    rebuild_batch,
    with_log_append_time,
    with_max_timestamp,
)
from varve.records.batch_format import CODEC_MAX
from varve.records.compression import (
    DECOMPRESSED_BYTES_MAX,
    Bytes,
    ContentTooLarge,
    decompress,
)

# Plain ints: an enum member as a list index costs a call, and these run for every append.
_SIZE = int(BatchColumn.SIZE)
_BASE_OFFSET = int(BatchColumn.BASE_OFFSET)
_LAST_OFFSET = int(BatchColumn.LAST_OFFSET)
_ATTRIBUTES = int(BatchColumn.ATTRIBUTES)
_MAX_TIMESTAMP = int(BatchColumn.MAX_TIMESTAMP)
_PRODUCER_ID = int(BatchColumn.PRODUCER_ID)
_BASE_SEQUENCE = int(BatchColumn.BASE_SEQUENCE)
_RECORD_COUNT = int(BatchColumn.RECORD_COUNT)
_RECORDS_STATUS = int(InspectionColumn.RECORDS_STATUS)
_RECORDS_MAX_TIMESTAMP = int(InspectionColumn.RECORDS_MAX_TIMESTAMP)
_RECORDS_MIN_TIMESTAMP = int(InspectionColumn.RECORDS_MIN_TIMESTAMP)
_RECORDS_NULL_KEYS = int(InspectionColumn.RECORDS_NULL_KEYS)
_OK = int(ScanStatus.OK)
_RECORDS_OK = int(RecordStatus.OK)

# Content that is unpacked for a quick check: these bytes and a multiple of the batch's size; and
# how large its records are on average at least.
_QUICK_BYTES: Final = 64 << 10
_QUICK_RATIO: Final = 16
_QUICK_RECORD_BYTES: Final = 64

_RECORD_ERRORS_MAX: Final = 10_000
"""Invalid records of a batch that an error names; a batch may have a million."""


class ValidatedBatch:
    """A batch that may be appended: its bytes, and the fields that appending needs."""

    __slots__ = ("data", "fields", "has_producer", "last_delta", "marker", "max_timestamp", "size")

    def __init__(
        self, data: Buffer, fields: list[int], max_timestamp: int, marker: Marker | None
    ) -> None:
        self.data = data
        self.fields = fields
        self.size = len(data)
        self.last_delta = fields[_LAST_OFFSET] - fields[_BASE_OFFSET]
        self.max_timestamp = max_timestamp
        self.marker = marker
        self.has_producer = fields[_PRODUCER_ID] >= 0

    def with_records(self, data: Buffer, max_timestamp: int) -> "ValidatedBatch":
        """The batch reduced to the records in `data`, whose header is otherwise the same."""
        return ValidatedBatch(data, self.fields, max_timestamp, self.marker)

    def summary(self, base_offset: int) -> BatchSummary:
        """The summary for producer state, given the base offset the batch will have."""
        return BatchSummary.of_batch(
            self.fields,
            base_offset=base_offset,
            max_timestamp=self.max_timestamp,
            marker=self.marker,
        )


class BatchValidator:
    """Validates batches by the settings of one topic."""

    def __init__(self, settings: LogSettings, where: str) -> None:
        self._where = where
        self._max_bytes = settings.max_message_bytes
        content_max_bytes = max(settings.varve_batch_content_max_bytes, settings.max_message_bytes)
        # No reader unpacks more.
        self._content_max_bytes = min(content_max_bytes, DECOMPRESSED_BYTES_MAX)
        self._records_max = settings.varve_batch_records_max
        self._segment_bytes = settings.segment_bytes
        self._is_compacted = settings.is_compacted
        self._log_append_time = settings.message_timestamp_type == "LogAppendTime"
        self._before_max_ms = settings.message_timestamp_before_max_ms
        self._after_max_ms = settings.message_timestamp_after_max_ms
        self._has_bounds = min(self._before_max_ms, self._after_max_ms) < LONG_MAX
        self._has_record_rules = self._has_bounds or self._is_compacted
        self._stored_codec, self._stored_level = stored_codec(settings)
        self._keeps_uncompressed = not self._log_append_time and not self._stored_codec

    def check(self, data: Buffer, origin: AppendOrigin, now_ms: int) -> ValidatedBatch:
        """The batch as it is stored; raises an InvalidRequest or Corrupt that names the rule."""
        checked = self._check(data, origin, now_ms, is_quick=False)
        assert checked is not None
        return checked

    def check_if_quick(
        self, data: Buffer, origin: AppendOrigin, now_ms: int
    ) -> ValidatedBatch | None:
        """As `check`; None for a batch that unpacks to much more than its size or is rebuilt."""
        return self._check(data, origin, now_ms, is_quick=True)

    def _check(
        self, data: Buffer, origin: AppendOrigin, now_ms: int, *, is_quick: bool
    ) -> ValidatedBatch | None:
        buffer = np.frombuffer(data, np.uint8)
        row = inspection_row()
        status = inspect_append(buffer, row)
        fields: list[int] = row.tolist()
        if status == VALID_AS_SENT and self._keeps_uncompressed and buffer.size <= self._max_bytes:
            if self._has_record_rules:
                self._check_settings(data, fields, now_ms)
            return ValidatedBatch(data, fields, fields[_MAX_TIMESTAMP], None)
        if status not in (_OK, VALID_AS_SENT):
            raise self._rejection(ScanStatus(status), data)
        self._check_header(fields, buffer.size, origin)
        attributes = fields[_ATTRIBUTES]
        if attributes & CONTROL_BIT:
            marker = decode_marker(memoryview(data), self._where)
            if self._log_append_time:
                stamped = with_log_append_time(bytearray(data), now_ms)
                return ValidatedBatch(stamped, fields, now_ms, marker)
            return ValidatedBatch(data, fields, fields[_MAX_TIMESTAMP], marker)
        codec = attributes & CODEC_MASK
        if is_quick and self._stored_codec not in (None, codec):
            return None
        if codec:
            self._check_record_count(fields[_RECORD_COUNT])
            limit_bytes = self._content_max_bytes
            if is_quick:
                limit_bytes = min(limit_bytes, _QUICK_BYTES + _QUICK_RATIO * buffer.size)
                if fields[_RECORD_COUNT] * _QUICK_RECORD_BYTES > limit_bytes:
                    return None
            payload = self._decompress(codec, memoryview(data)[HEADER_BYTES:], limit_bytes)
            if payload is None:
                return None
            summarize_records(
                payload,
                0,
                payload.size,
                fields[_RECORD_COUNT],
                fields[BatchColumn.BASE_TIMESTAMP],
                row,
            )
            fields = row.tolist()
        self._check_records(data, fields, now_ms)
        if is_quick and codec and not fields[InspectionColumn.RECORDS_CONSECUTIVE]:
            return None
        return self._as_stored(data, fields, now_ms)

    def _check_record_count(self, count: int) -> None:
        if count > self._records_max:
            raise RecordTooLarge(
                f"{self._where}: a compressed batch of {count} records exceeds "
                f"varve.batch.records.max = {self._records_max}; send smaller batches or raise the "
                "setting"
            )

    def _decompress(self, codec: int, payload: memoryview, limit_bytes: int) -> Bytes | None:
        """The content; None where it exceeds the limit, but not that of the topic."""
        try:
            return decompress(Codec(codec), payload, where=self._where, limit_bytes=limit_bytes)
        except ContentTooLarge as error:
            if limit_bytes < self._content_max_bytes:
                return None
            if limit_bytes == DECOMPRESSED_BYTES_MAX:
                raise RecordTooLarge(f"{error}; send smaller batches") from error
            raise RecordTooLarge(
                f"{error} of varve.batch.content.max.bytes; send smaller batches or raise the "
                "setting"
            ) from error

    def _rejection(self, status: ScanStatus, data: Buffer) -> Exception:
        if not len(data):
            return InvalidRecord(f"{self._where}: the append holds no batch")
        message = f"{self._where}: {status_text(status)}"
        if status == ScanStatus.OLD_MAGIC:
            return UnsupportedFormat(f"{message}; send batches of message format 2")
        return Corrupt(f"{message}; nothing was appended")

    def _check_header(self, fields: list[int], size: int, origin: AppendOrigin) -> None:
        batch_size = fields[_SIZE]
        if batch_size != size:
            raise InvalidRecord(
                f"{self._where}: an append holds exactly one batch, but {size - batch_size} bytes "
                f"follow the first of {batch_size} bytes; send one batch at a time"
            )
        if size > self._max_bytes:
            raise RecordTooLarge(
                f"{self._where}: a batch of {size} bytes exceeds max.message.bytes = "
                f"{self._max_bytes}; send smaller batches or raise the setting"
            )
        span = fields[_LAST_OFFSET] - fields[_BASE_OFFSET] + 1
        if fields[_RECORD_COUNT] <= 0 or span != fields[_RECORD_COUNT]:
            raise InvalidRecord(
                f"{self._where}: the batch counts {fields[_RECORD_COUNT]} records but spans "
                f"{span} offsets; both must be equal and above 0"
            )
        if origin is not AppendOrigin.CLIENT:
            return
        if fields[_BASE_OFFSET] != 0:
            raise InvalidRecord(
                f"{self._where}: a producer's batch has base offset 0, this one has "
                f"{fields[_BASE_OFFSET]}"
            )
        if fields[_ATTRIBUTES] & CONTROL_BIT:
            raise InvalidRecord(f"{self._where}: producers may not write control batches")
        codec = fields[_ATTRIBUTES] & CODEC_MASK
        if codec > CODEC_MAX:
            raise InvalidRecord(
                f"{self._where}: the batch has codec number {codec}; valid numbers are 0 to "
                f"{int(CODEC_MAX)}"
            )
        if fields[_PRODUCER_ID] >= 0 and fields[_BASE_SEQUENCE] < 0:
            raise InvalidRecord(
                f"{self._where}: producer {fields[_PRODUCER_ID]} sent base sequence "
                f"{fields[_BASE_SEQUENCE]}; an idempotent producer's is at least 0"
            )

    def _check_records(self, data: Buffer, fields: list[int], now_ms: int) -> None:
        if fields[_RECORDS_STATUS] != _RECORDS_OK:
            index = fields[InspectionColumn.RECORDS_FAULT_INDEX]
            status = status_text(fields[_RECORDS_STATUS])
            raise InvalidRecord.at((index, f"{self._where}: record {index} of the batch: {status}"))
        if self._log_append_time:
            if fields[_ATTRIBUTES] & LOG_APPEND_TIME_BIT:
                raise InvalidTimestamp(
                    f"{self._where}: the batch claims LogAppendTime, which only the store may set"
                )
        elif fields[_ATTRIBUTES] & LOG_APPEND_TIME_BIT:
            if fields[_MAX_TIMESTAMP] == -1:
                raise InvalidTimestamp(f"{self._where}: a LogAppendTime batch has no timestamp")
            # All its records have the batch's timestamp, whatever their deltas are.
            fields[_RECORDS_MAX_TIMESTAMP] = fields[_MAX_TIMESTAMP]
            fields[_RECORDS_MIN_TIMESTAMP] = fields[_MAX_TIMESTAMP]
        self._check_settings(data, fields, now_ms)

    def _check_settings(self, data: Buffer, fields: list[int], now_ms: int) -> None:
        is_outside = self._has_bounds and not self._log_append_time
        if is_outside:
            oldest, newest = fields[_RECORDS_MIN_TIMESTAMP], fields[_RECORDS_MAX_TIMESTAMP]
            is_outside = max(oldest, newest) != -1 and (
                now_ms - oldest > self._before_max_ms or newest - now_ms > self._after_max_ms
            )
        if is_outside or (self._is_compacted and fields[_RECORDS_NULL_KEYS]):
            raise self._refuse_records(data, now_ms)

    def _refuse_records(self, data: Buffer, now_ms: int) -> InvalidRecord:
        """The error of a batch some of whose records break a rule: it names each of them, so that
        a producer can send the others again."""
        columns = Batch(data, where=self._where).columns(limit_bytes=self._content_max_bytes)
        timestamps = np.where(columns.timestamps == -1, now_ms, columns.timestamps)
        too_old, too_new = now_ms - timestamps, timestamps - now_ms
        is_outside = (too_old > self._before_max_ms) | (too_new > self._after_max_ms)
        if self._log_append_time:
            is_outside[:] = False
        has_no_key = (columns.key_sizes < 0) & self._is_compacted
        invalid = np.flatnonzero(is_outside | has_no_key)[:_RECORD_ERRORS_MAX].tolist()
        reasons = [
            self._no_key(index)
            if has_no_key[index]
            else self._outside(int(timestamps[index]), now_ms)
            for index in invalid
        ]
        kind = InvalidTimestamp if is_outside.any() else InvalidRecord
        return kind.at(*zip(invalid, reasons, strict=True))

    def _no_key(self, index: int) -> str:
        return (
            f"{self._where}: record {index} of the batch has no key, which "
            "cleanup.policy=compact requires; set a key (it may be empty)"
        )

    def _outside(self, timestamp: int, now_ms: int) -> str:
        if now_ms - timestamp > self._before_max_ms:
            return (
                f"{self._where}: timestamp {timestamp} is "
                f"{format_duration(now_ms - timestamp)} old; "
                f"message.timestamp.before.max.ms = {self._before_max_ms}"
            )
        return (
            f"{self._where}: timestamp {timestamp} is {format_duration(timestamp - now_ms)} "
            "in the future; "
            f"message.timestamp.after.max.ms = {self._after_max_ms}"
        )

    def _as_stored(self, data: Buffer, fields: list[int], now_ms: int) -> ValidatedBatch:
        attributes = fields[_ATTRIBUTES]
        codec = Codec(attributes & CODEC_MASK) if attributes & CODEC_MASK else Codec.NONE
        target = codec if self._stored_codec is None else self._stored_codec
        if target is not codec or (codec and not fields[InspectionColumn.RECORDS_CONSECUTIVE]):
            data = rebuild_batch(bytes(data), codec=target, level=self._stored_level)
            if len(data) > self._max_bytes:
                raise RecordTooLarge(
                    f"{self._where}: stored as {target.name.lower()} the batch takes {len(data)} "
                    f"bytes, more than max.message.bytes = {self._max_bytes}; send smaller batches"
                )
        if self._log_append_time:
            return ValidatedBatch(
                with_log_append_time(bytearray(data), now_ms), fields, now_ms, None
            )
        timestamp = fields[_RECORDS_MAX_TIMESTAMP]
        if timestamp == fields[_MAX_TIMESTAMP] and not attributes & LOG_APPEND_TIME_BIT:
            return ValidatedBatch(data, fields, timestamp, None)
        return ValidatedBatch(
            with_max_timestamp(bytearray(data), timestamp), fields, timestamp, None
        )


def stored_codec(settings: LogSettings) -> tuple[Codec | None, int | None]:
    """The codec and level a topic stores batches with; no codec keeps what the producer chose."""
    name = settings.compression_type
    if name == "producer":
        return None, None
    if name == "uncompressed":
        return Codec.NONE, None
    return Codec[name.upper()], getattr(settings, f"compression_{name}_level", None)
