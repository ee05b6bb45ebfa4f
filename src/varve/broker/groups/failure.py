"""What members are told when the log of groups refuses a record, as Kafka tells it."""

from varve.wire import ErrorCode
from varve.wire.errors import code_for


def group_code_of(error: Exception) -> ErrorCode:
    """For a group's own records: members look for their coordinator again."""
    match code_for(error):
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case _:
            return ErrorCode.UNKNOWN_SERVER_ERROR


def commit_code_of(error: Exception) -> ErrorCode:
    """For committed offsets, which may be too many for one batch or come from a fenced producer."""
    match code_for(error):
        case ErrorCode.MESSAGE_TOO_LARGE:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case ErrorCode.INVALID_PRODUCER_EPOCH:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.INVALID_TXN_STATE:
            return ErrorCode.INVALID_TXN_STATE
        case _:
            return group_code_of(error)
