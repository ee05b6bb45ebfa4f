"""When more is read from a client, and when its next request is taken.

A request whose answer may be large waits for its turn while the answers of all connections take
more memory than they may.

Threads    the loop's alone.
"""

import asyncio
from collections.abc import Callable

from varve.kafka_server.buffers import ReceiveBuffer
from varve.kafka_server.inlet import Inlet
from varve.kafka_server.shared import Shared
from varve.wire import ApiKey


class Intake:
    """Takes frames from one client; `on_ready` is called when it need not wait for memory."""

    def __init__(self, shared: Shared, on_ready: Callable[[], None]) -> None:
        self._shared = shared
        self._on_ready = on_ready
        self._inlet = Inlet(shared.pool, on_ready)
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        self._awaits_turn = False
        self._is_next_in_turn = False
        self.frame_began_at = 0.0
        """When the request began that has not arrived whole; 0 when there is none."""

    def attach(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    @property
    def awaits_memory(self) -> bool:
        """Whether there is no room for the rest of a request."""
        return self._inlet.awaits_room

    @property
    def is_waiting(self) -> bool:
        """Whether no request can be taken before others have left memory."""
        return self._awaits_turn or self._inlet.awaits_room

    @property
    def unparsed(self) -> int:
        """Bytes that were received and not taken."""
        return self._inlet.unparsed

    @property
    def buffer(self) -> ReceiveBuffer:
        """Where the last frame lies."""
        return self._inlet.buffer

    def room(self) -> memoryview:
        """Where to receive to."""
        return self._inlet.room()

    def received(self, count: int) -> None:
        self._inlet.received(count)

    def next_frame(self, produce_limit: int, other_limit: int) -> memoryview | None:
        """A whole request that may be begun; raises MalformedMessage for one of no such size."""
        if self._must_wait_for_others():
            self._awaits_turn = True
            self._shared.responses.wait(0, self._on_turn)
            return None
        frame = self._inlet.next_frame(produce_limit, other_limit)
        if frame is not None:
            self._is_next_in_turn = False
            self.frame_began_at = 0.0
        return frame

    def _must_wait_for_others(self) -> bool:
        """Whether the next request may have a large answer, and too many wait to be read."""
        if not self._shared.responses.is_over or self._is_next_in_turn:
            return False
        return self._inlet.next_api_key() == ApiKey.FETCH

    def _on_turn(self) -> None:
        self._awaits_turn = False
        self._is_next_in_turn = True
        self._on_ready()
        self._is_next_in_turn = False

    def settle(self, *, is_blocked: bool) -> None:
        """Decides whether more is to be read, and whether a request has begun to arrive."""
        inlet = self._inlet
        if not is_blocked or not inlet.unparsed:
            inlet.settle()
        has_partial = bool(inlet.unparsed) and not is_blocked
        if not has_partial:
            self.frame_began_at = 0.0
        elif not self.frame_began_at:
            self.frame_began_at = self._shared.loop.time()
        self._set_reading(not inlet.awaits_room and not inlet.is_full)

    def _set_reading(self, is_reading: bool) -> None:
        transport = self._transport
        if transport is None or is_reading == self._is_reading or transport.is_closing():
            return
        self._is_reading = is_reading
        if is_reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def discard(self) -> None:
        """The client is gone."""
        if self._awaits_turn:
            self._shared.responses.forget(self._on_turn)
        self._inlet.discard()
