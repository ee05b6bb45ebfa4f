"""One client's connection: requests in, responses out, in the same order.

Several Produce requests may be in flight at a time, so that one sync serves them all. Any other
request that is not answered at once delays the next one: long polls, joins of groups, work of
coordinators. What the client sends meanwhile stays in the socket, except for one buffer.

Invariant  responses leave in the order of their requests. A request's bytes stay unchanged until it
           is answered. A handler's error becomes a response or closes the connection, never a gap.
           A connection waits for at most one of the memory budgets.
Threads    the event loop's alone.
"""

import asyncio
import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

from varve.broker.background import Timers
from varve.broker.request import ANONYMOUS, CloseConnection, ConnectionContext
from varve.foundation.errors import MalformedMessage
from varve.kafka_server.authentication import ListenerSecurity, SaslSession
from varve.kafka_server.dispatcher import (
    SASL_KEYS,
    Dispatcher,
    HandlerResult,
    RejectedRequest,
    Request,
)
from varve.kafka_server.frames import BufferPool, FrameReader, MemoryBudget
from varve.kafka_server.metrics import CLOSED_CONNECTIONS, REJECTED_REQUESTS, ServerMetrics
from varve.kafka_server.registry import ConnectionRegistry
from varve.kafka_server.responses import (
    InFlightRequest,
    ResponseQueue,
    ResponseWriter,
    encode_token,
)
from varve.kafka_server.settings import ServerSettings
from varve.wire import ApiKey, Message

logger = logging.getLogger(__name__)

_MUTE_MAX_MS: Final = 30_000
_SLOW_REQUEST_GRACE_SECONDS: Final = 2.0
_SLOW_REQUEST_BYTES: Final = 64 << 10
"""Per second, after the grace, while other connections wait for memory."""
_QUEUED_BYTES_MAX: Final = 1 << 20
"""A connection with more bytes to write starts no request."""
_SMALL_ANSWERS: Final = frozenset({
    ApiKey.PRODUCE, ApiKey.API_VERSIONS, *SASL_KEYS, ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT,
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN,
})  # fmt: skip
"""Requests that are answered while responses fill their memory; the others wait."""


@dataclass(frozen=True, slots=True)
class ConnectionServices:
    """What all connections of a server share."""

    loop: asyncio.AbstractEventLoop
    timers: Timers
    settings: ServerSettings
    dispatcher: Dispatcher
    metrics: ServerMetrics
    registry: ConnectionRegistry
    buffers: BufferPool
    response_memory: MemoryBudget
    tasks: set[asyncio.Future[Any]] = field(default_factory=set)
    """Requests in progress; they are carried out even if the client disconnects."""
    long_polls: set[asyncio.Future[Any]] = field(default_factory=set)
    """Long polls in progress; a stop does not wait for them."""

    def keep(self, task: "asyncio.Future[Any]", *, is_long_poll: bool = False) -> None:
        """The loop itself does not keep tasks from being collected."""
        tasks = self.long_polls if is_long_poll else self.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)


