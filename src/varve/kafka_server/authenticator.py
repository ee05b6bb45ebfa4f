"""What a connection asks of whoever finds out who its client is.

Invariant  before it is done a connection serves ApiVersions and what is handed to it here, and
           nothing else; when it has failed the connection is closed once its answer is out.
Threads    the loop's alone; work over a millisecond is awaited, such as deriving a key.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from varve.broker.broker import Broker
from varve.broker.context import ANONYMOUS, ConnectionContext, Principal
from varve.kafka_server.listener import Listener
from varve.wire import ApiKey, Message


class Authenticator(Protocol):
    """The SASL exchange of one connection."""

    @property
    def is_done(self) -> bool:
        """Whether the client is known; stays true while it authenticates anew (KIP-368)."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the client was refused."""
        ...

    @property
    def principal(self) -> Principal:
        """Who the client is; to be asked for once it is done."""
        ...

    @property
    def takes_bare_frames(self) -> bool:
        """Whether the next frames are tokens without a header, as after SaslHandshake 0."""
        ...

    @property
    def expires_ms(self) -> int | None:
        """By the broker's clock, when the client must have authenticated anew."""
        ...

    def handle(
        self, api_key: ApiKey, version: int, message: Message
    ) -> Message | Awaitable[Message]:
        """Answers SaslHandshake and SaslAuthenticate."""
        ...

    def handle_bare(self, token: bytes) -> bytes | Awaitable[bytes]:
        """Answers a token that came without a header."""
        ...


class ListenerSecurity(Protocol):
    """How the clients of one listener come to be known."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Asked for at each handshake, so that certificates may be renewed; None without TLS."""
        ...

    def find_principal(self, transport: asyncio.Transport) -> Principal:
        """Who shook hands: by certificate where the listener asks for one, else anonymous."""
        ...

    def make_authenticator(self, connection: ConnectionContext) -> Authenticator | None:
        """The SASL exchange of a connection, None on listeners without SASL."""
        ...


class OpenSecurity:
    """Everybody is let in, and nobody is known."""

    tls: ssl.SSLContext | None = None

    def find_principal(self, transport: asyncio.Transport) -> Principal:
        return ANONYMOUS

    def make_authenticator(self, connection: ConnectionContext) -> Authenticator | None:
        return None


MakeSecurity = Callable[[Broker, Listener], ListenerSecurity]
"""Called for each listener before the server listens; may raise InvalidSetting."""
