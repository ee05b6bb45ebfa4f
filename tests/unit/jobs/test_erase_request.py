"""How an erasure is asked for: keys in files, fields of values, digests in the place of keys."""

import json

import numpy as np
import pytest

from tests.unit.jobs.test_record_blocks import BytesSource
from varve.foundation.errors import InvalidRequest
from varve.jobs.erase.request import (
    DIGESTS_MAX,
    ErasureRequest,
    FieldMatch,
    ValueFormat,
    digest_key,
    parse_key,
    read_keys,
    read_values,
)
from varve.jobs.erase.scan import Matcher, hash_all
from varve.jobs.source.read import TopicHash
from varve.jobs.source.record_blocks import BatchRange, RecordBlock, RecordFilter, read_blocks
from varve.records import Record, build_batch

TOPIC_ID = "q1Sh9e5zQ8G5YyvbVnCk_w"


def block(*records: tuple[bytes | None, bytes | None]) -> RecordBlock:
    data = build_batch([Record(key, value) for key, value in records])
    (found,) = read_blocks([BatchRange(BytesSource(data), 0, 0, len(data), RecordFilter())])
    return found


def find(path: str, value: str, text: object, format: ValueFormat = ValueFormat.JSON) -> bool:
    match = FieldMatch.of(path, [value], format)
    data = text if isinstance(text, bytes) else json.dumps(text).encode()
    (found,), _ = match.find(block((None, data)))
    return found


@pytest.mark.parametrize(
    ("path", "value", "document"),
    [
        ("email", "a@x", {"email": "a@x"}),
        ("person.email", "a@x", {"person": {"email": "a@x"}}),
        ("people.email", "a@x", {"people": [{"email": "b@x"}, {"email": "a@x"}]}),
        ("tags", "a", {"tags": ["b", "a"]}),
        ("id", "7", {"id": 7}),
        ("id", "7", {"id": 7.0}),
        ("id", "7.50", {"id": 7.5}),
        ("id", "7", {"id": "7"}),
        ("name", "Zoë", {"name": "Zoë"}),
        ("name", "", {"name": ""}),
    ],
)
def test_a_field_matches_by_text_or_number(path: str, value: str, document: object) -> None:
    assert find(path, value, document)


@pytest.mark.parametrize(
    ("path", "value", "document"),
    [
        ("email", "a@x", {"email": "A@x"}),
        ("email", "a@x", {"person": {"email": "a@x"}}),
        ("id", "1", {"id": True}),
        ("id", "null", {"id": None}),
        ("id", "7", {"id": {"id": 7}}),
        ("id", "7", [7]),
        ("id", "7", "7"),
    ],
)
def test_other_values_do_not_match(path: str, value: str, document: object) -> None:
    assert not find(path, value, document)


def test_a_change_event_is_looked_into_before_and_after() -> None:
    rows = {"before": {"email": "old@x"}, "after": {"email": "new@x"}, "source": {"db": "shop"}}
    for event in (rows, {"schema": {}, "payload": rows}):
        assert find("email", "old@x", event, ValueFormat.DEBEZIUM)
        assert find("email", "new@x", event, ValueFormat.DEBEZIUM)
        assert find("db", "shop", event, ValueFormat.DEBEZIUM)
        assert not find("email", "op", event, ValueFormat.DEBEZIUM)
    assert not find("email", "old@x", rows)


def test_keys_that_are_json_are_looked_into_and_others_are_no_fault() -> None:
    match = FieldMatch.of("id", ["7"], ValueFormat.DEBEZIUM)
    found, unread = match.find(
        block((b'{"id": 7}', None), (b'{"payload": {"id": 7}}', b"{}"), (b"plain", b"{}"))
    )
    assert (found, unread) == ([True, True, False], 0)


def test_values_that_are_no_json_are_counted() -> None:
    match = FieldMatch.of("id", ["7"], ValueFormat.JSON)
    deep = b"[" * 100_000
    values = [b"\xff", b"{", deep, b"", None, b'{"id": 7}']
    found, unread = match.find(block(*((b"k", one) for one in values)))
    assert (found, unread) == ([False] * 5 + [True], 4)


@pytest.mark.parametrize(
    "text",
    [
        b'{"email": "a@x", "email": "b@x"}',
        b'{"email": "b@x", "email": "a@x"}',
        b'{"email": ["b@x", "a@x"], "email": null}',
        b'{"email": {"email": 1}, "email": "a@x", "email": 2}',
    ],
)
def test_each_of_several_equal_names_counts(text: bytes) -> None:
    assert find("email", "a@x", text)
    inside = b'{"before": null, "after": %b, "after": {"email": 7}}' % text
    doubled = b'{"payload": %b, "payload": 7}' % inside
    for event in (inside, doubled):
        assert find("email", "a@x", event, ValueFormat.DEBEZIUM)
        assert find("email", "7", event, ValueFormat.DEBEZIUM)
    match = FieldMatch.of("email", ["a@x"], ValueFormat.JSON)
    assert match.find(block((text, None), (b'{"payload": %b, "payload": 1}' % text, None)))[0] == [
        True,
        True,
    ]


