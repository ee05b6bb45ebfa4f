"""Filters: what they accept, what they refuse, how they read a row."""

import json
import logging
import re
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varve.foundation.errors import InvalidRequest
from varve.shapes.feed.row import Row, split_row
from varve.shapes.filter import where as where_module
from varve.shapes.filter.like import LikePattern, fold_case
from varve.shapes.filter.value import split_array
from varve.shapes.filter.where import Where


def _row(text: str) -> Row:
    row = split_row(text.encode())
    assert row is not None
    return row


ROW = _row(
    '{"id":5,"name":"Ann","done":true,"big":12345678901234567890,"price":12.50,"none":null,'
    '"data":{"tags":["x",{"k":7}],"n":null},"text":"{\\"q\\":1}","huge":1e999999999999}'
)


@pytest.mark.parametrize(
    "text",
    [
        "id = 5 and name = 'Ann'",
        "id = '5' and price = '12.5' and done = 't'",
        "5.0 = id",
        "big = 12345678901234567890 and big <> 12345678901234567891",
        "CAST(price AS text) = '12.50'",
        "none is null and missing is null",
        "name like 'A%' and name ilike 'aNN' and not name like 'a%'",
        "name like 'A!%%' escape '!' or name like '_nn'",
        "data -> 'tags' ->> 0 = 'x' and data->'tags'->1->'k' = 7 and data->'tags'->-1->>'k' = '7'",
        "text ->> 'q' = '1' and data -> 'n' is null and data ->> 'zz' is null",
        "data -> 'tags' = '[\"x\", {\"k\": 7.0}]'",
        "coalesce(none, missing, '3') > 2 and coalesce(name, '') = 'Ann'",
        "id / 2 = 2 and -id / 2 = -2 and -id % 3 = -2 and price / 5 = 2.5",
        "lower(name) || length(name) = 'ann3' and upper(name) = 'ANN'",
        "id in (1, 5) and id not in (2, 3) and id between 5 and 5",
        "id = any('{1,5}') and id = any(array[1, 5]) and id = some('{5}'::int[]) and none is null",
        "id <> all('{1,2}') and id != all(array['2']) and (none = any('{}')) is false",
        "name = any('{ \"Ann\" ,NULL}') and none <> all('{}') and name <> all(array[]::text[])",
        "id + 1 = any(array[id, 6]) and not id = any('{7}') and price = any('{x,12.5}')",
        "none is not distinct from missing and id is distinct from none",
        "id is distinct from name",
        "done and done is true and done is not false and not (none = 1) is true",
        "(id = 5) = true",
        "price::int = 13 and '7'::bigint = 7 and id::boolean and done::int = 1",
        "huge > 1e300",
        "huge > 1e100000 and -1e100000 < id and -1e-100000 < id and abs(-1e100000) > id",
        "abs(-id) = 5 or false",
    ],
)
def test_a_condition_that_holds(text: str) -> None:
    where = Where.parse(text)
    assert where.matches(ROW)
    assert Where.parse(where.sql) == where
    assert not Where.parse(f"NOT ({text})").matches(ROW)


