"""What the error codes of a server mean to who asked it.

Invariant  a code is never passed over: it is tried again while that may help, or raised.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

from varve.foundation.errors import (
    Corrupt,
    Fenced,
    InvalidRecord,
    InvalidRequest,
    NotFound,
    OffsetOutOfRange,
    RecordTooLarge,
    StoreDenied,
    StoreError,
    Unavailable,
)
from varve.wire.errors import ErrorCode

T = TypeVar("T")

_MOVED: Final = frozenset(
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
_BUSY: Final = frozenset(
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
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "have describe and read of the topic granted, for its "
    "settings describe_configs (`varve acl add`), or log in as somebody else",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "have read of the group granted (`varve acl add`)",
}
_KINDS: Final[dict[int, type[StoreError]]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: NotFound,
    ErrorCode.UNKNOWN_TOPIC_ID: NotFound,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: StoreDenied,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: StoreDenied,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: StoreDenied,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: StoreDenied,
    ErrorCode.CORRUPT_MESSAGE: Corrupt,
    ErrorCode.INVALID_RECORD: InvalidRecord,
    ErrorCode.INVALID_TIMESTAMP: InvalidRecord,
    ErrorCode.MESSAGE_TOO_LARGE: RecordTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordTooLarge,
    ErrorCode.PRODUCER_FENCED: Fenced,
    ErrorCode.INVALID_PRODUCER_EPOCH: Fenced,
    ErrorCode.UNKNOWN_SERVER_ERROR: Unavailable,
}


class Refused(Unavailable):
    """An answer that may be another one soon; `is_moved` where another broker may give it."""

    def __init__(self, message: str, *, is_moved: bool = False) -> None:
        super().__init__(message)
        self.is_moved = is_moved


def only(found: Sequence[T], where: str) -> T:
    """The one thing that was asked for; raises Refused for an answer without it.

    Kafka answers a client over its quota with an empty response.
    """
    if len(found) != 1:
        raise Refused(f"{where}: the answer tells of {len(found)} things, not of the one asked for")
    return found[0]


def name_of(code: int) -> str:
    known = {int(one): one.name for one in ErrorCode}
    return known.get(code, f"error {code}")


def check(code: int, where: str, detail: str | None = None) -> None:
    """Raises what a code means; Refused for one that is worth another try."""
    if code == ErrorCode.NONE:
        return
    message = f"{where}: the server says {name_of(code)}" + (f": {detail:.300}" if detail else "")
    if code in _MOVED or code in _BUSY:
        raise Refused(message, is_moved=code in _MOVED)
    remedy = _REMEDIES.get(code)
    raise _KINDS.get(code, InvalidRequest)(message if remedy is None else f"{message}; {remedy}")
