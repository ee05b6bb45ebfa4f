"""Parameters of requests: what is taken, and what is refused with which words."""

from typing import Any

import pytest

from varve.http.exchange import HttpError
from varve.http.shapes.parameters import DefinitionTexts, ShapeRequest, SubsetQuery, parse_request
from varve.shapes.offset import ShapeOffset


def _parse(body: bytes | None = None, /, **query: str) -> ShapeRequest:
    return parse_request({"table": "items", "offset": "-1", **query}, body)


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"table": ""}, "table"),
        ({"offset": ""}, "offset"),
        ({"offset": "1"}, "offset"),
        ({"offset": "1_2_3"}, "offset"),
        ({"offset": "0_18446744073709551616", "handle": "abcd"}, "offset"),
        ({"offset": "5_0"}, "handle"),
        ({"offset": "5_0", "handle": "x" * 201}, "handle"),
        ({"live": "true"}, "live"),
        ({"offset": "now", "live": "true"}, "live"),
        ({"offset": "5_0", "handle": "abcd", "live_sse": "true"}, "live_sse"),
        ({"params[2]": "x"}, "params"),
        ({"params": "x"}, "params"),
        ({"params[1][2]": "x"}, "params"),
        ({"table": "", "shape": "mine", "where": "a = 1"}, "where"),
        ({"table": "", "shape": "mine", "columns": "id"}, "columns"),
        ({"table": "", "shape": "mine", "params[1]": "x"}, "params"),
        ({"table": "", "shape": "mine", "queryable_columns": "id"}, "queryable_columns"),
    ],
)
def test_a_wrong_parameter_is_named(query: dict[str, str], parameter: str) -> None:
    with pytest.raises(HttpError) as caught:
        _parse(**query)
    assert caught.value.status == 400
    assert list(caught.value.body["errors"]) == [parameter]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"subset__limit": "0"}, "limit"),
        ({"subset__limit": "x", "subset__order_by": "id"}, "limit"),
        ({"subset__limit": "3"}, "order_by"),
        ({"subset__offset": "-1", "subset__order_by": "id"}, "offset"),
        ({"subset__params": "{"}, "params"),
        ({"subset__params": "[1]"}, "params"),
        ({"subset__params": '{"2":"x"}'}, "params"),
        ({"subset__params": '{"1":null}'}, "params"),
        ({"subset__params": '{"1":[2]}'}, "params"),
    ],
)
def test_a_wrong_part_of_a_subset_is_named_below_subset(
    query: dict[str, str], parameter: str
) -> None:
    with pytest.raises(HttpError) as caught:
        _parse(**query)
    assert list(caught.value.body["errors"]["subset"]) == [parameter]


@pytest.mark.parametrize("body", [b"{", b"[1]", b"1", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        _parse(body)
    assert caught.value.status == 400


def test_what_denotes_a_shape_is_kept_apart_from_what_does_not() -> None:
    found = _parse(
        where="a = $1",
        columns="id,a",
        replica="full",
        log="changes_only",
        expired_handle="old",
        **{"params[1]": "x", "cache-buster": "1"},
    )
    assert found.texts == DefinitionTexts(
        "items", "a = $1", ((1, "x"),), "id,a", "full", "changes_only"
    )


def test_queryable_columns_are_the_columns_unless_others_are_named() -> None:
    both = _parse(queryable_columns="id,a", columns="id").texts
    alone = _parse(queryable_columns="id,a").texts
    assert (both and both.columns, alone and alone.columns) == ("id", "id,a")


def test_other_columns_than_the_queryable_ones_are_refused() -> None:
    with pytest.raises(HttpError) as caught:
        _parse(queryable_columns="id,a", columns="id,b")
    assert caught.value.body["errors"] == {"columns": ["b are not among queryable_columns"]}
    with pytest.raises(HttpError) as caught:
        _parse(queryable_columns="id,,a")
    assert list(caught.value.body["errors"]) == ["queryable_columns"]
    found = _parse(queryable_columns="id,a", subset__where="a = 1").subset
    assert found == SubsetQuery(where="a = 1", queryable=("id", "a"))


@pytest.mark.parametrize(("text", "is_live"), [("true", True), ("", True), ("false", False)])
def test_live_is_anything_but_false(text: str, is_live: bool) -> None:
    found = _parse(offset="5_0", handle="abcd", live=text)
    assert found.is_live is is_live
    assert found.offset == ShapeOffset(5, 0)


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_subset_may_stand_in_the_body(is_nested: bool) -> None:
    inner = '{"where":"a = $1","params":{"1":"x"},"order_by":"a","limit":2,"offset":0}'
    body = f'{{"subset":{inner}}}' if is_nested else inner
    assert _parse(body.encode()).subset == SubsetQuery("a = $1", {1: "x"}, "a", 2, 0)


def test_numbers_as_values_of_a_subset_are_their_texts() -> None:
    sent = '{"1":2,"2":-1.5,"3":12345678901234567890,"4":true,"5":"x"}'
    texts = {1: "2", 2: "-1.5", 3: "12345678901234567890", 4: "true", 5: "x"}
    for found in (_parse(b'{"params":%s}' % sent.encode()), _parse(subset__params=sent)):
        assert found.subset == SubsetQuery(params=texts)


def test_a_subset_needs_no_offset() -> None:
    wanted: dict[str, Any] = {"table": "items", "subset__where": "a = 1"}
    found = parse_request(wanted)
    assert found.is_initial
    assert found.subset == SubsetQuery(where="a = 1")
