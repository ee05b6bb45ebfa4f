"""Clients of a topic that is deleted and made again come to its new rows by themselves.

Carries S1 and S5.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.memory_directory import memory_directory
from tests.support.shape_engine import Stage
from tests.support.shape_engine_http import EngineHttp, open_http, with_engine
from varve.foundation.clock import ManualClock
from varve.shapes import workers
from varve.shapes.topics import MISSING_MS


def _rows(*keys: str) -> dict[str, dict[str, Any]]:
    return {f'"public"."t"/"{key}"': {"key": key, "n": 1} for key in keys}


def _put(stage: Stage, *keys: str) -> None:
    for key in keys:
        stage.put("t", key, {"n": 1})


async def _until(is_met: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_met():
            await asyncio.sleep(0.01)


@with_engine()
async def test_clients_wait_for_a_deleted_topic_and_follow_the_new_one(
    http: EngineHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "DELETED_MS", 200)
    stage = http.stage
    _put(stage, "a", "b")
    async with AsyncExitStack() as stack:
        clients = [
            http.follower(is_sse=is_sse, **query)
            for query in ({}, {"where": "n = 1"})
            for is_sse in (False, True)
        ]
        for client in clients:
            await stack.enter_async_context(client)
            await client.wait_rows(_rows("a", "b"))
        handles = [client.handle for client in clients]
        await asyncio.to_thread(stage.store.delete_topic, "t")
        await _until(lambda: all(client.retry_count for client in clients))
        await asyncio.to_thread(stage.store.create_topic, "t")
        _put(stage, "c")
        for client, handle in zip(clients, handles, strict=True):
            await client.wait_rows(_rows("c"))
            assert client.refetch_count == 1
            assert client.handle != handle
        _put(stage, "d")
        for client in clients:
            await client.wait_rows(_rows("c", "d"))


@with_engine()
async def test_a_topic_made_again_at_once_sends_clients_to_new_handles(http: EngineHttp) -> None:
    stage = http.stage
    _put(stage, "a", "b")
    async with AsyncExitStack() as stack:
        clients = [http.follower(where=f"n >= {number}") for number in (0, 1) for _ in range(5)]
        for client in clients:
            await stack.enter_async_context(client)
            await client.wait_rows(_rows("a", "b"))
        void = set()
        for key in ("x", "y"):
            void |= {client.handle for client in clients}
            await asyncio.to_thread(stage.store.delete_topic, "t")
            await asyncio.to_thread(stage.store.create_topic, "t")
            _put(stage, key)
            for client in clients:
                await client.wait_rows(_rows(key))
                assert client.handle not in void
            assert len({client.handle for client in clients}) == 2


def test_a_topic_that_had_shapes_is_503_for_a_while_and_another_one_400() -> None:
    async def run(stage: Stage, clock: ManualClock) -> None:
        async with open_http(stage) as http:
            stage.engine.topics.handle_deleted(stage.engine.topics.get("t"))
            stage.store.delete_topic("t")
            gone = await http.get()
            assert gone.status_code == 503
            assert gone.headers["retry-after"]
            assert "topic t was deleted" in gone.json()["message"]
            unknown = await http.get(table="other")
            assert unknown.status_code == 400
            assert unknown.json()["errors"] == {"table": ["there is no topic 'other'"]}
            clock.advance(MISSING_MS)
            assert (await http.get()).json()["errors"] == {"table": ["there is no topic 't'"]}

    with memory_directory() as path:
        clock = ManualClock()
        stage = Stage(path, clock=clock)
        stage.store.create_topic("t")
        stage.create("t")
        asyncio.run(run(stage, clock))
        stage.close()
