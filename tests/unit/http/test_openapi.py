"""The OpenAPI document says what the server does."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from jsonschema import ValidationError, validate  # type: ignore[import-untyped]

from varve.http.exchange import HttpError
from varve.http.shapes.openapi import make_document
from varve.http.shapes.parameters import parse_request


class _ReadNames(Mapping[str, str]):
    """A query that remembers which parameters are looked up."""

    def __init__(self, query: dict[str, str]) -> None:
        self._query = query
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return self._query[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._query)

    def __len__(self) -> int:
        return len(self._query)


def _parameters(method: str) -> dict[str, Any]:
    operation = make_document()["paths"]["/v1/shape"][method]
    return {parameter["name"]: parameter for parameter in operation["parameters"]}


@pytest.mark.parametrize("method", ["get", "post"])
def test_every_parameter_that_is_read_is_in_the_document(method: str) -> None:
    query = _ReadNames({"table": "items", "offset": "-1", "columns": "id"})
    parse_request(query, None if method == "get" else b"{}")
    documented = set(_parameters(method))
    from_body = {name for name in query.names if name.startswith("subset__")}
    assert query.names - (from_body if method == "post" else set()) <= documented
    assert {"shape", "table", "params"} <= documented


def test_a_named_shape_needs_no_table() -> None:
    assert parse_request({"shape": "mine", "offset": "-1"}).shape_name == "mine"
    assert not any(parameter.get("required") for parameter in _parameters("get").values())


def test_params_of_any_number_are_valid() -> None:
    schema = _parameters("get")["params"]["schema"]
    validate({"1": "a", "2": "b", "3": "c", "10": "d"}, schema)
    request = parse_request(
        {"table": "items", "offset": "-1", "params[1]": "a", "params[2]": "b", "params[3]": "c"}
    )
    assert request.texts is not None
    assert request.texts.params == ((1, "a"), (2, "b"), (3, "c"))
    with pytest.raises(ValidationError):
        validate({"x": "a"}, schema)
    with pytest.raises(HttpError):
        parse_request({"table": "items", "offset": "-1", "params[x]": "a"})
