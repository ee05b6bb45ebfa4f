"""What requests under way get when the server stops."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import NoReturn

import httpx
import pytest

from tests.support.shape_http import ShapeHttp, run_with_server, until
from varve.foundation.errors import Closed, Unavailable

PATIENCE_SECONDS = 20.0


def test_a_compaction_is_ended_and_503(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(http: ShapeHttp) -> None:
        called = threading.Event()

        def compact(shape: object) -> NoReturn:
            called.set()
            assert http.engine.compactions_end.wait(PATIENCE_SECONDS)
            raise Closed("shapes are compacted no more")

        shape, _ = await http.begin()
        http.engine.compact = compact  # type: ignore[method-assign]
        asked = f"/v1/shapes/{shape.handle}/compact"
        compacting = asyncio.ensure_future(http.client.post(asked))
        await until(called.is_set)
        await http.server.stop()
        answer = await compacting
        assert (answer.status_code, answer.json()) == (
            503,
            {"message": "shapes are compacted no more"},
        )
        assert answer.headers["retry-after"]

    run_with_server(scene)
    assert not caplog.records


def test_a_call_that_does_not_end_in_time_is_503(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(http: ShapeHttp) -> None:
        called, leave = threading.Event(), threading.Event()

        def block(definition: object) -> NoReturn:
            called.set()
            leave.wait(PATIENCE_SECONDS)
            raise Unavailable("at last")

        http.engine.find_or_create = block  # type: ignore[method-assign]
        asking = asyncio.ensure_future(http.get(offset="-1"))
        await until(called.is_set)
        await http.server.stop()
        answer = await asking
        leave.set()
        assert (answer.status_code, answer.json()["message"]) == (
            503,
            "the server stops: try again later",
        )

    run_with_server(scene, shutdown_ms=1000)
    assert all(record.exc_info is None for record in caplog.records)


def test_an_answer_that_is_not_sent_in_time_is_broken_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[object] = []

    async def scene(http: ShapeHttp) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        called, leave = threading.Event(), threading.Event()

        def halt(start: object, end: object) -> Iterator[bytes]:
            yield b'"%s"' % (b"x" * 300_000)
            called.set()
            leave.wait(PATIENCE_SECONDS)

        shape, _ = await http.begin()
        shape.read = halt  # type: ignore[method-assign]
        asking = asyncio.ensure_future(http.get(offset="0_0", handle=shape.handle))
        await until(called.is_set)
        await http.server.stop()
        leave.set()
        with pytest.raises(httpx.RemoteProtocolError):
            await asking
        pending = asyncio.all_tasks() - {asyncio.current_task()}
        await until(lambda: all(task.done() for task in pending))

    run_with_server(scene, shutdown_ms=1000)
    gc.collect()
    assert told == []
    assert "response broken off" in caplog.messages
    assert all(record.exc_info is None for record in caplog.records)
