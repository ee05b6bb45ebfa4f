"""Errors, sorted by what the caller does next.

Every message names what went wrong, where, the value and the limit, and the remedy if there is one.
"""


class StoreError(Exception):
    """Base of everything varve raises on purpose."""

    retriable = False

    def again(self) -> "StoreError":
        """A copy to raise again: an object raised over and over keeps all its tracebacks."""
        return type(self)(*self.args)


class InvalidRequest(StoreError):
    """The request is wrong: change it."""


class OffsetOutOfRange(InvalidRequest):
    """The offset lies before the log start offset or after the log end offset."""


class InvalidRecord(InvalidRequest):
    """A batch breaks a rule of its topic or of the format as producers may use it."""

    record_index: int | None = None
    """Which record of the batch is at fault, where one alone is."""

    @classmethod
    def at(cls, record_index: int, message: str) -> "InvalidRecord":
        error = cls(message)
        error.record_index = record_index
        return error


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
    """The object store holds no object of that key."""


class BucketNotFound(NotFound):
    """The bucket or container of an object store does not exist: create it or mend the URL."""


class ObjectExists(InvalidRequest):
    """The object store holds an object of that key already, so it was not created."""


class InconsistentTopicId(InvalidRequest):
    """The directory belongs to another topic of the same name."""


class InconsistentClusterId(InvalidRequest):
    """The log directories belong to different clusters."""


class TopicExists(InvalidRequest):
    """There is a topic of that name already."""


class VersionMismatch(StoreError):
    """Another process of the same job runs another varve or another Python: give it this one's."""


class Unavailable(StoreError):
    """Cannot be done now: try again later."""

    retriable = True


class DiskFull(Unavailable):
    """The disk has no space for the write; nothing was changed."""


class Locked(Unavailable):
    """Another process holds the directory."""


class DirectoryOffline(Unavailable):
    """The log directory failed and its partitions are offline: mend the disk and reopen."""


class StoreUnavailable(Unavailable):
    """An object store cannot be reached or failed; what was asked of it may still have happened."""


class StoreThrottled(StoreUnavailable):
    """An object store asks for fewer requests: try again more slowly."""


class StoreDenied(StoreError):
    """An object store refuses these credentials: correct them or their permissions."""


class StoreUnsupported(StoreError):
    """An object store lacks something that varve stands on: choose another."""


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
    """The figures of a removal do not add up: nothing was removed, never retry."""


class LogPoisoned(Unavailable):
    """A sync failed, so what the disk holds is unknown.

    Reopen the store, which recovers the log.
    """


class Closed(InvalidRequest):
    """The log or store was closed: open it again."""


class PowerLoss(BaseException):
    """A planned crash: the machine stopped.

    No `except Exception` may handle it, as nothing runs any more.
    """
