"""Subsets: the rows of a shape that a query asks for."""

import asyncio
import functools
import socket
import threading
from collections.abc import Callable

import httpx

from tests.support.fake_shapes import FakeShape, message
from tests.support.shape_http import ShapeHttp, until, with_server
from varve.foundation.errors import InvalidRequest, Unavailable
from varve.shapes.filter.subset import Subset
from varve.shapes.topic import SubsetResult


@with_server()
async def test_a_subset_has_the_rows_and_what_they_contain(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"1", 1))
    http.engine.rows = [message(b"1", 1)]
    url = "/v1/shape?table=items&offset=0_0"
    for answer in (
        await http.client.get(f"{url}&subset__where=id = 1"),
        await http.client.post(f"{url}&handle={shape.handle}", json={"where": "id = 1"}),
    ):
        assert answer.status_code == 200
        assert answer.headers["electric-snapshot"] == "true"
        assert answer.headers["electric-offset"] == "0_0"
        assert answer.headers["cache-control"] == "no-cache"
        found = answer.json()
        assert [one["key"] for one in found["data"]] == ["1"]
        assert {found["metadata"][name] for name in ("xmin", "xmax", "database_lsn")} == {"2"}
    http.engine.refuses = InvalidRequest("no such column")
    refused = await http.client.get(f"{url}&subset__where=x = 1")
    assert refused.json()["errors"] == {"subset": {"where": ["no such column"]}}
    assert refused.headers["electric-handle"] == "0001-handle"
    empty = await http.client.post(f"{url}&subset__where=x = 1", content=b"")
    assert empty.json()["errors"] == {"subset": {"where": ["no such column"]}}
    refused = await http.client.get(f"{url}&subset__order_by=lower(id)")
    assert refused.json()["errors"]["subset"].keys() == {"order_by"}
    for size, status in ((1, 400), (262_144, 400), (262_145, 413)):
        large = await http.client.post(url, content=b" " * size)
        assert large.status_code == status


@with_server()
async def test_a_client_keeps_its_place_and_another_gets_that_of_the_rows(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"1", 1), message(b"1", 2))
    for query, offset in (("", "2_0"), ("&offset=now", "2_0"), ("&offset=-1", "2_0")):
        answer = await http.client.post(f"/v1/shape?table=items{query}", json={})
        assert answer.headers["electric-offset"] == offset
    for offset in ("0_inf", "1_0", "2_0"):
        url = f"/v1/shape?table=items&handle={shape.handle}&offset={offset}"
        answer = await http.client.post(url, json={})
        assert answer.headers["electric-offset"] == offset


@with_server()
async def test_a_client_of_a_replaced_shape_gets_rows_and_its_next_read_409(
    http: ShapeHttp,
) -> None:
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"1", 1))
    http.engine.drop(shape)
    url = f"/v1/shape?table=items&handle={shape.handle}&offset=1_0"
    answer = await http.client.post(url, json={})
    assert answer.status_code == 200
    assert answer.headers["electric-handle"] == shape.handle
    assert (await http.client.get(url)).status_code == 409
    unknown = await http.client.post("/v1/shape?table=items&handle=x%0Ay&offset=1_0", json={})
    assert unknown.headers["electric-handle"] == "0002-handle"


