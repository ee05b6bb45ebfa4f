"""Shapes listed, shown, compacted and deleted over HTTP."""

from tests.support.fake_shapes import message
from tests.support.shape_http import ShapeHttp, with_server


@with_server()
async def test_a_shape_is_deleted_by_handle_or_definition_and_not_when_they_differ(
    http: ShapeHttp,
) -> None:
    shape, _ = await http.begin()
    other, _ = await http.begin(replica="full")
    delete = http.client.delete
    assert (await delete("/v1/shape")).status_code == 400
    assert (await delete("/v1/shape?handle=nobody")).status_code == 404
    wrong = await delete(f"/v1/shape?table=items&handle={other.handle}")
    assert wrong.status_code == 400
    gone = await delete(f"/v1/shape?handle={shape.handle}")
    assert (gone.status_code, gone.content) == (202, b"")
    assert (await delete("/v1/shape?table=items&replica=full")).status_code == 202
    assert (shape.is_dropped, other.is_dropped) == (True, True)
    assert (await delete("/v1/shape?table=items")).status_code == 404


@with_server(can_delete=False)
async def test_where_deleting_is_off_it_is_405(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    answer = await http.client.delete(f"/v1/shape?handle={shape.handle}")
    assert answer.status_code == 405
    assert not shape.is_dropped


@with_server()
async def test_shapes_are_listed_shown_and_compacted(http: ShapeHttp) -> None:
    shape, _ = await http.begin()
    http.engine.add(shape, message(b"1", 1))
    listed = (await http.client.get("/v1/shapes")).json()["shapes"]
    assert [one["handle"] for one in listed] == [shape.handle]
    assert (await http.client.get("/v1/shapes?table=none")).json() == {"shapes": []}
    shown = (await http.client.get(f"/v1/shapes/{shape.handle}")).json()
    assert (shown["latest"], shown["snapshot"]) == ("1_0", "complete")
    done = await http.client.post(f"/v1/shapes/{shape.handle}/compact")
    assert done.json()["balance"]["entries_in"] == 1
    assert (await http.client.get("/v1/shapes/none")).status_code == 404
