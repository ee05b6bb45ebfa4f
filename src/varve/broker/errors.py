"""Which of Kafka's error codes tells a client what varve's own errors tell a caller."""

from typing import Final

from varve.foundation.errors import (
    Closed,
    Corrupt,
    DirectoryOffline,
    DiskFull,
    Fenced,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidRequest,
    InvalidSetting,
    InvalidTimestamp,
    InvalidTransactionState,
    LogPoisoned,
    NotFound,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PolicyViolation,
    RecordTooLarge,
    StoreUnavailable,
    TopicExists,
    Unavailable,
    UnsupportedFormat,
)
from varve.wire import ErrorCode

_CODES: Final[tuple[tuple[type[Exception], ErrorCode], ...]] = (
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (InvalidRecord, ErrorCode.INVALID_RECORD),
    (RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (InvalidTransactionState, ErrorCode.INVALID_TXN_STATE),
    (InvalidSetting, ErrorCode.INVALID_CONFIG),
    (PolicyViolation, ErrorCode.POLICY_VIOLATION),
    (NotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (Closed, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (InvalidRequest, ErrorCode.INVALID_REQUEST),
    (InvalidProducerEpoch, ErrorCode.INVALID_PRODUCER_EPOCH),
    (Fenced, ErrorCode.FENCED_LEADER_EPOCH),
    (UnsupportedFormat, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (Corrupt, ErrorCode.CORRUPT_MESSAGE),
    (DiskFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (DirectoryOffline, ErrorCode.KAFKA_STORAGE_ERROR),
    (LogPoisoned, ErrorCode.KAFKA_STORAGE_ERROR),
    (StoreUnavailable, ErrorCode.KAFKA_STORAGE_ERROR),
    (Unavailable, ErrorCode.KAFKA_STORAGE_ERROR),
)


def code_of(error: Exception) -> ErrorCode:
    """The code for an error; one that nobody planned is UNKNOWN_SERVER_ERROR."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


class CloseConnection(Exception):
    """Raised by a handler whose answer has no room for an error: the server ends the connection."""