@pytest.mark.parametrize(
    "text",
    [
        "name = 5",
        "id = 'Ann'",
        "none = none",
        "id > name",
        "id / 0 = 1",
        "name::int = 1",
        "data < 'x'",
        "huge::int = 1",
        "id like '5'",
        "name like 'Ann\\'",
        "lower(id) = '5'",
        "id in (1, null)",
        "id = any('{1,NULL}')",
        "id <> all('{1,null}')",
        "none = any('{1}')",
        "none <> all(array[1])",
        "id = any(null)",
        "id <> all(null)",
        "id = any('{5}'::text[])",
        "name = any('{1,2}'::int[])",
        "name",
        "data -> 'tags' -> 9 = 1",
    ],
)
def test_what_is_unknown_is_neither_true_nor_false(text: str) -> None:
    assert not Where.parse(text).matches(ROW)
    assert not Where.parse(f"NOT ({text})").matches(ROW)
    assert Where.parse(f"({text}) IS NULL").matches(ROW) or text == "name"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("a = (select 1)", "(SELECT 1)"),
        ("a in (select 1)", "sub-queries are not supported"),
        ("exists(select 1)", "EXISTS"),
        ("f(a) = 1", "F(a)"),
        ("now() > a", "CURRENT_TIMESTAMP"),
        ("t.a = 1", "t.a"),
        ("a = 1; drop table x", "drop"),
        ("a = 1 order by b", "order"),
        ("a < b < c", "parentheses"),
        ("a::date = 'x'", "DATE"),
        ("a::varchar(3) = 'x'", "VARCHAR(3)"),
        ("'abc'::int = a", "has no value"),
        ("1 / 0 = a", "has no value"),
        ("a ~ 'x'", "a ~ 'x'"),
        ("case when a then b end", "CASE"),
        ("a = E'x'", "is not supported"),
        ("a = $2", "params[2]"),
        ("a = $x", "$x"),
        ("a = $" + "9" * 5000, "is not a parameter"),
        ("a[1] = 1", "behind ARRAY"),
        ("a = ?", "?"),
        ("if = 1", "not a filter"),
        ("5", "not a condition"),
        ("lower(a)", "not a condition"),
        ("a and 5", "not a condition"),
        ("a = 'x", "quotes"),
        ("a = 1e9999999999999999999", "not a number"),
        ("a = 1e999999999", "not a number"),
        ("a = -1e-999999999", "not a number"),
        ("a =", "missing near '='"),
        ("a between symmetric 1 and 2", "SYMMETRIC"),
        ("length(a, b) = 1", "arguments"),
        ("(a, b) = (1, 2)", "(a, b)"),
        ("a like 'x' escape 'ab'", "one character"),
        ("a ->> b = 'x'", "arrow"),
        ("a = any($1)", "write {1,2}"),
        ("a = any('{{1},{2}}')", "one dimension"),
        ("a = any('[0:1]={1,2}')", "one dimension"),
        ("a = any(array[array[1], array[2]])", "into one ARRAY[...]"),
        ("a = any('{1}'::int[][])", "arrays have one dimension"),
        ("a = any('{x}'::int[])", "has no value"),
        ("a = any(cast('{x}' as array))", "write it as integer[]"),
        ("a = any(b)", "write ANY($1)"),
        ("a = any( 5)", "write {1,2}"),
        ("a = any(5)", "write ANY($1)"),
        ("a = any(1, 2)", "(1, 2)"),
        ("a = any(select 1)", "SELECT 1"),
        ("any('{1}') = a", "ANY('{1}')"),
        ("a < any('{1}')", "= ANY, <> ALL"),
        ("a <> any('{1}')", "= ANY, <> ALL"),
        ("a = all('{1}')", "= ANY, <> ALL"),
        ("a like any('{x}')", "ANY('{x}')"),
        ("a = any($2)", "params[2]"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, part: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Where.parse(text, {1: "x"})
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 500 + "a" + ")" * 500,
        "not " * 500 + "a",
        "- " * 500 + "1 = a",
        "lower(" * 200 + "a" + ")" * 200 + " = 'x'",
        "+".join(["a"] * 500) + " = 1",
        "a" + "::int" * 500 + " = 1",
        "case " * 500,
        "a = '" + "x" * (64 << 10) + "'",
        " or ".join(["a"] * 9000),
        "\x00 = 1",
        "a" + "[1]" * 3300 + " = 1",
        "a" + "::int[]" * 1000 + " = 1",
        "a = any(" + "array[" * 14 + "1" + "]" * 14 + ")",
        "struct(" * 15 + "a" + ")" * 15 + " = 1",
        "a" + ".a" * 400 + " = 1",
        "a" + " ^ 2" * 400 + " = 1",
        "~ " * 400 + "a",
    ],
)
def test_hostile_texts_are_refused(text: str, caplog: pytest.LogCaptureFixture) -> None:
    start = time.process_time()
    with caplog.at_level(logging.WARNING), pytest.raises(InvalidRequest):
        Where.parse(text)
    assert time.process_time() - start < 2
    assert not caplog.records


