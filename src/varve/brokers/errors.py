"""What a broker or the way to it refuses, in a sentence that says what to do."""

from typing import TYPE_CHECKING, Final

from varve.foundation.errors import (
    Fenced,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidRequest,
    InvalidSetting,
    InvalidTimestamp,
    NotFound,
    OffsetOutOfRange,
    PolicyViolation,
    RecordTooLarge,
    StoreError,
    TopicExists,
    Unavailable,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_NO_CONNECTION: Final = ("refused", "resolve", "unreachable", "No route")
"""Parts of librdkafka's reasons for which the address or the broker is wrong, not a setting."""
_VAGUE_REASONS: Final = {
    "1/1 brokers are down": "it closes the connection",
    "Failed while waiting for controller: Local: Timed out": "it accepts connections only",
}
LIST_TOPICS: Final = "`varve topic list` lists the topics"
LIST_GROUPS: Final = "`varve group list` lists the groups"


class Denied(StoreError):
    """The broker denies the request to this user."""


class Refused(StoreError):
    """The broker refuses the request, for the reason in the message."""


def as_error(error: "KafkaError", what: str, *, address: str = "") -> StoreError:
    """The error to raise; `what` was requested, `address` is the broker."""
    name = error.name()
    reason = _tidy(error.str())
    if name in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT"):
        return unreachable(address, reason)
    if name == "_MSG_TIMED_OUT":
        return Unavailable(
            f"{what}: the broker at {address} did not accept records in time, in spite of "
            "retries: it is down or busy, or its disk is full (its log shows which); name another "
            "(in the shell with --bootstrap or VARVE_BOOTSTRAP)"
        )
    if name in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"):
        return login_refused(address, reason)
    if name in (
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    ):
        return denied(what, reason)
    if name in (
        "_UNKNOWN_TOPIC",
        "_UNKNOWN_PARTITION",
        "UNKNOWN_TOPIC_OR_PART",
        "UNKNOWN_TOPIC_ID",
    ):
        return NotFound(f"{what}: there is no such topic or partition; {LIST_TOPICS}")
    if name == "GROUP_ID_NOT_FOUND":
        return NotFound(f"{what}: there is no such group; {LIST_GROUPS}")
    if name in ("NON_EMPTY_GROUP", "UNKNOWN_MEMBER_ID"):
        return InvalidRequest(f"{what}: the group has members; stop them first")
    if name == "SECURITY_DISABLED":
        return Refused(acls_disabled(address))
    if name == "MSG_SIZE_TOO_LARGE":
        return RecordTooLarge(
            f"{what}: a record is larger than the client or the topic allows; raise -X "
            "message.max.bytes=... (default 1000000 bytes) and the topic's max.message.bytes"
        )
    if name == "RESOURCE_NOT_FOUND":
        return NotFound(
            f"{what}: there is no such user with this mechanism; `varve user list` lists the users"
        )
    if name == "OFFSET_OUT_OF_RANGE":
        return OffsetOutOfRange(
            f"{what}: the offset is outside the log; `varve topic describe` shows its offsets"
        )
    sentence = reason if what in reason else f"{what}: {reason}"
    return _KINDS.get(name, Refused)(sentence)


def acls_disabled(address: str) -> str:
    return (
        f"ACLs are disabled on the broker at {address}: every client may do everything; start it "
        "with varve.authorizer.enable=true and super.users"
    )


def denied(what: str, reason: str) -> StoreError:
    """The broker knows who asks, and does not let them."""
    return Denied(
        f"{what}: not authorised ({reason}); ask one of the broker's super.users to add an ACL "
        "with `varve acl add`, or log in as another user with -X sasl.username=..."
    )


def unreachable(address: str, reason: str) -> StoreError:
    """No broker answers, or not as the settings of the client expect."""
    cause = _VAGUE_REASONS.get(reason, reason.rpartition("failed: ")[2])
    if any(text in reason for text in _NO_CONNECTION):
        return Unavailable(
            f"no broker answers at {address} ({cause}); start one with `varve serve`, or name "
            "another (in the shell with --bootstrap or VARVE_BOOTSTRAP)"
        )
    if "PLAINTEXT" in reason:
        return Unavailable(
            f"the listener at {address} does not use TLS ({cause}): set "
            "security.protocol=PLAINTEXT or SASL_PLAINTEXT (in the shell with -X)"
        )
    return Unavailable(
        f"no broker answers at {address} ({cause}): if the listener uses TLS, set "
        "security.protocol=SSL and ssl.ca.location, if it requires a login, "
        "security.protocol=SASL_PLAINTEXT or SASL_SSL, sasl.mechanism, sasl.username and "
        "sasl.password (in the shell with -X); otherwise start a broker with `varve serve`, "
        "or name another (in the shell with --bootstrap)"
    )


def login_refused(address: str, reason: str) -> StoreError:
    """The broker answers, and wants to know who asks, or in another way."""
    if "certificate verify failed" in reason:
        return Denied(
            f"the certificate of the broker at {address} is not signed by an authority that this "
            "client trusts: set ssl.ca.location (in the shell with -X)"
        )
    if "SASL state" in reason:
        return Denied(
            f"the listener at {address} has no login: set security.protocol=PLAINTEXT or SSL "
            "(in the shell with -X)"
        )
    return Denied(
        f"the broker at {address} refused the connection ({reason}); set what it requires with -X "
        "security.protocol=..., -X sasl.mechanism=..., -X sasl.username=..., -X "
        "sasl.password=... or -X ssl.ca.location=..."
    )


_KINDS: Final[dict[str, type[StoreError]]] = {
    "TOPIC_ALREADY_EXISTS": TopicExists,
    "INVALID_CONFIG": InvalidSetting,
    "INVALID_PARTITIONS": InvalidRequest,
    "INVALID_REPLICATION_FACTOR": InvalidRequest,
    "TOPIC_EXCEPTION": InvalidRequest,
    "INVALID_REQUEST": InvalidRequest,
    "POLICY_VIOLATION": PolicyViolation,
    "INVALID_RECORD": InvalidRecord,
    "INVALID_TIMESTAMP": InvalidTimestamp,
    "_FENCED": Fenced,
    "PRODUCER_FENCED": Fenced,
    "INVALID_PRODUCER_EPOCH": InvalidProducerEpoch,
}


def _tidy(text: str) -> str:
    """One line, without what the library puts before it."""
    return " ".join(text.split()).removeprefix("Local: ").removeprefix("Broker: ")
