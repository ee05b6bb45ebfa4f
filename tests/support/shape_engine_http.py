"""The HTTP server on a loopback port in front of an engine that runs by itself, for tests."""

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support.shape_engine import Stage
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


@contextlib.asynccontextmanager
async def open_http(stage: Stage, **settings: int) -> AsyncIterator[HttpServer]:
    """A server for the running loop."""
    api = ShapeApi(
        stage.engine,
        HttpSettings(**settings),
        Access(),
        can_delete=True,
        clock=SystemClock(),
        random=random.Random(7),
    )
    server = HttpServer(api, host="127.0.0.1", port=0)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
