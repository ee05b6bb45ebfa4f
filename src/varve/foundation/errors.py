"""Errors, sorted by what the caller does next.

Every message states the problem, the location, the value and its limit, and the remedy if any.
"""

from collections.abc import Sequence
from typing import TypeVar


class StoreError(Exception):
    """Base of everything varve raises on purpose."""

    retriable = False

    def again(self) -> "StoreError":
        """A copy to raise: an exception that is raised repeatedly accumulates tracebacks."""
        return type(self)(*self.args)


E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """An error to be kept, without its tracebacks: their frames hold the buffers of what failed."""
    parts: list[BaseException | None] = [error]
    while parts:
        part = parts.pop()
        if part is not None and (part is error or part.__traceback__ is not None):
            part.__traceback__ = None
            parts += (part.__cause__, part.__context__)
    return error


class InvalidRequest(StoreError):
    """The request is wrong: change it."""


class OffsetOutOfRange(InvalidRequest):
    """The offset lies before the log start offset or after the log end offset."""


class InvalidRecord(InvalidRequest):
    """A batch violates its topic's settings or the part of the format that producers may use."""

    record_errors: Sequence[tuple[int, str]] = ()
    """The indexes of the invalid records in their batch, in order, each with the reason; empty if
    the error concerns the whole batch."""

    @classmethod
    def at(cls, *record_errors: tuple[int, str]) -> "InvalidRecord":
        """For these records, of which there is at least one."""
        (_, message), *others = record_errors
        error = cls(
            f"{message}; {len(others)} more of its records are invalid" if others else message
        )
        error.record_errors = record_errors
        return error

    @property
    def record_index(self) -> int | None:
        """Index of the first invalid record; None if the error concerns the whole batch."""
        return next((index for index, _ in self.record_errors), None)


class InvalidTimestamp(InvalidRecord):
    """A record's timestamp lies outside the topic's bounds, or has the wrong type."""


class RecordTooLarge(InvalidRequest):
    """A batch exceeds `max.message.bytes` or `segment.bytes`."""


class OutOfOrderSequence(InvalidRequest):
    """An idempotent producer skipped or repeated sequence numbers."""


class UnexpectedOffset(InvalidRequest):
    """A replicated batch lies below the log end offset, or offsets do not ascend."""


class InvalidTransactionState(InvalidRequest):
    """A batch does not fit the producer's open transaction."""


class InvalidSetting(InvalidRequest):
    """A setting is unknown, of the wrong type or out of its range."""


class PolicyViolation(InvalidRequest):
    """The topic's settings forbid the operation."""


class NotFound(InvalidRequest):
    """No such topic, partition or file."""


class ObjectNotFound(NotFound):
    """The object store has no object with that key."""


class BucketNotFound(NotFound):
    """The bucket or container of an object store does not exist: create it or correct the URL."""


class ObjectExists(InvalidRequest):
    """The object was not created: the object store already has one with that key."""


class InconsistentTopicId(InvalidRequest):
    """The directory belongs to another topic of the same name."""


class InconsistentClusterId(InvalidRequest):
    """The log directories belong to different clusters."""


class TopicExists(InvalidRequest):
    """A topic of that name already exists."""


class VersionMismatch(StoreError):
    """Processes of one job run different versions of varve or Python: install the same ones."""


class Unavailable(StoreError):
    """Cannot be done now: try again later."""

    retriable = True


class DiskFull(Unavailable):
    """The disk has no space for the write; nothing was changed."""


class Locked(Unavailable):
    """Another process holds the directory.

    `address` is the listener of the server that holds it; empty if it is none.
    """

    def __init__(self, message: str, *, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class DirectoryOffline(Unavailable):
    """The log directory failed and its partitions are offline: repair the disk and reopen."""


class StoreUnavailable(Unavailable):
    """An object store failed or cannot be reached; the request may still have taken effect."""


class StoreThrottled(StoreUnavailable):
    """An object store asks for fewer requests: try again more slowly."""


class StoreDenied(StoreError):
    """An object store refuses these credentials: correct them or their permissions."""


class StoreUnsupported(StoreError):
    """An object store lacks an operation that varve requires: choose another."""


class Fenced(StoreError):
    """A newer owner exists: reopen."""


class InvalidProducerEpoch(Fenced):
    """A newer instance of this producer has written."""


class CoordinatorFenced(Fenced):
    """A newer transaction coordinator has written a marker for this producer."""


class Corrupt(StoreError):
    """Stored or received bytes break their format: never retry."""


class UnsupportedFormat(Corrupt):
    """Bytes of a format varve does not read, such as message formats 0 and 1."""


class MalformedMessage(Corrupt):
    """A message's bytes break Kafka's protocol."""


class InvalidOffset(Corrupt):
    """An offset does not ascend, or lies outside the range its segment can express."""


class OffsetOverflow(Corrupt):
    """A segment holds offsets beyond the 32-bit range of its base offset: it must be split."""


class Unbalanced(StoreError):
    """The record counts of a removal do not add up: nothing was removed, never retry."""


class LogPoisoned(Unavailable):
    """A sync failed, so the content of the disk is unknown: reopen the store to recover the log."""


class Closed(InvalidRequest):
    """The log or store was closed: open it again."""


class PowerLoss(BaseException):
    """A power loss that a test simulates.

    It is not an `Exception`, so that no handler runs code after it.
    """
