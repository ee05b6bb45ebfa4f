"""The layout of a record batch, and the columns and status codes of the kernels that read it.

Kernels and Python code use the same names: numba compiles constants and `IntEnum` members into the
machine code. Inside a kernel an `IntEnum` member can be used as an index; a status is returned as
`ScanStatus.END.value`, which is a plain int.

Layout     message format 2 (magic 2); big-endian. docs/reference/formats/record-batch.md
"""

from enum import IntEnum
from typing import Final

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

# Where the fields of a batch header start, in bytes from the base offset, which is the first.
LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
RECORD_COUNT_AT: Final = 57
HEADER_BYTES: Final = 61

LENGTH_OVERHEAD: Final = 12
"""The length field counts the bytes after itself; base offset and length come before."""
LENGTH_MIN: Final = HEADER_BYTES - LENGTH_OVERHEAD
OLD_LENGTH_MIN: Final = 14
"""The least length of the message formats 0 and 1."""
CRC_START: Final = ATTRIBUTES_AT
"""The CRC covers the batch from its attributes on."""
MAGIC: Final = 2

# The attributes of a batch.
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

RECORD_SIZE_MIN: Final = 7
"""Length, attributes, timestamp, offset, key length, value length, header count: a byte each."""
CONTROL_KEY_BYTES: Final = 4
"""The key of a control record: version and type, two bytes each."""
CONTROL_TYPE_AT: Final = 2
"""Where the type starts in the key of a control record."""

NO_LOG_APPEND_TIMESTAMP: Final = -1 << 63


class BatchColumn(IntEnum):
    """Columns of scanned batches, as Kafka names them; POSITION counts from the buffer's start."""

    POSITION = 0
    SIZE = 1
    """All bytes of the batch, header included."""
    BASE_OFFSET = 2
    LAST_OFFSET = 3
    LEADER_EPOCH = 4
    CRC = 5
    ATTRIBUTES = 6
    BASE_TIMESTAMP = 7
    MAX_TIMESTAMP = 8
    PRODUCER_ID = 9
    PRODUCER_EPOCH = 10
    BASE_SEQUENCE = 11
    RECORD_COUNT = 12


BATCH_COLUMN_COUNT: Final = len(BatchColumn)


class InspectionColumn(IntEnum):
    """Columns that describe the records of an inspected batch; they follow `BatchColumn`."""

    RECORDS_STATUS = BATCH_COLUMN_COUNT
    RECORDS_FAULT_INDEX = BATCH_COLUMN_COUNT + 1
    """The index of the broken record, or -1."""
    RECORDS_MAX_TIMESTAMP = BATCH_COLUMN_COUNT + 2
    RECORDS_MIN_TIMESTAMP = BATCH_COLUMN_COUNT + 3
    """The smallest that is not -1; -1 if there is none."""
    RECORDS_NULL_KEYS = BATCH_COLUMN_COUNT + 4
    RECORDS_FIRST_NULL_KEY = BATCH_COLUMN_COUNT + 5
    RECORDS_CONSECUTIVE = BATCH_COLUMN_COUNT + 6
    """1 if the offset deltas are 0, 1, 2, …, else 0."""


INSPECTION_COLUMN_COUNT: Final = max(InspectionColumn) + 1


class RecordColumn(IntEnum):
    """Columns of parsed records. Starts count from the payload's first byte; size -1 is null."""

    OFFSET = 0
    TIMESTAMP = 1
    KEY_START = 2
    KEY_SIZE = 3
    VALUE_START = 4
    VALUE_SIZE = 5
    HEADERS_START = 6
    HEADERS_COUNT = 7
    RECORD_START = 8
    RECORD_END = 9


RECORD_COLUMN_COUNT: Final = len(RecordColumn)


class ScanStatus(IntEnum):
    """How a scan over batches ended. Except for 0, no number is also a `RecordStatus`."""

    END = 0
    OK = 0
    """The same under the name that fits the inspection of a single batch."""
    INCOMPLETE = 1
    FULL = 2
    CORRUPT_SIZE = 3
    OLD_MAGIC = 4
    BAD_MAGIC = 5
    BAD_CRC = 6


class RecordStatus(IntEnum):
    """How parsing the records of a batch ended."""

    OK = 0
    NOT_PARSED = 20
    NEGATIVE_COUNT = 21
    COUNT_TOO_LARGE = 22
    TRUNCATED = 23
    VARINT_TOO_LONG = 24
    CORRUPT_LENGTH = 25
    FIELD_OVERRUN = 26
    LENGTH_MISMATCH = 27
    HEADER_COUNT = 28
    NEGATIVE_HEADER_KEY = 29
    TRAILING_BYTES = 30
    OFFSET_DELTA = 31


_STATUS_TEXTS: Final[dict[int, str]] = {
    0: "the bytes are valid",
    ScanStatus.INCOMPLETE: "the bytes end before the batch does",
    ScanStatus.FULL: "more batches follow than the table can hold",
    ScanStatus.CORRUPT_SIZE: "the batch's length field is smaller than its header",
    ScanStatus.OLD_MAGIC: "the batch has message format 0 or 1, and only format 2 is read",
    ScanStatus.BAD_MAGIC: "the magic byte is not that of a known message format",
    ScanStatus.BAD_CRC: "the batch's CRC-32C does not match its bytes",
    RecordStatus.NOT_PARSED: "the records were not parsed: compressed, control or broken batch",
    RecordStatus.NEGATIVE_COUNT: "the record count is negative",
    RecordStatus.COUNT_TOO_LARGE: "the record count is larger than the bytes can hold",
    RecordStatus.TRUNCATED: "the bytes end before the record does",
    RecordStatus.VARINT_TOO_LONG: "a variable-length integer is longer than its type allows",
    RecordStatus.CORRUPT_LENGTH: "the record's length is smaller than the smallest record",
    RecordStatus.FIELD_OVERRUN: "a field reaches past the end of its record",
    RecordStatus.LENGTH_MISMATCH: "the record's fields end before its declared length",
    RecordStatus.HEADER_COUNT: "the header count is negative or larger than the record can hold",
    RecordStatus.NEGATIVE_HEADER_KEY: "a header's key has a negative length",
    RecordStatus.TRAILING_BYTES: "bytes remain after the last record",
    RecordStatus.OFFSET_DELTA: "an offset does not ascend or lies outside its batch or segment",
}


def status_text(status: int) -> str:
    """The meaning of a `ScanStatus` or `RecordStatus`, to follow a position and a colon."""
    return _STATUS_TEXTS[status]
