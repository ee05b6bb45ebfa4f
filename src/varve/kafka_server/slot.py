"""The place of an answer among the others of its connection."""

import asyncio
from collections.abc import Sequence

from varve.kafka_server.buffers import ReceiveBuffer
from varve.kafka_server.outlet import Piece
from varve.kafka_server.router import Request
from varve.wire import ApiKey, Message


class Slot:
    """A request in progress, or its answer that waits for those before it."""

    __slots__ = (
        "began",
        "buffer",
        "busy_seconds",
        "future",
        "is_done",
        "pieces",
        "request",
        "request_bytes",
        "size",
    )

    def __init__(self, request: Request | None, request_bytes: int, began: float) -> None:
        self.request = request
        """None for a token without a header."""
        self.request_bytes = request_bytes
        self.began = began
        self.busy_seconds = 0.0
        """What a request took until it had to wait; 0 for one that did not have to."""
        self.buffer: ReceiveBuffer | None = None
        self.future: asyncio.Future[Message | None] | None = None
        self.is_done = False
        self.pieces: Sequence[Piece] = ()
        self.size = 0

    @property
    def key(self) -> ApiKey | None:
        return None if self.request is None else self.request.api.key
