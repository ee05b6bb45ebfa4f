"""Endpoints as ASGI applications: what is the same for every request.

Invariant  every request gets one response or a broken connection, and is counted once. An
           unexpected error is logged, and sent without details.
Threads    the event loop only.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.types import Receive, Scope, Send

from varve.foundation.errors import StoreError
from varve.http import headers
from varve.http.exchange import (
    ClientDisconnected,
    HttpError,
    HttpExchange,
    Response,
    to_http_error,
    unavailable,
)
from varve.http.metrics import HttpMetrics
from varve.http.settings import HttpSettings

logger = logging.getLogger(__name__)

Handler = Callable[[HttpExchange], Awaitable[Response]]
_DISCONNECTED: Final = 0
"""The status that is counted when the client did not wait for the response."""
_METHODS: Final = frozenset({"GET", "POST", "HEAD", "DELETE", "OPTIONS"})
_CACHEABLE: Final = frozenset({"GET", "OPTIONS"})


class HttpApi(ABC):
    """An ASGI application for `HttpServer`."""

    settings: HttpSettings
    metrics: HttpMetrics

    @abstractmethod
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    @abstractmethod
    def begin_stop(self) -> None:
        """The server stops: waiting requests are to be answered."""

    @abstractmethod
    def close(self) -> None:
        """No request is in progress any more."""


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
            _complete(response, exchange)
            size = await exchange.send(response, self._api.settings.idle_ms)
            status = response.status
        except ClientDisconnected as gone:
            if gone.__cause__ is not None:
                extra = {"path": scope["path"], "error": repr(gone.__cause__)}
                logger.warning("response broken off", extra=extra)
        finally:
            exchange.close()
            seconds = loop.time() - began
            method = exchange.method if exchange.method in _METHODS else "other"
            self._api.metrics.add_request(self._name, method, status, size, seconds)

    async def _respond(self, exchange: HttpExchange) -> Response:
        try:
            return await self._respond_or_fail(exchange)
        except ClientDisconnected:
            raise
        except asyncio.CancelledError:
            # Only by the server, which stops and waits no longer.
            return unavailable("the server stops: try again later").response()
        except Exception as error:
            logger.error("request failed", exc_info=error, extra={"path": self._name})
            return HttpError(500, {"error": "Internal error"}).response()

    async def _respond_or_fail(self, exchange: HttpExchange) -> Response:
        try:
            return await self._handle(exchange)
        except HttpError as error:
            return error.response()
        except StoreError as error:
            http_error = to_http_error(error)
            if http_error.status == 500:
                logger.error("request failed", exc_info=error, extra={"path": self._name})
            return http_error.response()

    async def _handle(self, exchange: HttpExchange) -> Response:
        if exchange.method == "OPTIONS":
            asked = exchange.header(b"access-control-request-headers")
            return Response(204, headers.preflight(asked))
        handler = self._handlers.get(exchange.method)
        if handler is None:
            body = {"message": f"{exchange.method:.20} is not for this path"}
            raise HttpError(405, body, (*headers.NO_STORE, self._allow))
        return await handler(exchange)


def _complete(response: Response, exchange: HttpExchange) -> None:
    """Adds headers for browsers, and keeps caches from storing what is not for them."""
    if response.status >= 400 and exchange.handle is not None:
        names = [name for name, _ in response.headers]
        if headers.HANDLE not in names:
            response.headers.append((headers.HANDLE, exchange.handle.encode()))
    if exchange.method not in _CACHEABLE:
        response.headers = [header for header in response.headers if header[0] != headers.CACHE]
        response.headers.append(headers.NO_CACHE)
    response.headers += headers.varying(exchange.headers)
    response.headers += headers.cross_origin(exchange.header(b"origin"))