def test_the_deepest_filter_is_read_on_a_deep_stack_too() -> None:
    text = "a = 1"
    for _ in range(15):
        text = f"(b = 1 or ({text}) and c)" if len(text) < 8 else f"not ({text})"
    where = Where.parse(text)
    result: list[Where] = []

    def deeper(depth: int) -> None:
        result.append(Where.parse(where.sql)) if not depth else deeper(depth - 1)

    thread = threading.Thread(target=deeper, args=(sys.getrecursionlimit() // 3,))
    thread.start()
    thread.join()
    assert result == [where]


def test_parameters_are_literals() -> None:
    where = Where.parse("a in ($1,$2) and b=$1", {1: "it's", 2: "2"})
    assert where.sql == "\"a\" IN ('it''s', '2') AND \"b\" = 'it''s'"
    assert where == Where.parse("A in ('it''s', '2') AND (b = 'it''s')")
    assert where.columns == {"a", "b"}
    for gaps in ({2: "x"}, {0: "x"}, {1: "x", 3: "y"}):
        with pytest.raises(InvalidRequest):
            Where.parse("a = 1", gaps)


def test_concat_leaves_nulls_out_as_postgresql_does() -> None:
    row = {"a": b'"x"', "n": b"1.50", "b": b"true", "o": b'{"k":[1]}', "none": b"null"}
    where = Where.parse(
        "concat(a, none, n, b, false, o, $1) = $2", {1: "y", 2: 'x1.50tf{"k": [1]}y'}
    )
    assert where.matches(row)
    assert Where.parse(where.sql) == where
    assert Where.parse("CONCAT(none) = ''").matches(row)


def test_an_array_is_a_list() -> None:
    where = Where.parse("a = ANY($1)", {1: "{1,2,NULL}"})
    assert where.sql == "\"a\" IN ('1', '2', NULL)"
    assert where == Where.parse("a IN ('1', '2', NULL)")
    assert Where.parse("a <> ALL($1)", {1: "{1}"}) == Where.parse("a NOT IN ('1')")
    assert Where.parse("a = ANY($1::bigint[])", {1: "{1,2}"}) == Where.parse("a IN (1, 2)")


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("{}", []),
        (" { } ", []),
        ("{1,-2.5}", ["1", "-2.5"]),
        ("\t{ a b , c\n}\r", ["a b", "c"]),
        ('{"a b" ," c","",e\\ }', ["a b", " c", "", "e "]),
        ('{nUll,"null",\\NULL,N\\ULL,nulls}', [None, "null", "NULL", "NULL", "nulls"]),
        ('{"x\\"y\\\\z","{,}",\\{\\,\\}\\"}', ['x"y\\z', "{,}", '{,}"']),
        ("{it's,\u00a0}", ["it's", "\u00a0"]),
    ],
)
def test_elements_of_an_array(text: str, elements: list[str | None]) -> None:
    """What PostgreSQL 15 reads of the same texts."""
    assert list(split_array(text)) == elements


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            " ",
            "1,2",
            "{",
            "}",
            "{,}",
            "{1,}",
            "{,1}",
            "{1",
            "{1}2",
            "{1},{2}",
            "{a\\}",
            '{"a}',
        ],
        *['{a"b"}', '{"a"b}', "{a{b}", "{{}}", "{{1,2},{3,4}}", "[1:2]={1,2}", '{"a""b"}', "[1]"],
    ],
)
def test_a_text_that_is_no_array_of_one_dimension_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="one dimension"):
        list(split_array(text))


def test_elements_of_arrays_are_bounded() -> None:
    half = "{" + ",".join(map(str, range(2000))) + "}"
    assert Where.parse("a = ANY($1) OR b = ANY($1)", {1: half}).matches({"b": b"1999"})
    with pytest.raises(InvalidRequest, match="4000 elements"):
        Where.parse("a = ANY($1) OR b = ANY($1) OR c = ANY($2)", {1: half, 2: "{1}"})


def test_long_patterns_are_not_cached() -> None:
    for count, is_cached in ((10, True), (1000, False)):
        text = " or ".join([f"a{number} = 'x'" for number in range(count)])
        before = where_module._parse_pattern.cache_info().currsize
        assert len(Where.parse(text).columns) == count
        assert where_module._parse_pattern.cache_info().currsize - before == is_cached


def test_what_parameters_put_into_a_filter_is_bounded() -> None:
    text = " or ".join(["a = $1"] * 100)
    assert Where.parse(text, {1: "x" * 10_000}).columns == {"a"}
    with pytest.raises(InvalidRequest, match="as often as it is used"):
        Where.parse(text, {1: "x" * 11_000})


def test_equal_filters_have_one_spelling() -> None:
    spellings = ["a=1 AND b='x'", "( A = 1 ) and (b = 'x')", "\"a\" = 1 /* c */ and b = 'x' -- d"]
    assert len({Where.parse(text) for text in spellings}) == 1
    assert Where.parse('"A" = 1') != Where.parse("A = 1")
    assert Where.parse("a = 1") != Where.parse("a = '1'")
    assert Where.parse("a = true") != Where.parse("a = 1")


def test_literals_of_one_pattern_stay_apart() -> None:
    for index in range(3):
        where = Where.parse(f"a = 'x{index}' and b in ({index}, 7) or \"c'1\" = 'y'")
        assert where.sql == f'("a" = \'x{index}\' AND "b" IN ({index}, 7)) OR "c\'1" = \'y\''


