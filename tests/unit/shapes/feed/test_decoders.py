"""Records become rows: plain ones, and those of Debezium."""

import json
from typing import Any

import pytest

from tests.support.decoding import decode
from varve.foundation.errors import InvalidSetting
from varve.shapes.feed.decoders import (
    UNAVAILABLE,
    DebeziumDecoder,
    PlainDecoder,
    RecordKind,
    SourceTransaction,
    complete,
    find_transaction_end,
)
from varve.shapes.feed.row import RowKeys, get_row, join_row, row_key, row_key_prefix, split_row


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _envelope(op: str, after: Any = None, **more: Any) -> dict[str, Any]:
    return {"before": None, "after": after, "source": {"table": "items"}, "op": op, **more}


def _wrapped(payload: Any) -> bytes:
    return _json({"schema": {"type": "struct", "optional": False}, "payload": payload})


def test_a_plain_record_is_the_row_of_its_key() -> None:
    decoded = decode(PlainDecoder(), b"a", b'{"x": 1.50, "y": [1, {"z": " "}]}')
    assert decoded.kind is RecordKind.UPSERT
    assert get_row(decoded.key) == {"key": b'"a"'}
    assert decoded.row == {"key": b'"a"', "x": b"1.50", "y": b'[1,{"z":" "}]'}


@pytest.mark.parametrize(
    ("value", "column"),
    [
        (b" [1, 2] ", b"[1,2]"),
        (b"12.0", b"12.0"),
        (b"null", b"null"),
        (b"no json", b'"no json"'),
        (b"{", b'"{"'),
        (b"", b'""'),
        (b"\xff", b'"base64:/w=="'),
    ],
)
def test_a_value_that_is_no_object_stands_in_one_column(value: bytes, column: bytes) -> None:
    assert decode(PlainDecoder(), b"a", value).row == {"key": b'"a"', "value": column}


def test_the_key_wins_over_a_member_of_its_name() -> None:
    assert decode(PlainDecoder("id"), b"7", b'{"id":8,"a":1}').row == {"id": b'"7"', "a": b"1"}
    assert decode(PlainDecoder(), b'{"id": 7}', b'{"id":8}').row == {"id": b"7"}


def test_different_text_keys_never_look_alike() -> None:
    keys = [b"\xff", b"/w==", b"base64:/w==", b"base64:YmFzZTY0Oi93PT0=", b"", b"{}", b"1", b'"1"']
    decoder, prefix = PlainDecoder(), row_key_prefix("t")
    names = {row_key(prefix, get_row(decode(decoder, key, b"1").key)) for key in keys}
    assert len(names) == len(keys)


def test_records_without_key_or_value() -> None:
    decoder = PlainDecoder()
    skipped, deleted = decoder.decode_many([(None, b"{}"), (b"a", None)])
    assert skipped.kind is RecordKind.SKIPPED
    assert (deleted.kind, deleted.row) == (RecordKind.DELETE, None)
    with pytest.raises(InvalidSetting):
        PlainDecoder("")


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"id": b"1"}, '"public"."t"/"1"'),
        ({"id": b'"a/b\\n"'}, '"public"."t"/"a//b\n"'),
        ({"id": b'""'}, '"public"."t"/""'),
        ({"b": b"null", "a": b'"x"'}, '"public"."t"/"x"/_'),
        ({"id": b'"\\ud800"'}, '"public"."t"/"\\ud800"'),
    ],
)
def test_the_key_of_a_row(columns: dict[str, bytes], name: str) -> None:
    assert row_key(row_key_prefix("t"), columns) == name


def test_rows_are_joined_in_the_order_asked_for() -> None:
    row = split_row(b'{"a":1,"\\ud800":2,"c \\"":"\\u0041"}')
    assert row is not None
    assert join_row(row) == b'{"a":1,"\\ud800":2,"c \\"":"\\u0041"}'
    assert join_row(row, ['c "', "missing", "a"]) == b'{"c \\"":"\\u0041","a":1}'


@pytest.mark.parametrize("wrap", [_json, _wrapped])
@pytest.mark.parametrize("op", ["c", "r", "u"])
def test_debezium_gives_the_row_after_the_change(op: str, wrap: Any) -> None:
    envelope = _envelope(op, {"id": 1, "name": "x"})
    decoded = decode(DebeziumDecoder(), wrap({"id": 1}), wrap(envelope))
    assert decoded.kind is RecordKind.UPSERT
    assert get_row(decoded.key) == {"id": b"1"}
    assert decoded.row == {"id": b"1", "name": b'"x"'}


@pytest.mark.parametrize("wrap", [_json, _wrapped])
def test_debezium_deletes_by_operation_and_by_tombstone(wrap: Any) -> None:
    decoder, key = DebeziumDecoder(), wrap({"id": 1})
    for value in (wrap(_envelope("d")), None, _wrapped(None)):
        assert decode(decoder, key, value).kind is RecordKind.DELETE
    assert get_row(decode(decoder, key, wrap(_envelope("d"))).key) == {"id": b"1"}


