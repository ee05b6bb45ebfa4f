"""The HTTP server on a loopback port in front of a fake engine, for tests."""

import asyncio
import contextlib
import functools
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import httpx

from tests.support.fake_shapes import FakeEngine, FakeShape
from varve.foundation.clock import ManualClock
from varve.http.server import HttpServer
from varve.http.settings import HttpSettings
from varve.http.shapes.access import Access
from varve.http.shapes.api import ShapeApi
from varve.shapes.engine import ShapeEngine

OPEN = Access()


class ShapeHttp:
    """A server, its fake engine, and a client."""

    def __init__(self, engine: FakeEngine, api: ShapeApi, server: HttpServer) -> None:
        self.engine = engine
        self.api = api
        self.server = server
        self.clock = api.clock
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{server.port}", timeout=10, trust_env=False, verify=False
        )

    async def get(self, **query: Any) -> httpx.Response:
        return await self.client.get("/v1/shape", params={"table": "items", **query})

    async def begin(self, **query: Any) -> tuple[FakeShape, httpx.Response]:
        """Makes the shape; the shape and the first answer."""
        answer = await self.get(offset="-1", **query)
        shape = self.engine.find(answer.headers["electric-handle"])
        assert shape is not None
        return shape, answer


@contextlib.asynccontextmanager
async def open_shape_http(
    access: Access = OPEN, *, can_delete: bool = True, **settings: Any
) -> AsyncIterator[ShapeHttp]:
    engine = FakeEngine()
    api = ShapeApi(
        cast(ShapeEngine, engine),
        HttpSettings(**settings),
        access,
        can_delete=can_delete,
        clock=ManualClock(),
        random=random.Random(7),
    )
    server = HttpServer(api, host="127.0.0.1", port=0)
    await server.start()
    http = ShapeHttp(engine, api, server)
    try:
        yield http
    finally:
        await http.client.aclose()
        await server.stop()


def run_with_server(
    scene: Callable[[ShapeHttp], Awaitable[None]], access: Access = OPEN, **settings: Any
) -> None:
    """Runs a scene with a server of its own."""
    with_server(access, **settings)(scene)()


def with_server(
    access: Access = OPEN, *, can_delete: bool = True, **settings: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Runs a test in a loop with a server of its own, which is the first argument of the test."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def serve(fixtures: dict[str, Any]) -> None:
            async with open_shape_http(access, can_delete=can_delete, **settings) as http:
                await test(http, **fixtures)

        return as_test(test, lambda fixtures: asyncio.run(serve(fixtures)))

    return decorate


def as_test(
    test: Callable[..., Awaitable[None]], run: Callable[[dict[str, Any]], None]
) -> Callable[..., None]:
    """What pytest calls in place of a test: it asks for all fixtures but the first argument."""

    @functools.wraps(test)
    def run_with_fixtures(**fixtures: Any) -> None:
        run(fixtures)

    signature = inspect.signature(test)
    others = list(signature.parameters.values())[1:]
    run_with_fixtures.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=others
    )
    return run_with_fixtures


async def until(is_met: Callable[[], bool]) -> None:
    """Lets the loop run until it is so, at most five seconds."""
    async with asyncio.timeout(5):
        while not is_met():
            await asyncio.sleep(0.005)
