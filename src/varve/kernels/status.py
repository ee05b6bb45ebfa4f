"""What kernels answer instead of raising: numbers with names and a sentence for each.

Invariant  0 means no fault in every enumeration, and all other numbers differ, so that a bare
           number is enough for `describe`.
"""

from enum import IntEnum


class ScanStatus(IntEnum):
    """How a scan over batches ended."""

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
    """How a walk over a batch's records ended."""

    OK = 0
    NOT_WALKED = 20
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


_SENTENCES: dict[int, str] = {
    0: "no fault was found",
    ScanStatus.INCOMPLETE: "the bytes end before the batch does",
    ScanStatus.FULL: "more batches follow than there was room to list",
    ScanStatus.CORRUPT_SIZE: "the batch's length field is smaller than its header",
    ScanStatus.OLD_MAGIC: "the batch has message format 0 or 1, and only format 2 is read",
    ScanStatus.BAD_MAGIC: "the magic byte names no known message format",
    ScanStatus.BAD_CRC: "the batch's CRC-32C does not match its bytes",
    RecordStatus.NOT_WALKED: "the records were not walked: compressed, control or faulty batch",
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


def describe(status: int) -> str:
    """The status as a sentence without a full stop, to be put behind a place and a colon."""
    return _SENTENCES[status]
