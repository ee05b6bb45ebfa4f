"""Who may ask for what: tokens, and lists of shapes."""

import json
from pathlib import Path

import pytest

from tests.support.shape_http import ShapeHttp, with_server
from varve.foundation.errors import InvalidSetting
from varve.http.shapes.access import Access, read_shapes
from varve.shapes.definition import define


@with_server(Access(token="t0k", admin_token="adm"))
async def test_a_token_is_asked_for_on_every_method_but_options(http: ShapeHttp) -> None:
    url = "/v1/shape?table=items&offset=-1"
    for method in ("GET", "HEAD", "POST", "DELETE"):
        answer = await http.client.request(method, url)
        assert answer.status_code == 401, method
    assert (await http.client.options(url)).status_code == 204
    wrong = await http.client.get(url, headers={"authorization": "Bearer nope"})
    assert wrong.status_code == 401
    assert "message" in wrong.json()
    right = {"authorization": "Bearer t0k"}
    assert (await http.client.get(url, headers=right)).status_code == 200
    for name in ("secret", "api_secret"):
        assert (await http.client.get(f"{url}&{name}=t0k")).status_code == 200
    assert (await http.client.get(f"{url}&secret=adm")).status_code == 200
    assert (await http.client.get("/v1/shapes", headers=right)).status_code == 401
    admin = {"authorization": "bearer adm"}
    assert (await http.client.get("/v1/shapes", headers=admin)).status_code == 200
    assert (await http.client.delete(url, headers=right)).status_code == 401
    assert (await http.client.delete(url, headers=admin)).status_code == 202
    assert (await http.client.get("/v1/health")).status_code == 200


@with_server(Access(token="t0k"))
async def test_without_an_admin_token_the_token_is_needed_to_administer(http: ShapeHttp) -> None:
    requests = [
        ("GET", "/v1/shapes"),
        ("GET", "/v1/shapes/none"),
        ("POST", "/v1/shapes/none/compact"),
        ("DELETE", "/v1/shape?handle=none"),
    ]
    for method, url in requests:
        assert (await http.client.request(method, url)).status_code == 401, url
    token = {"authorization": "Bearer t0k"}
    assert (await http.client.get("/v1/shapes", headers=token)).status_code == 200


@with_server(access=Access(token="t0k"))
async def test_what_a_token_opened_is_not_for_who_comes_without_it(http: ShapeHttp) -> None:
    """A shared cache keeps apart what the header of the token differs for."""
    asked = "/v1/shape?table=t&offset=-1"
    token = {"authorization": "Bearer t0k"}
    answer = await http.client.get(asked, headers=token)
    assert answer.status_code == 200
    assert answer.headers["vary"] == "authorization"
    answer = await http.client.get(asked, headers={**token, "origin": "http://a"})
    assert answer.headers["vary"] == "origin, authorization"
    answer = await http.client.get(f"{asked}&secret=t0k")
    assert answer.status_code == 200
    assert "vary" not in answer.headers


@with_server(Access(shapes={"mine": define("items", replica="full")}))
async def test_with_an_allow_list_nothing_else_is_served(http: ShapeHttp) -> None:
    named = await http.client.get("/v1/shape?shape=mine&offset=-1")
    by_texts = await http.get(offset="-1", replica="full")
    assert named.headers["electric-handle"] == by_texts.headers["electric-handle"]
    assert (await http.get(offset="-1")).status_code == 403
    assert (await http.get(offset="-1", shape="mine")).status_code == 400
    unknown = await http.client.get("/v1/shape?shape=other&offset=-1")
    assert unknown.json()["errors"].keys() == {"shape"}
    assert http.engine.made == 1


@with_server(Access(shapes={"mine": define("items", columns="id,a")}))
async def test_with_an_allow_list_a_subset_tells_nothing_of_other_columns(http: ShapeHttp) -> None:
    url = "/v1/shape?shape=mine&subset__where="
    assert (await http.client.get(f"{url}a = 1")).status_code == 200
    refused = await http.client.get(f"{url}salary > 1000")
    assert refused.status_code == 400
    assert "salary" in refused.text
    narrower = await http.client.get(f"{url}a = 1&queryable_columns=id,salary")
    assert narrower.status_code == 400


@pytest.mark.parametrize("name", ["shapes.json", "shapes.toml"])
def test_an_allow_list_is_read_from_json_or_toml(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("json"):
        told = {"shapes": {"a": {"table": "items", "columns": ["id", "b"], "replica": "full"}}}
        path.write_text(json.dumps(told))
    else:
        path.write_text('[shapes.a]\ntable = "items"\ncolumns = ["id", "b"]\nreplica = "full"\n')
    assert read_shapes(path) == {"a": define("items", columns="id,b", replica="full")}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"shapes":{"a":{}}}',
        '{"shapes":{"a":{"table":"t","x":1}}}',
        '{"shapes":{"a":{"table":"t","where":1}}}',
        '{"shapes":{"a":{"table":"t","where":"a = $1","params":{"1":"x"}}}}',
        '{"shapes":{"a":{"table":"t","columns":1}}}',
        '{"shapes":{"a":{"table":"t","replica":"half"}}}',
    ],
)
def test_a_list_that_cannot_be_used_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "shapes.json"
    path.write_text(text)
    with pytest.raises(InvalidSetting, match=r"shapes\.json"):
        read_shapes(path)
