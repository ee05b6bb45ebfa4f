"""What all mechanisms of SASL have in common: tokens come and go, in the end there is a user."""

from collections.abc import Awaitable
from typing import Protocol

from varve.foundation.errors import StoreError


class SaslRefused(StoreError):
    """A client is not who it says; the message is for the client."""


class SaslExchange(Protocol):
    """One login."""

    @property
    def user(self) -> str:
        """Who the client says it is; true once it is done."""
        ...

    @property
    def is_done(self) -> bool: ...

    @property
    def refusal(self) -> bytes:
        """What a client is told that sent tokens without a header."""
        ...

    def step(self, token: bytes) -> bytes | Awaitable[bytes]:
        """Answers a token of the client; raises SaslRefused."""
        ...
