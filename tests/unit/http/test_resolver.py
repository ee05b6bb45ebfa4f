"""From a request to its shape: what is kept of it, and what is not."""

import asyncio
import gc
import threading

import pytest

from tests.support.fake_shapes import FakeShape
from tests.support.shape_http import ShapeHttp, run_with_server, until, with_server
from varve.http.exchange import HttpExchange
from varve.http.shapes import access
from varve.http.shapes.parameters import DefinitionTexts
from varve.shapes.definition import Definition


def test_definitions_are_kept_up_to_so_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "KEPT_CHARACTERS_MAX", 5000)

    async def scene(http: ShapeHttp) -> None:
        kept = http.api.resolver
        for number in range(200):
            assert (await http.get(offset="-1", where=f"n = {number}")).status_code == 200
        assert 50 < len(kept._cache) < 100
        long = {"where": "a = $1", "params[1]": "x" * 6000}
        assert (await http.get(offset="-1", **long)).status_code == 200
        assert (len(kept._cache), kept._cached_characters) == (0, 0)

    run_with_server(scene)


def test_a_request_that_waited_leaves_nothing_for_the_collector() -> None:
    def count() -> int:
        return sum(isinstance(one, HttpExchange) for one in gc.get_objects())

    async def scene(http: ShapeHttp) -> None:
        shape, _ = await http.begin()
        for more in ({}, {"live_sse": "true"}):
            answer = await http.get(offset="0_inf", handle=shape.handle, live="true", **more)
            assert answer.status_code == 200
        await until(lambda: count() == 0)

    gc.collect()
    gc.disable()
    try:
        run_with_server(scene, long_poll_ms=20, events_ms=20)
    finally:
        gc.enable()


def test_filters_that_take_long_to_parse_hold_up_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called, go = threading.Event(), threading.Event()
    define = DefinitionTexts.define

    def define_late(texts: DefinitionTexts) -> Definition:
        if texts.where is not None:
            called.set()
            go.wait(30)
        return define(texts)

    async def scene(http: ShapeHttp) -> None:
        shape, _ = await http.begin()
        late = [asyncio.ensure_future(http.get(offset="-1", where=f"id > {n}")) for n in range(3)]
        await until(called.is_set)
        assert (await http.get(offset="0_0", handle=shape.handle)).status_code == 200
        for path in ("/metrics", "/v1/shapes"):
            assert (await http.client.get(path)).status_code == 200
        go.set()
        assert [(await one).status_code for one in late] == [200] * 3

    monkeypatch.setattr(DefinitionTexts, "define", define_late)
    run_with_server(scene, read_threads=1, admin_threads=1)


@with_server(admin_threads=1, snapshot_wait_ms=50)
async def test_a_shape_that_is_not_made_in_time_is_503_and_one_begun_is_there_later(
    http: ShapeHttp,
) -> None:
    make, go, asked = http.engine.find_or_create, threading.Event(), []

    def make_late(definition: Definition) -> FakeShape:
        asked.append(definition)
        go.wait(10)
        return make(definition)

    http.engine.find_or_create = make_late  # type: ignore[method-assign]
    for where in ("id > 1", "id > 2"):
        refused = await http.get(offset="-1", where=where)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    go.set()
    await until(lambda: http.engine.made == 1)
    assert (await http.get(offset="-1", where="id > 1")).status_code == 200
    assert (len(asked), http.engine.made) == (1, 1)