class Connection(asyncio.BufferedProtocol):
    """Made for each accepted client; `admit` of the registry comes before."""

    def __init__(
        self,
        services: ConnectionServices,
        listener: str,
        security: ListenerSecurity,
        host: str,
    ) -> None:
        self.host = host
        self._services = services
        self._loop = services.loop
        self._listener = listener
        self._security = security
        self._context: ConnectionContext | None = None
        self._sasl: SaslSession | None = None
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(services.buffers)
        self._writer = ResponseWriter(services.response_memory, services.loop)
        self._responses = ResponseQueue(self._writer, services.response_memory, services.settings)
        self._delaying: InFlightRequest | None = None
        """The request that must be answered before the next one is started."""
        self._awaited_memory: MemoryBudget | None = None
        self._is_next_in_turn = False
        self._mute_count = 0
        self._is_reading = True
        self._has_failed_login = False
        """Whether the response to a failed authentication is held back."""
        self._is_starting_requests = False
        self._is_write_scheduled = False
        self._is_closing = False
        self._is_stopping = False
        self._opened_at = self._active_at = services.loop.time()
        self._closing_at = 0.0
        self._frame_started_at = 0.0
        """When the first bytes of an incomplete request came; 0 where there is none."""

    @property
    def context(self) -> ConnectionContext:
        assert self._context is not None, "the connection is not made yet"
        return self._context

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: the transports of uvloop are no subclasses of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        self._writer.attach(transport)
        principal = self._security.find_principal(transport)
        id = self._services.registry.add(self)
        self._context = ConnectionContext(id, self._listener, self.host, principal or ANONYMOUS)
        if principal is None:
            self.abort("authentication")
        self._sasl = self._security.start_sasl(self._context)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        self._reader.received(nbytes)
        self._active_at = self._loop.time()
        self._start_requests()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        self._writer.resume()
        self.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._services.registry.remove(self)
        self._delaying = None
        if self._awaited_memory is not None:
            self._awaited_memory.cancel(self)
            self._awaited_memory = None
        self._reader.discard()
        self._responses.discard()
        self._writer.discard()

    # Reading requests

    def resume(self) -> None:
        """Writes what is ready, then starts requests that may be started now."""
        if self._is_closing:
            return
        self._write()
        self._start_requests()

    def _is_blocked(self) -> bool:
        return (
            self._delaying is not None
            or self._is_closing
            or self._is_stopping
            or self._mute_count > 0
            or self._has_failed_login
            or self._awaited_memory is not None
            or self._writer.queued_bytes > _QUEUED_BYTES_MAX
            or self._responses.is_full
        )

    def _start_requests(self) -> None:
        if self._is_starting_requests:
            return
        self._is_starting_requests = True
        try:
            while not self._is_blocked() and (frame := self._next_frame()) is not None:
                self._start_request(frame)
        finally:
            self._is_starting_requests = False
        if self._is_closing:
            return
        self._write()
        self._continue_reading(is_blocked=self._is_blocked())

    def _next_frame(self) -> memoryview | None:
        if self._must_wait_for_responses():
            self._wait_for_memory(self._services.response_memory, 0)
            return None
        settings, sasl = self._services.settings, self._sasl
        produce_limit = settings.socket_request_max_bytes
        if sasl is not None and not sasl.is_done:
            produce_limit = min(produce_limit, settings.sasl_server_max_receive_size)
        other_limit = min(produce_limit, settings.request_max_bytes)
        try:
            frame = self._reader.next_frame(produce_limit, other_limit)
        except MalformedMessage as error:
            self._reject("frame_size", error)
            return None
        if frame is not None:
            self._is_next_in_turn = False
            self._frame_started_at = 0.0
        return frame

    def _must_wait_for_responses(self) -> bool:
        """Whether the next response may be large while too many wait for their clients."""
        if not self._services.response_memory.is_exceeded or self._is_next_in_turn:
            return False
        key = self._reader.next_api_key()
        return key is not None and key not in _SMALL_ANSWERS

    def _wait_for_memory(self, budget: MemoryBudget, size: int) -> None:
        self._awaited_memory = budget
        budget.wait(self, size)

    def memory_granted(self) -> None:
        """Called by the budget that the connection waits for."""
        awaited, self._awaited_memory = self._awaited_memory, None
        if awaited is self._services.response_memory:
            self._is_next_in_turn = True
            self.resume()
            self._is_next_in_turn = False
        else:
            self._reader.use_granted_memory()
            self.resume()

    def _continue_reading(self, *, is_blocked: bool) -> None:
        """Decides whether to read more, and whether a request has begun to arrive."""
        reader = self._reader
        if not is_blocked or not reader.unparsed:
            reader.prepare_space()
            if reader.wanted_bytes and self._awaited_memory is None:
                self._wait_for_memory(self._services.buffers.memory, reader.wanted_bytes)
        if not reader.unparsed or is_blocked:
            self._frame_started_at = 0.0
        elif not self._frame_started_at:
            self._frame_started_at = self._loop.time()
        self._set_reading(not reader.wanted_bytes and not reader.is_full)

    def _set_reading(self, is_reading: bool) -> None:
        transport = self._transport
        if transport is None or is_reading == self._is_reading or transport.is_closing():
            return
        self._is_reading = is_reading
        if is_reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # Handling requests

    def _start_request(self, frame: memoryview) -> None:
        in_flight = InFlightRequest(len(frame), self._loop.time())
        sasl = self._sasl
        try:
            if sasl is not None and sasl.takes_bare_tokens:
                self._start_token(in_flight, sasl, bytes(frame))
            else:
                request = self._services.dispatcher.read(frame, self.context, sasl)
                in_flight.request = request
                self._dispatch(in_flight, request)
        except RejectedRequest as error:
            self._reject(error.reason, error)
        except MalformedMessage as error:
            self._reject("malformed", error)

    def _dispatch(self, in_flight: InFlightRequest, request: Request) -> None:
        self._responses.add(in_flight)
        try:
            result: HandlerResult = self._services.dispatcher.dispatch(request, self._sasl)
        except Exception as error:
            self._respond_with_error(in_flight, request, error)
            return
        if result is None or isinstance(result, Message):
            self._respond(in_flight, request, result)
            return
        in_flight.busy_seconds = self._loop.time() - in_flight.started_at
        in_flight.buffer = self._reader.buffer
        in_flight.buffer.users += 1
        future = asyncio.ensure_future(result, loop=self._loop)
        if future is not result:
            self._services.keep(future, is_long_poll=in_flight.is_long_poll)
        if request.api.key is not ApiKey.PRODUCE:
            self._delaying = in_flight
        future.add_done_callback(partial(self._on_handled, in_flight))

    def _on_handled(
        self, in_flight: InFlightRequest, future: "asyncio.Future[Message | None]"
    ) -> None:
        buffer, in_flight.buffer = in_flight.buffer, None
        request = in_flight.request
        assert request is not None
        assert buffer is not None
        error = None if future.cancelled() else future.exception()
        if self._is_closing:
            if error is not None:
                self._services.dispatcher.log_failure(request, error)
        elif future.cancelled():
            self.close("failed")
        elif error is not None:
            self._respond_with_error(in_flight, request, error)
        else:
            self._respond(in_flight, request, future.result())
        if self._delaying is in_flight:
            self._delaying = None
        # A buffer is reused only if nothing refers to the request's records any more.
        in_flight.request = request = None
        self._services.buffers.drop_user(buffer)
        self._schedule_write()

    def _start_token(self, in_flight: InFlightRequest, sasl: SaslSession, token: bytes) -> None:
        self._responses.add(in_flight)
        self._delaying = in_flight
        self._services.keep(self._loop.create_task(self._handle_token(in_flight, sasl, token)))

    async def _handle_token(
        self, in_flight: InFlightRequest, sasl: SaslSession, token: bytes
    ) -> None:
        """A SASL token without a header, as after SaslHandshake version 0."""
        try:
            response = await sasl.handle_bare_token(token)
        except CloseConnection as error:
            self.close(error.reason)
            return
        except Exception:
            logger.exception("SASL failed", extra={"client": self.host})
            self.close("failed")
            return
        if self._is_closing:
            return
        if response is not None:
            in_flight.pieces, in_flight.response_bytes = encode_token(response)
        self._responses.complete(in_flight)
        self._delaying = None
        self._after_sasl()
        self.resume()

    # Writing responses

    def _respond_with_error(
        self, in_flight: InFlightRequest, request: Request, error: BaseException
    ) -> None:
        response = self._services.dispatcher.error_response(request, error)
        if response is None:
            self.close(error.reason if isinstance(error, CloseConnection) else "failed")
        else:
            self._respond(in_flight, request, response)

    def _respond(
        self, in_flight: InFlightRequest, request: Request, response: Message | None
    ) -> None:
        """Queues a response; one that cannot be encoded closes the connection."""
        try:
            self._complete(in_flight, request, response)
            if request.api.key in SASL_KEYS:
                self._after_sasl()
        except Exception as error:
            self._services.dispatcher.log_failure(request, error)
            self.close("failed")

    def _complete(
        self, in_flight: InFlightRequest, request: Request, response: Message | None
    ) -> None:
        if response is not None and request.has_response:
            in_flight.encode(request, response)
        now = self._active_at = self._loop.time()
        seconds = now - in_flight.started_at
        used_ms = self._services.dispatcher.charge_quotas(
            request,
            received_bytes=in_flight.request_bytes,
            sent_bytes=in_flight.response_bytes,
            busy_seconds=in_flight.busy_seconds or seconds,
        )
        self._throttle(in_flight, request, response, used_ms)
        self._responses.complete(in_flight)
        self._services.metrics.count(
            request.api.key,
            request_bytes=in_flight.request_bytes,
            response_bytes=in_flight.response_bytes,
            seconds=seconds,
        )

    def _throttle(
        self,
        in_flight: InFlightRequest,
        request: Request,
        response: Message | None,
        quota_ms: int,
    ) -> None:
        """Throttles a client over its quotas, and reads nothing from it meanwhile."""
        throttle_ms: int = getattr(response, "throttle_time_ms", 0)
        if quota_ms > throttle_ms:
            if in_flight.response_bytes and hasattr(response, "throttle_time_ms"):
                in_flight.encode(request, replace(cast(Any, response), throttle_time_ms=quota_ms))
            throttle_ms = quota_ms
        if throttle_ms > 0:
            self._mute_count += 1
            self._services.timers.call_later(min(throttle_ms, _MUTE_MAX_MS), self._unmute)

    def _unmute(self) -> None:
        self._mute_count -= 1
        if not self._mute_count:
            self.resume()

    def _after_sasl(self) -> None:
        sasl = self._sasl
        if sasl is None:
            return
        if sasl.has_failed:
            self._has_failed_login = True
            delay_ms = self._services.settings.connection_failed_authentication_delay_ms
            self._loop.call_later(delay_ms / 1000, self._close_after_failed_login)
        elif sasl.is_done:
            self.context.principal = sasl.principal

    def _close_after_failed_login(self) -> None:
        self._has_failed_login = False
        self._write()
        self.close("authentication")

    def _schedule_write(self) -> None:
        """Responses that become ready together are written together."""
        if self._is_write_scheduled or self._is_closing:
            return
        if len(self._responses) == 1:
            self.resume()
            return
        self._is_write_scheduled = True
        self._loop.call_soon(self._run_scheduled_write)

    def _run_scheduled_write(self) -> None:
        self._is_write_scheduled = False
        self.resume()

    def _write(self) -> None:
        if self._has_failed_login:
            return
        self._responses.write()
        is_idle = not self._writer.queued_bytes and self._responses.has_only_long_polls
        if self._is_stopping and is_idle:
            self.close("stop")

    # Closing

    def _reject(self, reason: str, error: Exception) -> None:
        self._services.metrics.add(REJECTED_REQUESTS, 1, reason)
        logger.warning(
            "a request was rejected and its connection closed",
            extra={"client": self.host, "reason": reason, "error": str(error)},
        )
        self._write()
        self.close(reason)

    def close(self, reason: str) -> None:
        """Closes the connection once what was written has been sent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._closing_at = self._loop.time()
        self._services.metrics.add(CLOSED_CONNECTIONS, 1, reason)
        if self._transport is not None:
            # A transport that is closed within resume_writing calls connection_lost twice.
            self._loop.call_soon(self._transport.close)

    def abort(self, reason: str) -> None:
        """Closes the connection at once."""
        if not self._is_closing:
            self._services.metrics.add(CLOSED_CONNECTIONS, 1, reason)
        self._is_closing = True
        if self._transport is not None:
            # As in `close`.
            self._loop.call_soon(self._transport.abort)

    def stop(self) -> None:
        """Starts no more requests; closes when all but long polls are answered."""
        self._is_stopping = True
        if not self._is_closing:
            self._write()

    # Timeouts

    def find_violation(self, now: float, *, is_memory_short: bool) -> str | None:
        """The timeout that it has exceeded, as metrics label it; None where it has not."""
        settings, writer, sasl = self._services.settings, self._writer, self._sasl
        send_seconds = settings.response_send_timeout_ms / 1000
        receive_seconds = settings.request_receive_timeout_ms / 1000
        if self._is_closing:
            return "slow_reader" if now - self._closing_at > send_seconds else None
        if writer.is_stalled:
            return "slow_reader" if now - writer.last_progress(now) > send_seconds else None
        if self._frame_started_at:
            seconds = now - self._frame_started_at
            if seconds > receive_seconds:
                return "slow_request"
            # A connection that waits for memory itself is not slow.
            expected_bytes = (seconds - _SLOW_REQUEST_GRACE_SECONDS) * _SLOW_REQUEST_BYTES
            is_slow = self._reader.unparsed < expected_bytes and not self._reader.wanted_bytes
            return "slow_request" if is_memory_short and is_slow else None
        is_authenticated = sasl is None or sasl.is_done
        if not is_authenticated and now - self._opened_at > receive_seconds:
            return "slow_authentication"
        idle_ms = settings.connections_max_idle_ms
        is_busy = len(self._responses) > 0 or self._mute_count > 0
        if idle_ms >= 0 and not is_busy and now - self._active_at > idle_ms / 1000:
            return "idle"
        return None

    @property
    def stalled_bytes(self) -> int:
        """Response bytes that wait because the client does not read."""
        return self._writer.held_bytes if self._writer.is_stalled else 0

    @property
    def stalled_since(self) -> float:
        return self._writer.progress_at
