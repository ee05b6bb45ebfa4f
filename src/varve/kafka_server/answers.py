"""The answers of a connection, in the order of their requests.

Invariant  an answer leaves when all before it have left. Its size is taken from the budget of all
           connections as soon as it is there, and given back when the client takes it or is gone.
Threads    the loop's alone.
"""

from collections import deque
from dataclasses import replace
from typing import Any, cast

from varve.broker.context import ConnectionContext
from varve.kafka_server.outlet import Outlet, encode_answer, encode_bare
from varve.kafka_server.router import Request
from varve.kafka_server.shared import Shared
from varve.kafka_server.slot import Slot
from varve.kafka_server.throttle import Throttle
from varve.wire import Message


class Answers:
    """Requests in progress, and answers that wait for those before them."""

    def __init__(self, shared: Shared, outlet: Outlet, throttle: Throttle) -> None:
        self._shared = shared
        self._outlet = outlet
        self._throttle = throttle
        self._slots: deque[Slot] = deque()
        self._request_bytes = 0
        self._count_max = shared.settings.connection_max_requests
        self._request_bytes_max = shared.settings.connection_max_request_bytes

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def is_full(self) -> bool:
        """Whether as many requests are in progress as may be."""
        return len(self._slots) >= self._count_max or self._request_bytes >= self._request_bytes_max

    @property
    def awaits_only_event(self) -> bool:
        """Whether nothing is in progress but what waits for something to happen."""
        return not self._slots or self._slots[0].is_long_poll

    def expect(self, slot: Slot) -> None:
        """Keeps the place of an answer behind those of earlier requests."""
        self._slots.append(slot)
        self._request_bytes += slot.request_bytes

    def complete(
        self, slot: Slot, request: Request, answer: Message | None, context: ConnectionContext
    ) -> float:
        """Puts an answer in its place; gives the loop's time. Raises what it cannot be written for.

        A client that has used more than its quotas is told so, and has to wait.
        """
        shared = self._shared
        if answer is not None and request.has_answer:
            _encode(slot, request, answer)
        self._charge(slot, request, answer, context)
        shared.responses.take(slot.size)
        slot.is_done = True
        now = shared.loop.time()
        shared.metrics.count(
            request.api.key,
            request_bytes=slot.request_bytes,
            response_bytes=slot.size,
            seconds=now - slot.began,
        )
        return now

    def complete_bare(self, slot: Slot, token: bytes | None) -> None:
        """Puts an answer without a header in its place; None is no answer at all."""
        if token is not None:
            slot.pieces, slot.size = encode_bare(token)
        self._shared.responses.take(slot.size)
        slot.is_done = True

    def _charge(
        self, slot: Slot, request: Request, answer: Message | None, context: ConnectionContext
    ) -> None:
        told = cast(Any, answer)
        told_ms = waits_ms = getattr(told, "throttle_time_ms", 0)
        if self._shared.router.has_quotas:
            waits_ms = max(told_ms, self._throttle.note_use(slot, request, context))
        if waits_ms > told_ms and slot.size and hasattr(told, "throttle_time_ms"):
            _encode(slot, request, replace(told, throttle_time_ms=waits_ms))
        if waits_ms > 0:
            self._throttle.mute(waits_ms)

    def write(self) -> None:
        """Hands on what is ready, as fast as the client takes it."""
        slots, outlet = self._slots, self._outlet
        while slots and slots[0].is_done:
            slot = slots.popleft()
            self._request_bytes -= slot.request_bytes
            if slot.size:
                outlet.put(slot.pieces, slot.size)
        outlet.pump()

    def discard(self) -> None:
        """The client is gone; what it asked for is carried out nevertheless."""
        for slot in self._slots:
            if slot.is_done:
                self._shared.responses.give_back(slot.size)
        self._slots.clear()


def _encode(slot: Slot, request: Request, answer: Message) -> None:
    slot.pieces, slot.size = encode_answer(
        request.api, request.version, request.correlation_id, answer
    )
