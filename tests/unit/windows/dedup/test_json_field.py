"""Fields of JSON values as ids: the answers are those of Spark 4's `get_json_object`."""

import pytest

from varve.windows.dedup.json_field import JsonField

FOUND = [
    ('{"a":1}', "1"),
    ('{"a":"1"}', "1"),
    ('{"a":""}', ""),
    ('{"a":-0}', "0"),
    ('{"a":123456789012345678901234567890}', "123456789012345678901234567890"),
    ('{"a":true}', "true"),
    ('{"a":false}', "false"),
    (' {"a" : 5 } ', "5"),
    ('{"a":"\\u00e9\\"q"}', 'é"q'),
    ('{"a":"x\ty"}', "x\ty"),
    ('{"a":[1, 2,"x", 1.0]}', '[1,2,"x",1.0]'),
    ('{"a":{"b": 1, "c":"x", "d": null}}', '{"b":1,"c":"x","d":null}'),
    ('{"a":{"s":"\\u00e9 \\/ \\n"}}', '{"s":"é / \\n"}'),
    ('{"a":[]}', "[]"),
    ('{"a":{}}', "{}"),
    ('{"a":{"b":1,"b":2}}', '{"b":1,"b":2}'),
    ('{"a":1,"a":2}', "1"),
    ('{"a":null,"a":2}', "2"),
    ('{"a":1} x', "1"),
    ('{"a":"x"}{"a":"y"}', "x"),
]
NUMBERS = [
    ("1.0", "1.0"),
    ("1.50", "1.5"),
    ("1e3", "1000.0"),
    ("1E7", "1.0E7"),
    ("12345678.5", "1.23456785E7"),
    ("9999999.5", "9999999.5"),
    ("0.0001", "1.0E-4"),
    ("2e-3", "0.002"),
    ("-0.0", "-0.0"),
    ("-1.25e-9", "-1.25E-9"),
    ("9007199254740993.0", "9.007199254740992E15"),
    ("1.00000000000000000000001", "1.0"),
    ("1e400", '"Infinity"'),
]
NOT_FOUND = [
    "",
    "x",
    '{"a":null}',
    '{"b":1}',
    '{"a":1',
    '{"a":1, x}',
    '{"a":"x","b":}',
    '{"a":NaN}',
    '{"a":01}',
    '{"a":"\\ud800"}',
    '\ufeff{"a":3}',
    '[{"a":1}]',
    '"a"',
    "[" * 100_000,
]


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


def test_bytes_that_are_no_utf8_are_read_as_the_replacement_character() -> None:
    assert JsonField("a").find(b'{"a":"\xff"}') == "\ufffd".encode()
    assert JsonField("a").find(b'{"a":"x","b":"\xff"}') == b"x"
