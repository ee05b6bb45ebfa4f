"""Fields of JSON values as ids: the answers are those of Spark 4's `get_json_object`."""

import pytest

from tests.support.json_ids import FOUND, NOT_FOUND, NUMBERS
from varve.dedup.ids import JsonField


@pytest.mark.parametrize(("text", "identity"), FOUND)
def test_a_field_is_found_as_text(text: str, identity: str) -> None:
    assert JsonField("a").find(text.encode()) == identity.encode()


@pytest.mark.parametrize(("number", "identity"), NUMBERS)
def test_numbers_with_a_fraction_are_written_as_java_writes_them(
    number: str, identity: str
) -> None:
    assert JsonField("a").find(f'{{"a":{number}}}'.encode()) == identity.encode()


@pytest.mark.parametrize("text", NOT_FOUND, ids=range(len(NOT_FOUND)))
def test_what_is_no_json_or_has_no_such_field_has_no_id(text: str) -> None:
    assert JsonField("a").find(text.encode()) is None


def test_paths_go_through_objects_alone() -> None:
    field = JsonField("a.b")
    assert field.find(b'{"a":{"b":7}}') == b"7"
    assert field.find(b'{"a":{"b":null}}') is None
    assert field.find(b'{"a":[{"b":7}]}') is None
    assert field.find(b'{"a":"b"}') is None
    assert field.find(b'{"a":{"c":1},"a":{"b":8}}') == b"8"


def test_what_is_nested_too_deeply_has_no_id() -> None:
    assert JsonField("a").find(b"[" * 100_000) is None


def test_a_field_with_bytes_that_are_no_utf8_is_no_id() -> None:
    assert JsonField("a").find(b'{"a":"\xff"}') is None
    assert JsonField("a").find(b'{"a":"x","b":"\xff"}') == b"x"


def test_numbers_beyond_doubles_are_one_id_and_integers_end_at_4300_digits() -> None:
    field = JsonField("a")
    assert field.find(b'{"a":1e400}') == field.find(b'{"a":1e500}') == b'"Infinity"'
    assert field.find(b'{"a":%s}' % (b"7" * 4_300)) == b"7" * 4_300
    assert field.find(b'{"a":%s}' % (b"7" * 4_301)) is None
    assert field.find(b'{"a":1,"b":%s}' % (b"7" * 4_301)) is None
