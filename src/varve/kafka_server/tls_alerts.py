"""The fatal alert of a TLS handshake that fails, which tells the client why.

The event loops close the socket of a failed handshake and drop what OpenSSL still has to send.
Without the alert a client takes the close for a network failure and tries again until a timeout.

Invariant  an alert is sent only after all that the handshake sent before, and nothing follows it. A
           failed handshake holds its socket for `_LINGER_SECONDS` at most.
Threads    the event loop's alone.
"""

import asyncio
import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Any, Final

_LINGER_SECONDS: Final = 1.0
"""What the client has sent is read so long: a close before that would reset the connection, and the
client might lose the alert."""
_READ_BYTES: Final = 16 << 10

_CURRENT: ContextVar["TlsHandshake | None"] = ContextVar("handshake", default=None)


class TlsHandshake:
    """The handshake of one accepted socket, in the task that makes its connection."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._lingering: socket.socket | None = None
        _CURRENT.set(self)

    def fail(self, outgoing: ssl.MemoryBIO) -> None:
        """Sends what OpenSSL has left to send; the event loop closes its own socket after this."""
        alert = outgoing.read()
        if not alert:
            return
        with contextlib.suppress(OSError):
            self._lingering = self._client.dup()
            self._lingering.setblocking(False)
            self._lingering.send(alert)
            self._lingering.shutdown(socket.SHUT_WR)

    async def linger(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits until the client has read the alert and closes, where one was sent."""
        client, self._lingering = self._lingering, None
        if client is None:
            return
        with contextlib.closing(client), contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while await loop.sock_recv(client, _READ_BYTES):
                    pass


class _ServerObject(ssl.SSLObject):
    """One side of a handshake; reports its failure before the event loop learns of it."""

    handshake: TlsHandshake | None = None
    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLSyscallError):
            raise
        except ssl.SSLError:
            if self.handshake is not None:
                self.handshake.fail(self.outgoing)
            raise


class ServerTlsContext(ssl.SSLContext):
    """A context for listeners: handshakes that fail send their alert."""

    sslobject_class = _ServerObject

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **named: Any
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **named)
        assert isinstance(made, _ServerObject)
        made.handshake, made.outgoing = _CURRENT.get(), outgoing
        return made
