"""Why a record is gone: the reasons that a balance counts by."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a record stayed or went."""

    KEPT = "kept"
    SUPERSEDED = "superseded"
    TOMBSTONE_EXPIRED = "tombstone past its horizon"
    NO_KEY = "no key"
    ABORTED = "aborted transaction"
    MARKER_EXPIRED = "transaction marker past its horizon"
    EXPIRED_TIME = "older than retention.ms"
    EXPIRED_SIZE = "beyond retention.bytes"
    BELOW_LOG_START = "below the log start offset"
