"""One login with PLAIN: a single token with name and password (RFC 4616).

Threads    the loop's alone; passwords are hashed off the loop where that takes long, some at a
           time, so that clients who try many leave the pool to others.
"""

import asyncio
from collections.abc import Awaitable

from varve.broker.broker import Broker
from varve.broker.security.plain_users import PlainUsers
from varve.kafka_server.sasl_exchange import SaslRefused


class PlainExchange:
    """A client that logs in with PLAIN; `turns` bounds the passwords that are hashed at a time."""

    def __init__(self, broker: Broker, users: PlainUsers, turns: asyncio.Semaphore) -> None:
        self._broker = broker
        self._turns = turns
        self._users = users
        self.user = ""
        self.is_done = False

    @property
    def refusal(self) -> bytes:
        """PLAIN has no words for it: the connection ends."""
        return b""

    def step(self, token: bytes) -> bytes | Awaitable[bytes]:
        """Answers the token; raises SaslRefused."""
        self.user, password = _parse(token)
        if self._users.is_slow:
            return self._check_later(password)
        return self._finish(self._users.is_right(self.user, password))

    async def _check_later(self, password: str) -> bytes:
        async with self._turns:
            is_right = await self._broker.offload(self._users.is_right, self.user, password)
        return self._finish(is_right)

    def _finish(self, is_right: bool) -> bytes:
        if not is_right:
            raise SaslRefused("Authentication failed: Invalid username or password")
        self.is_done = True
        return b""


def _parse(token: bytes) -> tuple[str, str]:
    try:
        parts = token.decode().split("\0")
    except UnicodeDecodeError as error:
        raise SaslRefused("Authentication failed: the token is not UTF-8") from error
    if len(parts) != 3:
        raise SaslRefused(
            f"Authentication failed: Invalid SASL/PLAIN response: expected 3 tokens, got "
            f"{len(parts)}"
        )
    authorization, user, password = parts
    if not user:
        raise SaslRefused("Authentication failed: username not specified")
    if not password:
        raise SaslRefused("Authentication failed: password not specified")
    if authorization not in ("", user):
        raise SaslRefused(
            "Authentication failed: Client requested an authorization id that is different from "
            "username"
        )
    return user, password