@with_server()
async def test_a_shape_that_goes_during_a_subset_is_503_for_who_follows_it(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    for offset, status in (("1_0", 503), ("now", 409)):
        held = _HeldSubsets(http)
        url = f"/v1/shape?table=items&handle={shape.handle}&offset={offset}"
        asked = asyncio.ensure_future(http.client.post(url, json={}))
        await until(functools.partial(bool, held.limits))
        http.engine.drop(next(iter(http.engine.shapes())))
        held.go.set()
        assert (await asked).status_code == status


@with_server(long_poll_ms=400)
async def test_after_a_restart_a_subset_waits_until_all_told_before_is_read_again(
    http: ShapeHttp,
) -> None:
    shape, _ = await http.begin()
    http.engine.is_replayed = False
    url = f"/v1/shape?table=items&handle={shape.handle}"
    refused = await http.client.post(url, json={})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    asked = asyncio.ensure_future(http.client.post(url, json={}))
    await until(lambda: http.api.waiters.count == 1)
    http.engine.is_replayed = True
    assert (await asked).status_code == 200


@with_server()
async def test_a_subset_waits_for_a_shape_that_is_just_made(http: ShapeHttp) -> None:
    http.engine.begins_at_once = False
    asked = asyncio.ensure_future(http.client.post("/v1/shape?table=items", json={}))
    await until(lambda: http.api.waiters.count == 1)
    shape = http.engine.by_handle["0001-handle"]
    shape.is_snapshot_started = True
    http.engine.tell([shape.handle])
    assert (await asked).status_code == 200


class _HeldSubsets:
    """Subsets of an engine that take until they are let go, or nobody waits for them."""

    def __init__(self, http: ShapeHttp) -> None:
        self.limits: list[int | None] = []
        self.ends: list[str] = []
        self.go = threading.Event()
        self._answer = http.engine.subset
        http.engine.subset = self._run  # type: ignore[method-assign]

    def _run(
        self, shape: FakeShape, subset: Subset, is_cancelled: Callable[[], bool]
    ) -> SubsetResult:
        self.limits.append(subset.limit)
        while not self.go.wait(0.005):
            if is_cancelled():
                self.ends.append("left")
                raise Unavailable("left")
        self.ends.append("done")
        return self._answer(shape, subset, is_cancelled)


def _ask(http: ShapeHttp, handle: str, limit: int) -> "asyncio.Future[httpx.Response]":
    url = f"/v1/shape?table=items&handle={handle}"
    return asyncio.ensure_future(http.client.post(url, json={"order_by": "id", "limit": limit}))


@with_server(subset_threads=1)
async def test_a_subset_whose_client_left_while_it_waited_is_not_begun(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    held, counts = _HeldSubsets(http), http.api.limiter.counts
    first = _ask(http, shape.handle, 1)
    await until(lambda: held.limits == [1])
    waiting = [_ask(http, shape.handle, 2) for _ in range(3)]
    await until(lambda: counts["existing"] == 4)
    for one in waiting:
        one.cancel()
    await until(lambda: counts["existing"] == 1)
    held.go.set()
    assert (await first).status_code == 200
    assert (await _ask(http, shape.handle, 3)).status_code == 200
    assert held.limits == [1, 3]


@with_server()
async def test_a_subset_whose_client_left_at_once_is_not_begun(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    held = _HeldSubsets(http)
    held.go.set()
    url = f"/v1/shape?table=items&handle={shape.handle}&subset__where=id%3E0"
    # The server is in this very loop, and has no turn before the client is gone.
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", http.server.port)) as one:
            one.sendall(f"GET {url} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    assert (await _ask(http, shape.handle, 1)).status_code == 200
    await until(lambda: http.api.limiter.counts["existing"] == 0)
    assert held.limits == [1]


@with_server(subset_threads=1)
async def test_a_subset_under_way_ends_when_its_client_leaves(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    held = _HeldSubsets(http)
    first = _ask(http, shape.handle, 1)
    await until(lambda: held.limits == [1])
    second = _ask(http, shape.handle, 2)
    await until(lambda: http.api.limiter.counts["existing"] == 2)
    first.cancel()
    await until(lambda: held.limits == [1, 2])
    assert held.ends == ["left"]
    held.go.set()
    assert (await second).status_code == 200


@with_server(admin_threads=1, subset_threads=1, subsets_waiting_max=1)
async def test_subsets_hold_up_nothing_else_and_few_of_them_wait(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    held = _HeldSubsets(http)
    asked = [_ask(http, shape.handle, 1) for _ in range(3)]
    await until(lambda: len(held.limits) == 1 and any(one.done() for one in asked))
    refused = next(one for one in asked if one.done()).result()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    other, _ = await http.begin(where="id > 1")
    compacted = await http.client.post(f"/v1/shapes/{other.handle}/compact")
    assert compacted.status_code == 200
    deleted = await http.client.delete(f"/v1/shape?handle={other.handle}")
    assert deleted.status_code == 202
    held.go.set()
    assert sorted([(await one).status_code for one in asked]) == [200, 200, 503]


@with_server(subset_held_bytes=10_000_000)
async def test_subsets_that_nobody_takes_are_bounded_in_bytes(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    http.engine.rows = [b'"%s"' % (b"x" * 20_000_000)]
    body = b'{"order_by":"id","limit":1}'
    head = b"POST /v1/shape?table=items&handle=%s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", http.server.port, limit=1024)
    writer.write(head % (shape.handle.encode(), len(body)) + b"\r\n" + body)
    assert await reader.readexactly(12) == b"HTTP/1.1 200"
    refused = await _ask(http, shape.handle, 1)
    assert refused.status_code == 503
    assert "wait for their clients" in refused.json()["message"]
    writer.close()
    await until(lambda: http.api.limiter.counts["existing"] == 0)
    http.engine.rows = []
    assert (await _ask(http, shape.handle, 1)).status_code == 200
