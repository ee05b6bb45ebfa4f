"""Rows as texts: what kernels make of many in one go is what is made of each by splitting it."""

import json
from collections import defaultdict

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.decoding import decode
from tests.support.detached_shapes import detached_shape
from varve.shapes.definition import Replica
from varve.shapes.feed.changes import Change, Transaction
from varve.shapes.feed.decoders import PlainDecoder
from varve.shapes.feed.row import (
    Row,
    RowKeys,
    get_row,
    join_row,
    name_prefix,
    row_key_prefix,
    split_row,
)
from varve.shapes.kernels.row_messages import MessageResult, MessageTexts
from varve.shapes.kernels.row_texts import are_rows, find_values, has_reordered, join_rows
from varve.shapes.messages import EncoderKey, MessageEncoder, operation_of
from varve.shapes.offset import ShapeOffset
from varve.shapes.routing import ChangeRouter, EntriesByShape
from varve.shapes.shape import Shape

NAMES = ("a", "b", "ab", "a!", "é", 'q"', "\\", "", "key", "\ud800", "\x7f", "n")
SPELLINGS = ("\\u0061", "\\u0062", "\\/", "\\u006e", *(json.dumps(name)[1:-1] for name in NAMES))
VALUES = (
    "1",
    "-1.50e+3",
    "null",
    "true",
    '""',
    '"a\\"}"',
    '"é\\u0041"',
    '"long text of more than eight bytes"',
    "[]",
    '[1,{"a":"]"},[2]]',
    '{"a":{"b":1},"c":[]}',
)
BLANKS = ("", "", "", " ", "\n\t")
KEYS = RowKeys(row_key_prefix("t"))
FORMS = {
    key: MessageEncoder("t", key)
    for columns in (None, frozenset({"a", "é", "\\"}), frozenset[str]())
    for replica in Replica
    if (key := EncoderKey(columns, replica))
}
TEXTS = [
    MessageTexts([b"insert", b"update", b"delete"], shown, is_full=is_full)
    for shown in (None, [b'"a":'])
    for is_full in (False, True)
]
FILTERS = (None, "a = '1'", "n = 'x' OR b > 0", "a IS NULL", "\"é\" LIKE '%1%' AND n = 1")


@st.composite
def _objects(draw: st.DrawFn) -> bytes:
    """JSON objects with blanks, names of several spellings and of several members."""
    blank = st.sampled_from(BLANKS)
    members = draw(
        st.lists(st.tuples(st.sampled_from(SPELLINGS), st.sampled_from(VALUES)), max_size=7)
    )
    parts = [f'{draw(blank)}"{name}"{draw(blank)}:{draw(blank)}{value}' for name, value in members]
    return (draw(blank) + "{" + ",".join(parts) + draw(blank) + "}" + draw(blank)).encode()


record_keys = st.sampled_from(
    [b"k", b'{"a":1}', b'{"b": 1, "a": "x"}', b'q"', b"{}", b'{"\\u0061":1}']
)
record_values = st.one_of(
    _objects(), st.sampled_from([b"1", b'"x"', b"no JSON", b"\xff", b"[1, 2]"])
)
columns = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=7)


@st.composite
def _rows(draw: st.DrawFn, key: Row) -> bytes | None:
    """A row of a key, its other columns in any order; None for none."""
    if draw(st.integers(0, 5)) == 0:
        return None
    held = {name: text.encode() for name, text in draw(columns).items() if name not in key}
    names = draw(st.permutations(list(held)))
    return join_row(key | {name: held[name] for name in names})


@st.composite
def _changes(draw: st.DrawFn) -> Change:
    key: Row = draw(st.sampled_from([{"key": b'"k"'}, {"id": b"1", 'q"': b"[1]"}]))
    row, previous = draw(_rows(key)), draw(_rows(key))
    offset = ShapeOffset(draw(st.integers(1, 1 << 50)), draw(st.sampled_from([0, 2, 40])))
    return Change(offset, KEYS.get(join_row(key)), row, previous, draw(st.integers(0, 9)) == 0)


def _plain_row(decoder: PlainDecoder, key: bytes, value: bytes) -> Row:
    """The row that splitting gives."""
    key_columns = get_row(decode(decoder, key, None).key)
    split = split_row(value)
    if split is None:
        return decode(decoder, key, value).row or {}
    return {**key_columns, **split, **key_columns}


