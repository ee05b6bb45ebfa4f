"""One client's connection: requests in, answers out, in the same order.

Several Produce requests may be in progress at a time, so that one sync serves them all. Any other
request that is not answered at once keeps the next one waiting: long polls, joins of groups, work
of coordinators. What comes meanwhile stays in the socket, but for one buffer.

Invariant  answers leave in the order of their requests. A request's bytes stay untouched until it
           is answered. A handler's error becomes an answer or ends the connection, never a gap.
Threads    the loop's alone.
"""

import asyncio
import logging
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from varve.broker.context import ConnectionContext
from varve.foundation.errors import MalformedMessage
from varve.kafka_server.authenticator import Authenticator
from varve.kafka_server.inlet import Inlet
from varve.kafka_server.metrics import CLOSED_CONNECTIONS, REFUSED_FRAMES
from varve.kafka_server.outlet import PIECE_BYTES, Outlet, encode_answer, encode_bare
from varve.kafka_server.patience import ConnectionState
from varve.kafka_server.router import Answer, RefusedFrame, Request
from varve.kafka_server.shared import Door, Shared
from varve.kafka_server.slot import Slot
from varve.wire import ApiKey, Message

logger = logging.getLogger(__name__)

_MUTE_MAX_MS: Final = 30_000
_LONG_POLLS: Final = (ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)


