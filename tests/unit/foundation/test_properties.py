"""Properties are read and written as java.util.Properties does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varve.foundation.properties import escape_property, parse_properties


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, value) for _, name, value in parse_properties(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b")]),
        ("a : b", [("a", "b")]),
        ("a b c", [("a", "b c")]),
        ("a", [("a", "")]),
        ("  # comment\n! another\n\na=1", [("a", "1")]),
        ("a=1\\\n   2\nb=3", [("a", "12"), ("b", "3")]),
        ("a=1\\\\\nb=2", [("a", "1\\"), ("b", "2")]),
        ("a=x\\\n# no comment", [("a", "x# no comment")]),
        ("a\\=b=c", [("a=b", "c")]),
        ("a=\\t\\n\\u00e9\\q", [("a", "\t\n\u00e9q")]),
        ("a=\\ud83d\\ude00", [("a", "\U0001f600")]),
        ("a=1 \r\nb=2\rc=3", [("a", "1 "), ("b", "2"), ("c", "3")]),
        ("a=1\\", [("a", "1")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
    ],
)
def test_the_grammar_is_javas(text: str, expected: list[tuple[str, str]]) -> None:
    assert _pairs(text) == expected


def test_the_line_of_a_property_is_the_one_where_it_begins() -> None:
    assert [line for line, _, _ in parse_properties("# c\na=1\\\n2\n\nb=2")] == [2, 5]


def test_a_broken_escape_names_its_line() -> None:
    with pytest.raises(ValueError, match=r"line 2: \\u12 "):
        parse_properties("a=1\nb=\\u12 x")


@given(st.text(min_size=1), st.text())
def test_what_is_escaped_is_read_back(name: str, value: str) -> None:
    line = f"{escape_property(name)}={escape_property(value)}\n"
    assert line.isascii()
    assert _pairs(line) == [(name, value)]