@pytest.mark.parametrize(
    ("text", "pattern", "is_match"),
    [
        ("", "", True),
        ("", "%", True),
        ("", "_", False),
        ("abc", "a%c", True),
        ("ac", "a%c", True),
        ("a", "a%a", False),
        ("aba", "a%a", True),
        ("a\nb", "a_b", True),
        ("a.b", "a.b", True),
        ("axb", "a.b", False),
        ("50%", "50\\%", True),
        ("50x", "50\\%", False),
        ("a\\b", "a\\\\b", True),
        ("aXbXc", "%X%X%", True),
        ("aaab", "%a_b", True),
    ],
)
def test_patterns(text: str, pattern: str, is_match: bool) -> None:
    where = Where.parse("a like $1", {1: pattern})
    assert where.matches({"a": json.dumps(text).encode()}) == is_match
    assert Where.parse(where.sql).matches({"a": json.dumps(text).encode()}) == is_match


@pytest.mark.parametrize("operator", ["like", "ilike"])
@pytest.mark.parametrize(
    "pattern",
    [
        "%a" * 2000 + "%b",
        "%" + "a" * 30_000 + "b%",
        "%" + "a_" * 450 + "b%",
        "%" + "a_%" * 450 + "b%",
        "%" + "ab_" * 400 + "_%",
    ],
)
@pytest.mark.parametrize("text", ["a" * 1_000_000, "ab" * 500_000, "ä" * 1_000_000])
def test_no_pattern_is_slow(operator: str, pattern: str, text: str) -> None:
    where = Where.parse(f"a {operator} $1", {1: pattern})
    row = {"a": json.dumps(text).encode()}
    start = time.process_time()
    where.matches(row)
    assert time.process_time() - start < 2


@given(
    text=st.text("abAB\n\u0130\u017f\u212a\u03c2\u03c3", max_size=200),
    pattern=st.text("aAbB%_!\u03c3", max_size=8),
    is_blind=st.booleans(),
)
def test_a_pattern_matches_as_a_regular_expression_does(
    text: str, pattern: str, is_blind: bool
) -> None:
    expected = re.fullmatch(
        pattern.replace("_", ".").replace("%", ".*"), text, re.DOTALL | re.IGNORECASE * is_blind
    )
    like = LikePattern(pattern, "", is_case_blind=is_blind)
    assert like.matches(text) == (expected is not None)


def test_case_is_folded_as_regular_expressions_fold_it() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        folded = fold_case(character)
        assert len(folded) == 1
        if folded != character:
            assert re.fullmatch(re.escape(folded), character, re.IGNORECASE), character


_ROW_TEXTS = ["9" * 4000, json.dumps("x" * 200_000), json.dumps({str(n): n for n in range(20_000)})]


def _squared(operator: str) -> str:
    """The value of a column, joined with itself 2^11 times."""
    text = "a"
    for _ in range(11):
        text = f"({text} {operator} {text})"
    return text + " = 1"


@pytest.mark.parametrize("value", _ROW_TEXTS)
@pytest.mark.parametrize(
    "text",
    [
        _squared("*"),
        _squared("||"),
        *[
            " or ".join([condition] * 1000)
            for condition in (
                "lower(a) = 'y'",
                "a ->> 'x' = 'y'",
                "a = '{\"x\":1}'",
                "a in ('{\"x\":1}', '[1]')",
                "cast(a as text) is null",
                "abs(a) = 1",
                "a * a * a = 1",
                "a like a",
                "a ilike '%y_z%'",
                "a is distinct from a",
                "concat(a, a) = 'y'",
            )
        ],
    ],
)
def test_no_row_makes_a_filter_slow(text: str, value: str) -> None:
    where = Where.parse(text)
    start = time.process_time()
    where.matches({"a": value.encode()})
    assert time.process_time() - start < 2


def test_numbers_of_too_many_digits_are_not_computed() -> None:
    row = {"a": b"9" * 4000, "b": b"1", "c": b"9" * 4001}
    assert Where.parse("a - b < a AND c > a AND a * b = a").matches(row)
    assert Where.parse("(a + b) IS NULL AND (a * a) IS NULL AND (c - b) IS NULL").matches(row)


def test_a_filter_reads_a_row_several_times_and_no_more() -> None:
    row = {"a": json.dumps("x" * 2_000_000).encode()}
    assert Where.parse(" or ".join(["upper(a) = lower(a)"] * 4) + " or true").matches(row)
    assert Where.parse("(" + " or ".join(["lower(a) = 'y'"] * 30) + ") is null").matches(row)


def test_the_case_blind_form_keeps_its_escape() -> None:
    assert Where.parse("a ilike 'xA%' escape 'A'").matches({"a": b'"X%"'})
    assert not Where.parse("a ilike 'xA%' escape 'A'").matches({"a": b'"Xa"'})
