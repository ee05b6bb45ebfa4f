"""The HTTP server on a loopback port in front of an engine that runs by itself, for tests."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from tests.support.memory_directory import memory_directory
from tests.support.shape_engine import Stage
from tests.support.shape_follower import Follower
from tests.support.shape_http import as_test
from varve.foundation.clock import SystemClock
from varve.http.server import HttpServer
from varve.http.settings import HttpSettings
from varve.http.shapes.access import Access
from varve.http.shapes.api import ShapeApi
from varve.shapes.settings import EngineSettings


def open_stage(path: Path, *, shapes_max: int = 100) -> Stage:
    """A store and an engine with its workers, which look often."""
    settings = EngineSettings(
        fetch_wait_ms=5, checkpoint_ms=20, maintenance_interval_ms=50, shapes_max=shapes_max
    )
    return Stage(path, settings=settings, clock=SystemClock(), maintain=True)


class EngineHttp:
    """The server of a stage, and a client of it."""

    def __init__(self, stage: Stage, port: int) -> None:
        self.stage = stage
        self.port = port
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False, verify=False
        )

    async def get(self, **query: str) -> httpx.Response:
        return await self.client.get("/v1/shape", params={"table": "t", "offset": "-1", **query})

    def follower(self, *, is_sse: bool = False, **query: str) -> Follower:
        return Follower("127.0.0.1", self.port, {"table": "t", **query}, is_sse=is_sse)


@contextlib.asynccontextmanager
async def open_http(stage: Stage) -> AsyncIterator[EngineHttp]:
    """A server for the running loop."""
    api = ShapeApi(
        stage.engine,
        HttpSettings(),
        Access(),
        can_delete=True,
        clock=SystemClock(),
        random=random.Random(7),
    )
    server = HttpServer(api, host="127.0.0.1", port=0)
    await server.start()
    http = EngineHttp(stage, server.port)
    try:
        yield http
    finally:
        await http.client.aclose()
        await server.stop()


def with_engine(
    *, shapes_max: int = 100
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Runs a test in a loop with the server of an engine of its own, which has a topic t."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def serve(stage: Stage, fixtures: dict[str, Any]) -> None:
            async with open_http(stage) as http:
                await test(http, **fixtures)

        def run(fixtures: dict[str, Any]) -> None:
            with (
                memory_directory() as path,
                contextlib.closing(open_stage(path, shapes_max=shapes_max)) as stage,
            ):
                stage.store.create_topic("t")
                asyncio.run(serve(stage, fixtures))

        return as_test(test, run)

    return decorate
