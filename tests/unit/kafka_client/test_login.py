"""SASL authentication against servers that are not what they claim to be."""

from collections.abc import Callable

import pytest

from varve.foundation.errors import StoreDenied
from varve.kafka_client.connection import log_in


class ScriptedServer:
    """Answers every token by a function."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer

    def exchange_token(self, token: bytes) -> bytes:
        return self._answer(token)


@pytest.mark.parametrize(
    "challenge",
    [b"", b"r=x", b"r=other,s=AAAA,i=4096", b"r=,s=AAAA,i=4096", b"e=other-error", b"\xff\xfe"],
)
def test_a_malformed_challenge_is_refused(challenge: bytes) -> None:
    with pytest.raises(StoreDenied, match="challenge"):
        log_in("SCRAM-SHA-256", "u", "p", ScriptedServer(lambda token: challenge))


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    def answer(token: bytes) -> bytes:
        nonce = token.decode().rpartition("r=")[2]
        return b"v=AAAA" if token.startswith(b"c=") else f"r={nonce}more,s=AAAA,i=4096".encode()

    with pytest.raises(StoreDenied, match="does not prove"):
        log_in("SCRAM-SHA-512", "u", "p", ScriptedServer(answer))
