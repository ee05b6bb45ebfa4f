"""What denotes the same shape, and what is refused."""

import pytest

from varve.foundation.errors import Corrupt
from varve.shapes.definition import InvalidDefinition, define, parse_definition, parse_table


@pytest.mark.parametrize(
    ("table", "topic"),
    [
        ("items", "items"),
        ("public.items", "items"),
        ('"public"."items"', "items"),
        ('public."Items"', "Items"),
        ("server.public.items", "server.public.items"),
        ('"server.public.items"', "server.public.items"),
    ],
)
def test_a_table_is_a_topic_perhaps_behind_the_one_schema(table: str, topic: str) -> None:
    assert parse_table(table) == topic


@pytest.mark.parametrize("table", ["", '"', 'a"b', 'public.""', "x" * 250])
def test_a_table_without_a_name_is_refused(table: str) -> None:
    with pytest.raises(InvalidDefinition) as raised:
        define(table)
    assert raised.value.parameter == "table"


def test_parameters_are_part_of_the_filter() -> None:
    item = define("t", where="a = $1", params={1: "x"})
    assert item == define("t", where="(a) = 'x'")
    assert hash(item) == hash(define("t", where="a='x'"))
    assert item != define("t", where="a = $1", params={1: "y"})


def test_naming_columns_is_another_shape_than_all_columns_but_their_order_is_not() -> None:
    assert define("t", columns="a,b") == define("t", columns="b, a")
    assert define("t", columns="a,b") != define("t")


def test_replica_and_log_are_part_of_the_identity() -> None:
    assert len({define("t"), define("t", replica="full"), define("t", log="changes_only")}) == 3


@pytest.mark.parametrize(
    ("parameter", "options"),
    [
        ("where", {"where": "a ="}),
        ("where", {"where": "a IN (SELECT b FROM c)"}),
        ("where", {"where": "a = $1", "params": {1: "'" * 40_000}}),
        ("where", {"where": " OR ".join(["a BETWEEN 1 AND 2"] * 1600)}),
        ("params", {"params": {1: "x"}}),
        ("columns", {"columns": "a,,b"}),
        ("replica", {"replica": "half"}),
        ("log", {"log": "none"}),
    ],
)
def test_what_is_wrong_is_named_by_its_parameter(parameter: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidDefinition) as raised:
        define("t", **options)  # type: ignore[arg-type] # values of several types
    assert raised.value.parameter == parameter


def test_a_definition_comes_back_from_its_text() -> None:
    created = define("T.x", where="a > 3 AND b = 'it''s'", columns='"A",b', replica="full")
    assert parse_definition(created.comparable) == created
    assert parse_definition(created.comparable).comparable == created.comparable


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"topic": "t"}'])
def test_a_text_that_is_no_definition_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        parse_definition(text)