class Connection(asyncio.BufferedProtocol):
    """Made for each client that knocks at a door."""

    def __init__(self, shared: Shared, door: Door, host: str) -> None:
        self.host = host
        self._shared = shared
        self._door = door
        self._context: ConnectionContext | None = None
        self._authenticator: Authenticator | None = None
        self._inlet = Inlet(shared.pool, self._go_on)
        self._outlet = Outlet(shared.responses, shared.loop)
        self._transport: asyncio.Transport | None = None
        self._slots: deque[Slot] = deque()
        self._in_progress_bytes = 0
        self._blocker: Slot | None = None
        self._awaits_responses = False
        self._is_next_in_turn = False
        self._mutes = 0
        self._is_refused = False
        """Whether the answer waits that tells a client it is not who it says."""
        self._is_reading = True
        self._is_parsing = False
        self._is_flush_due = False
        self._is_closing = False
        self._is_stopping = False
        self.made_at = self.active_at = shared.loop.time()
        self.frame_began_at = 0.0
        """When the request began that has not arrived whole; 0 when there is none."""
        self.closing_at = 0.0

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._outlet.attach(transport)
        self._context, self._authenticator = self._door.admit(self, transport)

    @property
    def context(self) -> ConnectionContext:
        assert self._context is not None, "the connection is not made yet"
        return self._context

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inlet.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._inlet.received(nbytes)
        self.active_at = self._shared.loop.time()
        self._parse()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._outlet.pause()

    def resume_writing(self) -> None:
        self._outlet.resume()
        self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._door.leave(self)
        if self._awaits_responses:
            self._shared.responses.forget(self._on_responses)
        for slot in self._slots:
            self._drop(slot)
        self._slots.clear()
        self._blocker = None
        self._inlet.discard()
        self._outlet.discard()

    def _drop(self, slot: Slot) -> None:
        """An answer nobody takes; what was asked for is carried out nevertheless."""
        if slot.is_done:
            self._shared.responses.give_back(slot.size)

    # Requests

    def _is_blocked(self) -> bool:
        settings = self._shared.settings
        return (
            self._blocker is not None
            or self._is_closing
            or self._is_stopping
            or self._mutes > 0
            or self._is_refused
            or self._awaits_responses
            or self._inlet.awaits_room
            or self._outlet.queued > PIECE_BYTES
            or len(self._slots) >= settings.connection_max_requests
            or self._in_progress_bytes >= settings.connection_max_request_bytes
        )

    def _parse(self) -> None:
        """Takes all requests that may be begun now."""
        if self._is_parsing:
            return
        self._is_parsing = True
        try:
            while not self._is_blocked() and (frame := self._next_frame()) is not None:
                self._take(frame)
        finally:
            self._is_parsing = False
        if self._is_closing:
            return
        self._flush()
        self._settle()

    def _next_frame(self) -> memoryview | None:
        settings, authenticator = self._shared.settings, self._authenticator
        limit = settings.socket_request_max_bytes
        if authenticator is not None and not authenticator.is_done:
            limit = min(limit, settings.sasl_server_max_receive_size)
        if self._must_wait_for_others():
            self._awaits_responses = True
            self._shared.responses.wait(0, self._on_responses)
            return None
        try:
            return self._inlet.next_frame(limit)
        except MalformedMessage as error:
            self._refuse("frame_size", error)
            return None

    def _must_wait_for_others(self) -> bool:
        """Whether the next request may have a large answer, and too many wait to be read."""
        if not self._shared.responses.is_over or self._is_next_in_turn:
            return False
        return self._inlet.next_api_key() == ApiKey.FETCH

    def _on_responses(self) -> None:
        self._awaits_responses = False
        self._is_next_in_turn = True
        self._go_on()
        self._is_next_in_turn = False

    def _settle(self) -> None:
        """Decides whether more is to be read, and whether a request has begun to arrive."""
        inlet = self._inlet
        is_blocked = self._is_blocked()
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

    def _take(self, frame: memoryview) -> None:
        """Begins one request."""
        self._is_next_in_turn = False
        self.frame_began_at = 0.0
        slot = Slot(None, len(frame), self._shared.loop.time())
        authenticator = self._authenticator
        is_bare = authenticator is not None and authenticator.takes_bare_frames
        try:
            if is_bare:
                assert authenticator is not None
                self._begin_bare(slot, authenticator, bytes(frame))
            else:
                slot.request = self._shared.router.read(frame)
                self._begin(slot, slot.request)
        except RefusedFrame as error:
            self._refuse(error.reason, error)
        except MalformedMessage as error:
            self._refuse("malformed", error)

    def _begin(self, slot: Slot, request: Request) -> None:
        try:
            answer: Answer = self._shared.router.answer(request, self.context, self._authenticator)
        except RefusedFrame:
            raise
        except Exception as error:
            self._put_in_line(slot)
            self._fail(slot, request, error)
            return
        self._put_in_line(slot)
        if answer is None or isinstance(answer, Message):
            self._answer(slot, request, answer)
            return
        slot.busy_seconds = self._shared.loop.time() - slot.began
        slot.buffer = self._inlet.buffer
        slot.buffer.users += 1
        slot.future = asyncio.ensure_future(answer, loop=self._shared.loop)
        if slot.future is not answer:
            self._keep(slot.future, is_parked=request.api.key in _LONG_POLLS)
        if request.api.key is not ApiKey.PRODUCE:
            self._blocker = slot
        slot.future.add_done_callback(partial(self._on_done, slot))

    def _keep(self, task: "asyncio.Future[Any]", *, is_parked: bool = False) -> None:
        """The loop itself does not keep tasks from being collected."""
        tasks = self._shared.parked if is_parked else self._shared.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _put_in_line(self, slot: Slot) -> None:
        self._slots.append(slot)
        self._in_progress_bytes += slot.request_bytes

    def _begin_bare(self, slot: Slot, authenticator: Authenticator, token: bytes) -> None:
        self._put_in_line(slot)
        self._blocker = slot
        self._keep(self._shared.loop.create_task(self._answer_bare(slot, authenticator, token)))

    async def _answer_bare(self, slot: Slot, authenticator: Authenticator, token: bytes) -> None:
        try:
            answer = authenticator.handle_bare(token)
            found = answer if isinstance(answer, bytes) else await answer
        except Exception:
            logger.exception("SASL failed", extra={"client": self.context.client_host})
            self.close("failed")
            return
        if self._is_closing:
            return
        if found or not authenticator.has_failed:
            # An empty token would tell a client of PLAIN that it was let in.
            slot.pieces, slot.size = encode_bare(found)
        self._shared.responses.take(slot.size)
        slot.is_done = True
        self._blocker = None
        self._after_sasl()
        self._go_on()

    # Answers

    def _on_done(self, slot: Slot, future: "asyncio.Future[Message | None]") -> None:
        buffer, slot.buffer, slot.future = slot.buffer, None, None
        request = slot.request
        assert request is not None
        error = None if future.cancelled() else future.exception()
        if not self._is_closing:
            if future.cancelled():
                self.close("failed")
            elif error is not None:
                self._fail(slot, request, error)
            else:
                self._answer(slot, request, future.result())
        elif error is not None:
            self._shared.router.note_failure(request, self.context, error)
        if self._blocker is slot:
            self._blocker = None
        # The buffer is used again only if nothing refers to the request's records any more.
        slot.request = request = None
        if buffer is not None:
            self._shared.pool.leave(buffer)
        self._schedule_flush()

    def _fail(self, slot: Slot, request: Request, error: BaseException) -> None:
        answer = self._shared.router.fail(request, self.context, error)
        if answer is None:
            self.close("failed")
        else:
            self._answer(slot, request, answer)

    def _answer(self, slot: Slot, request: Request, answer: Message | None) -> None:
        """Puts an answer in its place; one that cannot be written ends the connection."""
        try:
            self._complete(slot, answer)
        except Exception as error:
            self._shared.router.note_failure(request, self.context, error)
            self.close("failed")

    def _complete(self, slot: Slot, answer: Message | None) -> None:
        request, shared = slot.request, self._shared
        assert request is not None
        if answer is not None and request.has_answer:
            self._encode(slot, request, answer)
        self._throttle(slot, request, answer)
        shared.responses.take(slot.size)
        slot.is_done = True
        self.active_at = shared.loop.time()
        shared.metrics.count(
            request.api.key,
            request_bytes=slot.request_bytes,
            response_bytes=slot.size,
            seconds=self.active_at - slot.began,
        )
        if request.api.key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            self._after_sasl()

    def _encode(self, slot: Slot, request: Request, answer: Message) -> None:
        slot.pieces, slot.size = encode_answer(
            request.api, request.version, request.correlation_id, answer
        )

    def _throttle(self, slot: Slot, request: Request, answer: Message | None) -> None:
        """Lets a client wait that has used more than its quotas, and tells it so."""
        router, told = self._shared.router, cast(Any, answer)
        told_ms = waits_ms = getattr(told, "throttle_time_ms", 0)
        if router.has_quotas:
            used_ms = router.note_use(
                request,
                self.context,
                received_bytes=slot.request_bytes,
                sent_bytes=slot.size,
                busy_seconds=slot.busy_seconds or self._shared.loop.time() - slot.began,
            )
            waits_ms = max(told_ms, used_ms)
        if waits_ms > told_ms and slot.size and hasattr(told, "throttle_time_ms"):
            self._encode(slot, request, replace(told, throttle_time_ms=waits_ms))
        if waits_ms > 0:
            self._mute(waits_ms)

    def _after_sasl(self) -> None:
        authenticator = self._authenticator
        if authenticator is None:
            return
        if authenticator.has_failed:
            self._is_refused = True
            delay_ms = self._shared.settings.connection_failed_authentication_delay_ms
            self._shared.loop.call_later(delay_ms / 1000, self._end_refused)
        elif authenticator.is_done:
            self.context.principal = authenticator.principal

    def _end_refused(self) -> None:
        self._is_refused = False
        self._flush()
        self.close("authentication")

    def _mute(self, throttle_ms: int) -> None:
        """A client over its quota is not read from for as long as it was told to wait."""
        self._mutes += 1
        self._shared.timers.call_later(min(throttle_ms, _MUTE_MAX_MS), self._unmute)

    def _unmute(self) -> None:
        self._mutes -= 1
        if not self._mutes:
            self._go_on()

    def _schedule_flush(self) -> None:
        """Answers that become ready together leave together."""
        if self._is_flush_due or self._is_closing:
            return
        if len(self._slots) == 1:
            self._go_on()
            return
        self._is_flush_due = True
        self._shared.loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._is_flush_due = False
        self._go_on()

    def _go_on(self) -> None:
        """Writes what is ready, then takes requests that may be begun now."""
        if self._is_closing:
            return
        self._flush()
        self._parse()

    def _flush(self) -> None:
        slots, outlet = self._slots, self._outlet
        if self._is_refused:
            return
        while slots and slots[0].is_done:
            slot = slots.popleft()
            self._in_progress_bytes -= slot.request_bytes
            if slot.size:
                outlet.put(slot.pieces, slot.size)
        outlet.pump()
        if self._shared.responses.taken > self._shared.responses.limit:
            self._door.relieve()
        if self._is_stopping and not outlet.queued and self._has_only_long_poll():
            self.close("stop")

    def _has_only_long_poll(self) -> bool:
        """Whether nothing is in progress but what waits for something to happen."""
        if not self._slots:
            return True
        return self._slots[0].key in _LONG_POLLS

    # The end

    def _refuse(self, reason: str, error: Exception) -> None:
        self._shared.metrics.table.add(REFUSED_FRAMES, 1, reason)
        logger.warning(
            "a request was refused and its connection closed",
            extra={"client": self.context.client_host, "reason": reason, "told": str(error)},
        )
        self._flush()
        self.close(reason)

    def close(self, reason: str) -> None:
        """Ends the connection once what was written has gone out."""
        if self._is_closing:
            return
        self._is_closing = True
        self.closing_at = self._shared.loop.time()
        self._shared.metrics.table.add(CLOSED_CONNECTIONS, 1, reason)
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Ends the connection at once."""
        if not self._is_closing:
            self._shared.metrics.table.add(CLOSED_CONNECTIONS, 1, reason)
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def stop(self) -> None:
        """Begins no more requests; ends when those in progress are answered, long polls at once."""
        self._is_stopping = True
        if not self._is_closing:
            self._flush()

    def state(self, now: float) -> ConnectionState:
        """What there is to know of its client's pace."""
        is_stalled = self._outlet.is_stalled
        authenticator = self._authenticator
        return ConnectionState(
            closing_at=self.closing_at if self._is_closing else None,
            stalled_since=self._outlet.note_progress(now) if is_stalled else None,
            frame_began_at=self.frame_began_at or None,
            frame_bytes=self._inlet.unparsed,
            awaits_memory=self._inlet.awaits_room,
            unknown_since=None if authenticator is None or authenticator.is_done else self.made_at,
            idle_since=None if self._slots or self._mutes > 0 else self.active_at,
        )

    @property
    def stalled_bytes(self) -> int:
        """What waits because the client does not read."""
        return self._outlet.queued if self._outlet.is_stalled else 0

    @property
    def stalled_since(self) -> float:
        return self._outlet.moved_at