@given(st.lists(st.tuples(record_keys, record_values), max_size=6))
@settings(max_examples=150)
@example([(b"k", b'{"a":1,"\\u0061":2}'), (b"k", b'{"a":1,"key":2}'), (b"k", b'{"a":1}')])
def test_a_record_gives_the_row_that_splitting_gives(records: list[tuple[bytes, bytes]]) -> None:
    decoder = PlainDecoder()
    decoded = decoder.decode_many(records)
    for (key, value), one in zip(records, decoded, strict=True):
        assert one.text == join_row(_plain_row(decoder, key, value))
        assert one.text is not None
        assert one.text.startswith(one.key[:-1])
        assert are_rows([one.text])


@given(st.lists(_changes(), max_size=6))
@settings(max_examples=200)
def test_messages_made_in_one_go_are_those_made_one_by_one(changes: list[Change]) -> None:
    for form in FORMS.values():
        found = [entry and entry.json for entry in form.entries(changes)]
        assert found == [form.encode(change) for change in changes]
        for change, entry in zip(changes, form.entries(changes), strict=True):
            told = entry and (entry.offset, entry.key, entry.operation)
            named = (change.offset, change.key.encode(), operation_of(change))
            assert told in (None, named)


def test_most_messages_are_made_in_one_go() -> None:
    """So that the property above is one of the kernel."""
    key = KEYS.get(b'{"key":"k"}')
    before = b'{"key":"k","x":1,"a":[1],"gone":2,"also":3}'
    change = Change(ShapeOffset(1, 0), key, b'{"key":"k","a":[1,2],"x":1,"new":{}}', before)
    came, went = change._replace(previous_text=None), change._replace(text=None)
    for texts in TEXTS:
        assert bytes(texts.write([change, came, went])[0]) == b"uid"
        assert texts.write([change._replace(text=before)])[0] == [MessageResult.UNCHANGED]


@given(_changes(), st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
def test_columns_of_a_row_are_found_in_its_text(change: Change, names: list[str]) -> None:
    for text in (change.text, change.previous_text):
        if text is not None:
            row = get_row(text)
            found = find_values([text], [name_prefix(name) for name in names])
            assert found == [tuple([row.get(name) for name in names])]


@given(_changes())
@settings(max_examples=200)
def test_rows_in_another_order_are_noticed(change: Change) -> None:
    text, previous = change.text, change.previous_text
    if text is None or previous is None:
        return
    assert has_reordered([change]) or get_row(text) != get_row(previous)
    moved = join_row(dict(reversed(get_row(text).items())))
    assert has_reordered([change._replace(text=None), change._replace(previous_text=moved)])


@given(st.lists(_changes(), max_size=4))
@settings(max_examples=50, deadline=None)
def test_who_is_told_what_is_what_each_filter_says(changes: list[Change]) -> None:
    router = ChangeRouter()
    shapes = [
        detached_shape("s", where=where, replica=replica.value)
        for where in FILTERS
        for replica in Replica
    ]
    for shape in shapes:
        router.add(shape)
    entries_by_shape: EntriesByShape = defaultdict(list)
    router.route([Transaction([change]) for change in changes], entries_by_shape)
    for shape in shapes:
        plain = [_plain_message(shape, change) for change in changes]
        assert [entry.json for entry in entries_by_shape[shape]] == [
            one for one in plain if one is not None
        ]


def _plain_message(shape: Shape, change: Change) -> bytes | None:
    where = shape.definition.where

    def is_in(row: Row | None) -> bool:
        return row is not None and (where is None or where.matches(row))

    is_now, was = is_in(change.row), is_in(change.previous)
    if change.is_uncertain:
        change, is_now, was = change._replace(previous_text=None), is_now, not is_now
    if is_now and was:
        return shape.encoder.encode(change)
    if is_now:
        return shape.encoder.encode(change._replace(previous_text=None))
    return shape.encoder.encode(change._replace(text=None)) if was else None


@given(st.binary(max_size=40), st.text(alphabet='{}[]":,\\a1 ', max_size=60))
@settings(max_examples=150)
def test_bytes_that_are_no_row_do_no_harm(data: bytes, text: str) -> None:
    key = KEYS.get(b'{"key":"k"}')
    for one in (data, text.encode(), b"{" + text.encode() + b"}", b'{"key":"k",' + data + b"}"):
        are_rows([one])
        has_reordered([(0, 0, one, bytes(reversed(one)))])
        find_values([one], [b'"a":'])
        join_rows([one], [one])
        change = ((1, 0), key, one, b'{"key":"k","a":1}')
        for texts in TEXTS:
            texts.write([change, (*change[:2], change[3], one), (*change[:2], one, one)])
