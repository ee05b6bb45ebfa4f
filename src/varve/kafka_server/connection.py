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
from functools import partial
from typing import Any

from varve.broker.context import ConnectionContext
from varve.foundation.errors import MalformedMessage
from varve.kafka_server.answers import Answers
from varve.kafka_server.authentication import Authenticator
from varve.kafka_server.intake import Intake
from varve.kafka_server.metrics import CLOSED_CONNECTIONS, REFUSED_FRAMES
from varve.kafka_server.outlet import PIECE_BYTES, Outlet
from varve.kafka_server.patience import ConnectionState
from varve.kafka_server.router import Answer, RefusedFrame, Request
from varve.kafka_server.shared import Door, Shared
from varve.kafka_server.slot import Slot
from varve.kafka_server.throttle import Throttle
from varve.wire import ApiKey, Message

logger = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    """Made for each client that knocks at a door."""

    def __init__(self, shared: Shared, door: Door, host: str) -> None:
        self.host = host
        self._shared = shared
        self._door = door
        self._context: ConnectionContext | None = None
        self._authenticator: Authenticator | None = None
        self._intake = Intake(shared, self._go_on)
        self._outlet = Outlet(shared.responses, shared.loop)
        self._throttle = Throttle(shared, self._go_on)
        self._answers = Answers(shared, self._outlet, self._throttle)
        self._transport: asyncio.Transport | None = None
        self._blocker: Slot | None = None
        self._is_refused = False
        """Whether the answer waits that tells a client it is not who it says."""
        self._is_parsing = False
        self._is_flush_due = False
        self._is_closing = False
        self._is_stopping = False
        self.made_at = self.active_at = shared.loop.time()
        self.closing_at = 0.0

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._intake.attach(transport)
        self._outlet.attach(transport)
        self._context, self._authenticator = self._door.admit(self, transport)

    @property
    def context(self) -> ConnectionContext:
        assert self._context is not None, "the connection is not made yet"
        return self._context

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._intake.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._intake.received(nbytes)
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
        self._blocker = None
        self._intake.discard()
        self._answers.discard()
        self._outlet.discard()

    # Requests

    def _is_blocked(self) -> bool:
        return (
            self._blocker is not None
            or self._is_closing
            or self._is_stopping
            or self._throttle.mutes > 0
            or self._is_refused
            or self._intake.is_waiting
            or self._outlet.queued > PIECE_BYTES
            or self._answers.is_full
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
        self._intake.settle(is_blocked=self._is_blocked())

    def _next_frame(self) -> memoryview | None:
        settings, authenticator = self._shared.settings, self._authenticator
        produce_limit = settings.socket_request_max_bytes
        if authenticator is not None and not authenticator.is_done:
            produce_limit = min(produce_limit, settings.sasl_server_max_receive_size)
        other_limit = min(produce_limit, settings.request_max_bytes)
        try:
            return self._intake.next_frame(produce_limit, other_limit)
        except MalformedMessage as error:
            self._refuse("frame_size", error)
            return None

    def _take(self, frame: memoryview) -> None:
        """Begins one request."""
        slot = Slot(None, len(frame), self._shared.loop.time())
        authenticator = self._authenticator
        is_bare = authenticator is not None and authenticator.takes_bare_frames
        try:
            if is_bare:
                assert authenticator is not None
                self._begin_bare(slot, authenticator, bytes(frame))
            else:
                slot.request = self._shared.router.read(frame, authenticator)
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
            self._answers.expect(slot)
            self._fail(slot, request, error)
            return
        self._answers.expect(slot)
        if answer is None or isinstance(answer, Message):
            self._answer(slot, request, answer)
            return
        slot.busy_seconds = self._shared.loop.time() - slot.began
        slot.buffer = self._intake.buffer
        slot.buffer.users += 1
        slot.future = asyncio.ensure_future(answer, loop=self._shared.loop)
        if slot.future is not answer:
            self._keep(slot.future, is_parked=slot.is_long_poll)
        if request.api.key is not ApiKey.PRODUCE:
            self._blocker = slot
        slot.future.add_done_callback(partial(self._on_done, slot))

    def _keep(self, task: "asyncio.Future[Any]", *, is_parked: bool = False) -> None:
        """The loop itself does not keep tasks from being collected."""
        tasks = self._shared.parked if is_parked else self._shared.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _begin_bare(self, slot: Slot, authenticator: Authenticator, token: bytes) -> None:
        self._answers.expect(slot)
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
        # An empty token would tell a client of PLAIN that it was let in.
        is_told = bool(found) or not authenticator.has_failed
        self._answers.complete_bare(slot, found if is_told else None)
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
            self.active_at = self._answers.complete(slot, request, answer, self.context)
            if request.api.key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
                self._after_sasl()
        except Exception as error:
            self._shared.router.note_failure(request, self.context, error)
            self.close("failed")

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

    def _schedule_flush(self) -> None:
        """Answers that become ready together leave together."""
        if self._is_flush_due or self._is_closing:
            return
        if len(self._answers) == 1:
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
        if self._is_refused:
            return
        self._answers.write()
        if self._shared.responses.taken > self._shared.responses.limit:
            self._door.relieve()
        if self._is_stopping and not self._outlet.queued and self._answers.awaits_only_event:
            self.close("stop")

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
            # A transport that is closed while it calls resume_writing tells its end twice.
            self._shared.loop.call_soon(self._transport.close)

    def abort(self, reason: str) -> None:
        """Ends the connection at once."""
        if not self._is_closing:
            self._shared.metrics.table.add(CLOSED_CONNECTIONS, 1, reason)
        self._is_closing = True
        if self._transport is not None:
            # As in `close`: memory that runs short ends a client within its own resume_writing.
            self._shared.loop.call_soon(self._transport.abort)

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
            frame_began_at=self._intake.frame_began_at or None,
            frame_bytes=self._intake.unparsed,
            awaits_memory=self._intake.awaits_memory,
            unknown_since=None if authenticator is None or authenticator.is_done else self.made_at,
            idle_since=None if self._answers or self._throttle.mutes > 0 else self.active_at,
        )

    @property
    def stalled_bytes(self) -> int:
        """What waits because the client does not read."""
        return self._outlet.queued if self._outlet.is_stalled else 0

    @property
    def stalled_since(self) -> float:
        return self._outlet.moved_at
