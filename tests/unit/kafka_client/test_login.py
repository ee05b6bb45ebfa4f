"""SASL authentication against servers that are not what they claim to be."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from varve.foundation.errors import StoreDenied
from varve.kafka_client.connection import BrokerConnection, log_in


def log_in_to(answer: Callable[[bytes], bytes], mechanism: str) -> None:
    """Logs in to a server that answers every token by a function."""
    connection = cast(BrokerConnection, SimpleNamespace(exchange_token=answer))
    log_in(mechanism, "u", "p", connection)


@pytest.mark.parametrize(
    "challenge",
    [b"", b"r=x", b"r=other,s=AAAA,i=4096", b"r=,s=AAAA,i=4096", b"e=other-error", b"\xff\xfe"],
)
def test_a_malformed_challenge_is_refused(challenge: bytes) -> None:
    with pytest.raises(StoreDenied, match="challenge"):
        log_in_to(lambda token: challenge, "SCRAM-SHA-256")


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    def answer(token: bytes) -> bytes:
        nonce = token.decode().rpartition("r=")[2]
        return b"v=AAAA" if token.startswith(b"c=") else f"r={nonce}more,s=AAAA,i=4096".encode()

    with pytest.raises(StoreDenied, match="does not prove"):
        log_in_to(answer, "SCRAM-SHA-512")
