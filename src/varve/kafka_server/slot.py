"""The place of an answer among the others of its connection."""

import asyncio
from collections.abc import Sequence
from typing import Final

from varve.kafka_server.buffers import ReceiveBuffer
from varve.kafka_server.outlet import Piece
from varve.kafka_server.router import Request
from varve.wire import ApiKey, Message

_LONG_POLLS: Final = (ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)


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
    def is_long_poll(self) -> bool:
        """Whether it may wait for something to happen."""
        return self.request is not None and self.request.api.key in _LONG_POLLS