def test_a_number_beyond_decimals_hides_no_record_and_is_found_as_written() -> None:
    text = b'{"n": 1e9999999999999999999, "email": "a@x"}'
    assert find("email", "a@x", text)
    assert find("n", "1e9999999999999999999", text)
    assert not find("n", "1", text)
    assert not find("n", "1", b'{"n": -1E-9999999999999999999}')


def test_names_that_hold_dots_are_given_as_a_list() -> None:
    document = {"a.b": {"c": "x"}, "a": {"b": {"c": "y"}}, "[odd": "z"}
    assert find('["a.b", "c"]', "x", document)
    assert not find('["a.b", "c"]', "y", document)
    assert find("a.b.c", "y", document)
    assert find("[odd", "z", document)
    for path, written in (('["a.b","c"]', '["a.b", "c"]'), ('["a", "b"]', "a.b"), ("[x", "[x")):
        assert FieldMatch.of(path, ["x"], ValueFormat.JSON).written == written


@pytest.mark.parametrize("path", ["[]", '[""]', "", ".", "a.", "a..b", ".".join("a" * 65)])
def test_a_path_that_names_nothing_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="names joined by dots"):
        FieldMatch.of(path, ["x"], ValueFormat.JSON)
    with pytest.raises(InvalidRequest, match="no value to look for"):
        FieldMatch.of("a", [], ValueFormat.JSON)


def test_keys_are_text_or_bytes_one_per_line() -> None:
    lines = [b"ann\n", b"\n", b"base64:/w==\r\n", b"hex:00ff\n", b" spaced \n", b"ann"]
    assert read_keys(lines, "f") == {b"ann", b"\xff", b"\x00\xff", b" spaced "}
    assert read_values([b"a\n", b"\n", b"b"], "f") == ["a", "b"]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    mark = b"\xef\xbb\xbf"
    assert read_keys([mark + b"ann\r\n", mark + b"bob"], "f") == {b"ann", mark + b"bob"}
    assert read_keys([mark + b"hex:00\n"], "f") == {b"\0"}
    assert read_values([mark + b"a\n", b"b"], "f") == ["a", "b"]
    with pytest.raises(InvalidRequest, match="holds no key"):
        read_keys([mark], "f")


def test_the_empty_key_must_be_meant() -> None:
    with pytest.raises(InvalidRequest, match="the key is empty"):
        parse_key("")
    assert parse_key("hex:") == b""


@pytest.mark.parametrize("line", [b"base64:!", b"hex:0", b"\xff"])
def test_a_line_that_is_no_key_is_named_by_its_number_and_not_shown(line: bytes) -> None:
    with pytest.raises(InvalidRequest, match="f: line 2") as caught:
        read_keys([b"ann\n", line], "f")
    assert "ann" not in str(caught.value)
    with pytest.raises(InvalidRequest, match="holds no key"):
        read_keys([b"\n"], "f")
    with pytest.raises(InvalidRequest, match="holds no value"):
        read_values([], "f")
    assert parse_key("ann") == b"ann"


def test_a_receipt_has_salted_digests_and_of_many_keys_one() -> None:
    few = ErasureRequest(topics=("t",), id="i", keys=frozenset([b"ann", b"bob"]))
    told = few.describe(b"salt")["keys"]
    assert isinstance(told, dict)
    assert told["digests"] == [digest_key(b"ann", b"salt"), digest_key(b"bob", b"salt")]
    assert told["digests"] != few.describe(b"other")["keys"]["digests"]  # type: ignore[index]  # a dict
    many = frozenset(b"%d" % number for number in range(DIGESTS_MAX + 1))
    told = ErasureRequest(topics=("t",), id="i", keys=many).describe(b"s")["keys"]
    assert isinstance(told, dict)
    assert set(told) == {"count", "salt", "digest_of_all"}
    bare = ErasureRequest(topics=("t",), id="i", keys=many, lists_digests=False).describe(b"s")
    assert bare["keys"] == {"count": DIGESTS_MAX + 1}


def test_keys_are_found_by_their_hashes_many_at_once() -> None:
    keys = [b"%d" % number for number in range(3000)]
    matcher = Matcher.of(TOPIC_ID, keys)
    assert len(matcher.hashes) == 3000
    topic = TopicHash.of(TOPIC_ID)
    assert sorted(map(tuple, matcher.hashes.tolist())) == sorted(topic.hash(one) for one in keys)
    found, unread = matcher.find(block((b"17", b""), (None, b""), (b"x", b""), (b"2999", None)))
    assert (found.tolist(), unread) == ([True, False, False, True], 0)
    assert hash_all([], topic).shape == (0, 2)
    nothing = Matcher(TOPIC_ID, np.empty((0, 2), np.uint64))
    assert not nothing.find(block((b"a", b"")))[0].any()


def test_hashes_that_share_their_first_half_are_told_apart() -> None:
    high, low = TopicHash.of(TOPIC_ID).hash(b"ann")
    others = [(high, low + 1), (high, low - 1)]
    for some in (others, others[:1], others[1:]):
        apart = Matcher(TOPIC_ID, np.array(sorted(some), np.uint64))
        assert not apart.find(block((b"ann", b"")))[0].any()
    among = Matcher(TOPIC_ID, np.array(sorted([*others, (high, low)]), np.uint64))
    assert among.find(block((b"ann", b"")))[0].all()
