"""Errors of varve as Kafka's codes."""

from collections.abc import Iterator

import varve.foundation.errors as errors
from varve.wire import ErrorCode, KafkaError, code_for

NEVER_ANSWERED = {
    "StoreDenied",
    "StoreError",
    "StoreUnsupported",
    "Unbalanced",
    "VersionMismatch",
}
"""Errors of the object store and of cleaning, which no request of a client causes."""


def _error_types(base: type[errors.StoreError]) -> Iterator[type[errors.StoreError]]:
    yield base
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from _error_types(kind)


def test_every_store_error_that_a_request_can_cause_has_a_code() -> None:
    unknown = {
        kind.__name__
        for kind in _error_types(errors.StoreError)
        if code_for(kind("text")) is ErrorCode.UNKNOWN_SERVER_ERROR
    }
    assert unknown == NEVER_ANSWERED


def test_a_kafka_error_carries_its_own_code() -> None:
    error = KafkaError(ErrorCode.INVALID_TXN_STATE, "no transaction is open")
    assert code_for(error) is ErrorCode.INVALID_TXN_STATE
    assert str(error) == "no transaction is open"


def test_a_kafka_error_without_a_message_names_its_code() -> None:
    assert str(KafkaError(ErrorCode.INVALID_REQUEST)) == "INVALID_REQUEST"
    assert KafkaError(ErrorCode.INVALID_REQUEST).message is None


def test_other_exceptions_are_unknown_server_errors() -> None:
    assert code_for(ValueError("x")) is ErrorCode.UNKNOWN_SERVER_ERROR
