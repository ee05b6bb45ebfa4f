"""An endpoint as an ASGI application: what holds for every request.

Invariant  every request gets one answer or a broken connection, and is counted once. An error that
           nobody expected is logged and told without its inside.
Threads    the loop's alone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.types import Receive, Scope, Send

from varve.foundation.errors import StoreError
from varve.http import headers
from varve.http.answer import Answer, Refusal, refusal_of, unavailable
from varve.http.exchange import Exchange, Gone
from varve.http.services import Services

logger = logging.getLogger(__name__)

Handler = Callable[[Exchange], Awaitable[Answer]]
_LEFT: Final = 0
"""The status that is counted when nobody waited for an answer."""
_METHODS: Final = frozenset({"GET", "POST", "HEAD", "DELETE", "OPTIONS"})
_CACHEABLE: Final = frozenset({"GET", "OPTIONS"})


class Door:
    """The handlers of one path by method; OPTIONS and 405 are the same everywhere."""

    def __init__(self, name: str, services: Services, handlers: Mapping[str, Handler]) -> None:
        self._name = name
        self._services = services
        self._handlers = dict(handlers)
        if "GET" in self._handlers:
            self._handlers["HEAD"] = self._handlers["GET"]
        names = ", ".join(sorted({*self._handlers, "OPTIONS"}))
        self._allow = (b"allow", names.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        exchange = Exchange(scope, receive, send)
        status, size = _LEFT, 0
        try:
            answer = await self._answer(exchange)
            _complete(answer, exchange)
            size = await exchange.answer(answer, self._services.settings.idle_ms)
            status = answer.status
        except Gone as gone:
            if gone.__cause__ is not None:
                extra = {"path": scope["path"], "error": repr(gone.__cause__)}
                logger.warning("answer broken off", extra=extra)
        finally:
            exchange.close()
            seconds = loop.time() - began
            method = exchange.method if exchange.method in _METHODS else "other"
            self._services.metrics.note(self._name, method, status, size, seconds)

    async def _answer(self, exchange: Exchange) -> Answer:
        try:
            return await self._answer_or_refuse(exchange)
        except Gone:
            raise
        except asyncio.CancelledError:
            # By the server alone, which stops and waits no longer.
            return unavailable("the server stops: come again later").answer()
        except Exception as error:
            logger.error("request failed", exc_info=error, extra={"path": self._name})
            return Refusal(500, {"error": "Internal error"}).answer()

    async def _answer_or_refuse(self, exchange: Exchange) -> Answer:
        try:
            return await self._handle(exchange)
        except Refusal as refusal:
            return refusal.answer()
        except StoreError as error:
            told = refusal_of(error)
            if told.status == 500:
                logger.error("request failed", exc_info=error, extra={"path": self._name})
            return told.answer()

    async def _handle(self, exchange: Exchange) -> Answer:
        if exchange.method == "OPTIONS":
            asked = exchange.header(b"access-control-request-headers")
            return Answer(204, headers.preflight(asked))
        handler = self._handlers.get(exchange.method)
        if handler is None:
            told = {"message": f"{exchange.method:.20} is not for this path"}
            raise Refusal(405, told, (*headers.NO_STORE, self._allow))
        return await handler(exchange)


def _complete(answer: Answer, exchange: Exchange) -> None:
    """Adds what browsers want, and keeps caches from what is not for them."""
    if answer.status >= 400 and exchange.handle is not None:
        names = [name for name, _ in answer.headers]
        if headers.HANDLE not in names:
            answer.headers.append((headers.HANDLE, exchange.handle.encode()))
    if exchange.method not in _CACHEABLE:
        answer.headers = [one for one in answer.headers if one[0] != headers.CACHE]
        answer.headers.append(headers.NO_CACHE)
    answer.headers += headers.varying(exchange.headers)
    answer.headers += headers.cross_origin(exchange.header(b"origin"))
