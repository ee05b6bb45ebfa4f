"""Kafka's error codes, and the errors of varve that they stand for.

Invariant  `code_for` gives every StoreError the code by which a Kafka client takes the same next
           step: correct the request, look for the leader again, retry, or give up. A client raises
           the error of a code by `raise_for_code`; every code but NONE is an error.
"""

from enum import IntEnum
from typing import Final

from varve.foundation import errors


class ErrorCode(IntEnum):
    """Why a request was not carried out, by Kafka's numbers; NONE if it was."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


class KafkaError(errors.StoreError):
    """A request, or one part of it, fails with a code; the message is for people."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.code.name if self.message is None else self.message


_CODES: Final[tuple[tuple[type[Exception], ErrorCode], ...]] = (
    (errors.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (errors.InvalidRecord, ErrorCode.INVALID_RECORD),
    (errors.RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (errors.OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.InvalidTransactionState, ErrorCode.INVALID_TXN_STATE),
    (errors.InvalidSetting, ErrorCode.INVALID_CONFIG),
    (errors.PolicyViolation, ErrorCode.POLICY_VIOLATION),
    (errors.NotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (errors.Closed, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (errors.InvalidRequest, ErrorCode.INVALID_REQUEST),
    (errors.InvalidProducerEpoch, ErrorCode.INVALID_PRODUCER_EPOCH),
    (errors.CoordinatorFenced, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    (errors.Fenced, ErrorCode.FENCED_LEADER_EPOCH),
    (errors.UnsupportedFormat, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (errors.Corrupt, ErrorCode.CORRUPT_MESSAGE),
    (errors.DiskFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.DirectoryOffline, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.LogPoisoned, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.StoreUnavailable, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.Unavailable, ErrorCode.KAFKA_STORAGE_ERROR),
    (TimeoutError, ErrorCode.REQUEST_TIMED_OUT),
)


def code_for(error: Exception) -> ErrorCode:
    """The code of an error; UNKNOWN_SERVER_ERROR for one that no table entry covers."""
    if isinstance(error, KafkaError):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


class RetriableError(errors.Unavailable):
    """An error after which a retry may succeed; with `refresh_metadata` on another broker."""

    def __init__(self, message: str, *, refresh_metadata: bool = False) -> None:
        super().__init__(message)
        self.refresh_metadata = refresh_metadata


_MOVED_CODES: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
_RETRIABLE_CODES: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
_REMEDIES: Final[dict[int, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "add ACLs for describe and read of the topic, and "
    "describe_configs for its settings (`varve acl add`), or log in as another user",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "add an ACL for read of the group (`varve acl add`)",
}
_ERRORS: Final[dict[int, type[errors.StoreError]]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: errors.OffsetOutOfRange,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: errors.NotFound,
    ErrorCode.UNKNOWN_TOPIC_ID: errors.NotFound,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: errors.StoreDenied,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: errors.StoreDenied,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: errors.StoreDenied,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: errors.StoreDenied,
    ErrorCode.CORRUPT_MESSAGE: errors.Corrupt,
    ErrorCode.INVALID_RECORD: errors.InvalidRecord,
    ErrorCode.INVALID_TIMESTAMP: errors.InvalidTimestamp,
    ErrorCode.MESSAGE_TOO_LARGE: errors.RecordTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: errors.RecordTooLarge,
    ErrorCode.PRODUCER_FENCED: errors.Fenced,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: errors.Fenced,
    ErrorCode.INVALID_PRODUCER_EPOCH: errors.InvalidProducerEpoch,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: errors.OutOfOrderSequence,
    ErrorCode.INVALID_TXN_STATE: errors.InvalidTransactionState,
    ErrorCode.INVALID_CONFIG: errors.InvalidSetting,
    ErrorCode.POLICY_VIOLATION: errors.PolicyViolation,
    ErrorCode.TOPIC_ALREADY_EXISTS: errors.TopicExists,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: errors.UnsupportedFormat,
    ErrorCode.UNKNOWN_SERVER_ERROR: errors.Unavailable,
}


def raise_for_code(code: int, where: str, detail: str | None = None) -> None:
    """Raises the error of a response's code; RetriableError if the request may be sent again."""
    if code == ErrorCode.NONE:
        return
    name = ErrorCode(code).name if code in _ERROR_CODES else f"error {code}"
    message = f"{where}: the server returned {name}" + (f": {detail:.300}" if detail else "")
    if code in _MOVED_CODES or code in _RETRIABLE_CODES:
        raise RetriableError(message, refresh_metadata=code in _MOVED_CODES)
    remedy = _REMEDIES.get(code)
    raise _ERRORS.get(code, errors.InvalidRequest)(
        message if remedy is None else f"{message}; {remedy}"
    )


_ERROR_CODES: Final = frozenset(map(int, ErrorCode))
