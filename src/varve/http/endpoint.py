"""Endpoints as ASGI applications, and the threads that do their blocking work.

Invariant  every request gets one response or a broken connection, and is counted once. An
           unexpected error is logged, and sent without details. A worker pool is the only way from
           the event loop to blocking code. A call that is cancelled before it has a thread is not
           made.
Threads    the event loop only; functions run in the threads of a pool.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from starlette.types import Receive, Scope, Send

from varve.foundation.errors import Closed, Unavailable
from varve.http.exchange import (
    CACHE,
    NO_CACHE,
    NO_STORE,
    ClientDisconnected,
    Header,
    HttpError,
    HttpExchange,
    Response,
    to_http_error,
    unavailable,
)
from varve.http.metrics import HttpMetrics
from varve.http.origins import OriginRules, preflight
from varve.http.settings import HttpSettings

logger = logging.getLogger(__name__)

Handler = Callable[[HttpExchange], Awaitable[Response]]
P = ParamSpec("P")
T = TypeVar("T")

_QUEUED_PER_THREAD: Final = 2500
"""Calls that may wait for each thread of a pool; more raise Unavailable."""
_DISCONNECTED: Final = 0
"""The status that is counted when the client did not wait for the response."""
_METHODS: Final = frozenset({"GET", "POST", "HEAD", "DELETE", "OPTIONS"})
_CACHEABLE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class HttpApi(ABC):
    """An ASGI application for `HttpServer`."""

    settings: HttpSettings
    metrics: HttpMetrics
    origins: OriginRules
    exposed_headers: bytes
    """Names of the response headers that pages of other origins may read."""
    unavailable_headers: tuple[Header, ...] = ()
    """Further headers of a response with status 503."""

    @abstractmethod
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    @abstractmethod
    def begin_stop(self) -> None:
        """Called when the server stops: answer waiting requests."""

    @abstractmethod
    def close(self) -> None:
        """Called after the last request has ended."""


class HttpEndpoint:
    """The handlers of one path by method; OPTIONS and 405 are the same everywhere."""

    def __init__(self, name: str, api: HttpApi, handlers: Mapping[str, Handler]) -> None:
        self._name = name
        self._api = api
        self._handlers = dict(handlers)
        if "GET" in self._handlers:
            self._handlers["HEAD"] = self._handlers["GET"]
        names = ", ".join(sorted({*self._handlers, "OPTIONS"}))
        self._allow = (b"allow", names.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        exchange = HttpExchange(scope, receive, send)
        status, size = _DISCONNECTED, 0
        try:
            response = await self._respond(exchange)
            self._complete(response, exchange)
            size = await exchange.send(response, self._api.settings.idle_ms)
            status = response.status
        except ClientDisconnected as disconnect:
            if disconnect.__cause__ is not None:
                extra = {"path": scope["path"], "error": repr(disconnect.__cause__)}
                logger.warning("response broken off", extra=extra)
        finally:
            exchange.close()
            seconds = loop.time() - began
            method = exchange.method if exchange.method in _METHODS else "other"
            self._api.metrics.add_request(self._name, method, status, size, seconds)

    async def _respond(self, exchange: HttpExchange) -> Response:
        try:
            return await self._handle(exchange)
        except ClientDisconnected:
            raise
        except HttpError as error:
            return error.response()
        except asyncio.CancelledError:
            # Only the server cancels requests, when its shutdown timeout is over.
            return unavailable("the server stops: try again later").response()
        except Exception as error:
            http_error = to_http_error(error)
            if http_error.status == 500:
                logger.error("request failed", exc_info=error, extra={"path": self._name})
            return http_error.response()

    async def _handle(self, exchange: HttpExchange) -> Response:
        self._api.origins.check(exchange)
        if exchange.method == "OPTIONS":
            requested = exchange.header(b"access-control-request-headers")
            return Response(204, preflight(requested))
        handler = self._handlers.get(exchange.method)
        if handler is None:
            body = {"message": f"{exchange.method:.20} is not supported for this path"}
            raise HttpError(405, body, (*NO_STORE, self._allow))
        return await handler(exchange)

    def _complete(self, response: Response, exchange: HttpExchange) -> None:
        """Adds headers for browsers, and for caches that must not store the response."""
        fields = response.headers
        if response.status >= 400:
            names = {name for name, _ in fields}
            fields += [header for header in exchange.error_headers if header[0] not in names]
        if response.status == 503:
            fields += self._api.unavailable_headers
        if exchange.method not in _CACHEABLE:
            fields = [header for header in fields if header[0] != CACHE]
            fields.append(NO_CACHE)
        origins = self._api.origins
        fields += origins.varying(exchange.headers)
        fields += origins.headers(exchange.header(b"origin"), self._api.exposed_headers)
        response.headers = fields


class WorkerPool:
    """Runs blocking functions; raises Unavailable when too many wait."""

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._limit = threads * _QUEUED_PER_THREAD
        self._pending = 0
        self._is_closed = False

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The function's result; raises Unavailable when the queue is full, Closed at the end."""
        if self._is_closed:
            raise Closed("the server stops: try again later")
        if self._pending >= self._limit:
            raise Unavailable(
                f"{self._pending} {self._name} calls wait for threads, the limit: try again later"
            )
        self._pending += 1
        try:
            future = self._executor.submit(function, *arguments, **named)
            return await asyncio.wrap_future(future)
        finally:
            self._pending -= 1

    def close(self) -> None:
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
