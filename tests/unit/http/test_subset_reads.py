"""Subsets: the rows of a shape that a query asks for."""

import asyncio

from tests.support.fake_shapes import message
from tests.support.shape_door import Stage, play, until
from varve.foundation.errors import InvalidRequest


def test_a_subset_has_the_rows_and_what_they_contain() -> None:
    async def scene(stage: Stage) -> None:
        shape, _ = await stage.begin()
        stage.engine.add(shape, message(b"1", 1))
        stage.engine.rows = [message(b"1", 1)]
        url = "/v1/shape?table=items&offset=0_0"
        for answer in (
            await stage.client.get(f"{url}&subset__where=id = 1"),
            await stage.client.post(f"{url}&handle={shape.handle}", json={"where": "id = 1"}),
        ):
            assert answer.status_code == 200
            assert answer.headers["electric-snapshot"] == "true"
            assert answer.headers["electric-offset"] == "1_0"
            assert answer.headers["cache-control"] == "no-cache"
            found = answer.json()
            assert [one["key"] for one in found["data"]] == ["1"]
            assert {found["metadata"][name] for name in ("xmin", "xmax", "database_lsn")} == {"2"}
        stage.engine.refuses = InvalidRequest("no such column")
        refused = await stage.client.get(f"{url}&subset__where=x = 1")
        assert refused.json()["errors"] == {"subset": {"where": ["no such column"]}}
        assert refused.headers["electric-handle"] == "0001-handle"
        refused = await stage.client.get(f"{url}&subset__order_by=lower(id)")
        assert refused.json()["errors"]["subset"].keys() == {"order_by"}
        large = await stage.client.post(url, content=b" " * 300_000)
        assert large.status_code == 413

    play(scene)


def test_after_a_restart_a_subset_waits_until_all_told_before_is_read_again() -> None:
    async def scene(stage: Stage) -> None:
        shape, _ = await stage.begin()
        stage.engine.is_replayed = False
        url = f"/v1/shape?table=items&handle={shape.handle}"
        refused = await stage.client.post(url, json={})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        asked = asyncio.ensure_future(stage.client.post(url, json={}))
        await until(lambda: stage.services.waiters.count == 1)
        stage.engine.is_replayed = True
        assert (await asked).status_code == 200

    play(scene, long_poll_ms=400)


def test_a_subset_waits_for_a_shape_that_is_just_made() -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.begins_at_once = False
        asked = asyncio.ensure_future(stage.client.post("/v1/shape?table=items", json={}))
        await until(lambda: stage.services.waiters.count == 1)
        shape = stage.engine.by_handle["0001-handle"]
        shape.is_snapshot_started = True
        stage.engine.tell([shape.handle])
        assert (await asked).status_code == 200

    play(scene)