def test_debezium_truncates_and_passes_messages_and_schema_changes_on() -> None:
    decoder = DebeziumDecoder()
    assert decode(decoder, None, _json(_envelope("t"))).kind is RecordKind.TRUNCATE
    assert decode(decoder, _json({"prefix": "p"}), _json({"op": "m"})).kind is RecordKind.NOTHING
    ddl = _wrapped({"source": {}, "ddl": "ALTER TABLE items", "tableChanges": []})
    assert decode(decoder, _json({"databaseName": "d"}), ddl).kind is RecordKind.SCHEMA_CHANGE


@pytest.mark.parametrize(
    "value", [b"{}", b"1", b"\xff", b'{"op":"x"}', b'{"op":"c","after":null}', b'{"a":1}']
)
def test_debezium_skips_other_forms_with_a_reason(value: bytes) -> None:
    decoded = decode(DebeziumDecoder(), b'{"id":1}', value)
    assert decoded.kind is RecordKind.SKIPPED
    no_key = decode(DebeziumDecoder(), None, _json(_envelope("c", {"id": 1})))
    assert no_key.kind is RecordKind.SKIPPED


def test_debezium_keeps_values_that_the_source_left_out() -> None:
    after = {"id": 1, "a": UNAVAILABLE, "b": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", "c": 2}
    after["d"] = [UNAVAILABLE]
    decoded = decode(DebeziumDecoder(), b'{"id":1}', _json(_envelope("u", after)))
    assert decoded.unavailable == {"a", "b", "d"}
    previous = b'{"id":1,"c":1,"b":null,"a":"old"}'
    assert complete(decoded, previous) == b'{"id":1,"a":"old","b":null,"c":2}'
    assert complete(decoded, None) == b'{"id":1,"c":2}'


@pytest.mark.parametrize(
    ("reported", "id"),
    [
        ("571:53195832", "571"),
        ("00000025:00000d08:0025", "00000025:00000d08:0025"),
        ("5c3a5b3e-1b7f-11ee-be56-0242ac120002:23", "5c3a5b3e-1b7f-11ee-be56-0242ac120002:23"),
        ("5.6.641", "5.6.641"),
    ],
)
def test_debezium_tells_the_source_transaction_and_its_end(reported: str, id: str) -> None:
    mark = {"id": reported, "total_order": 3, "data_collection_order": 1}
    value = _json(_envelope("c", {"id": 1}, transaction=mark))
    decoded = decode(DebeziumDecoder(), b'{"id":1}', value)
    assert decoded.transaction == SourceTransaction(id, 3, 1)
    counts = [{"data_collection": "public.items", "event_count": 2}]
    end = {"status": "END", "id": reported, "event_count": 2, "data_collections": counts}
    for text in (_json(end), _wrapped(end)):
        result = find_transaction_end(text)
        assert result is not None
        assert (result.id, result.counts) == (id, {"public.items": 2})
    others: list[Any] = [
        {"status": "BEGIN"},
        {"status": "END"},
        {**end, "data_collections": [1]},
        5,
    ]
    for other in others:
        assert find_transaction_end(_json(other)) is None
    assert find_transaction_end(None) is None


@pytest.mark.parametrize("count", [b"1e400", b"9" * 5000, b"NaN", b"null", b'"x"', b"[]"])
def test_an_end_that_counts_nothing_is_none(count: bytes) -> None:
    counts = b'[{"data_collection":"public.items","event_count":%s}]' % count
    end = b'{"status":"END","id":"5","data_collections":%s}' % counts
    assert find_transaction_end(end) is None


def test_debezium_decodes_many_as_each_alone() -> None:
    key, row = b'{"id":1}', {"id": 1}
    values = [_json(_envelope("c", row)), None, _wrapped(_envelope("u", row)), b"x", b"null"]
    decoder = DebeziumDecoder()
    records = [(key, value) for value in values] + [(None, b"1")]
    assert decoder.decode_many(records) == [decode(decoder, *record) for record in records]


def test_keys_that_are_kept_are_bounded_in_bytes() -> None:
    decoder, keys = PlainDecoder(), RowKeys(row_key_prefix("orders"))
    for start in range(0, 400, 100):
        large = [(b"%d" % number + b"x" * 200_000, b"{}") for number in range(start, start + 100)]
        columns = [decoded.key for decoded in decoder.decode_many(large)]
        assert len(keys.get_all(columns)) == 100
        assert sum(map(len, decoder._columns_by_key)) < 32 << 20
        assert sum(map(len, keys._cache)) < 32 << 20
    small = [(b"a", b"{}"), (b"b", None)]
    assert decoder.decode_many(small) == PlainDecoder().decode_many(small)
