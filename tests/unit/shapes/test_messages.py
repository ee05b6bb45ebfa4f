"""Messages are what the specification shows, and keep the text of values."""

import json

from varve.shapes.definition import Replica
from varve.shapes.feed.changes import Change
from varve.shapes.feed.row import Row, RowKey, join_row
from varve.shapes.messages import (
    EncoderKey,
    MessageEncoder,
    ending,
    message_key,
    snapshot_end,
    without_last,
)
from varve.shapes.offset import ShapeOffset

KEY = '"public"."items"/"1"'
COLUMNS: Row = {"id": b'"1"'}
ROW: Row = {"id": b'"1"', "title": b'"x"', "n": b"1.50"}
ROW_KEY = RowKey(KEY, KEY.encode(), message_key(KEY), join_row(COLUMNS))


def _change(row: Row | None, previous: Row | None) -> Change:
    text = None if row is None else join_row(row)
    return Change(
        ShapeOffset(27, 0), ROW_KEY, text, None if previous is None else join_row(previous)
    )


def _encoded(form: MessageEncoder, row: Row | None, previous: Row | None) -> bytes:
    message = form.encode(_change(row, previous))
    assert message is not None
    return message


def _form(columns: set[str] | None = None, replica: Replica = Replica.DEFAULT) -> MessageEncoder:
    return MessageEncoder(
        "items", EncoderKey(None if columns is None else frozenset(columns), replica)
    )


def test_an_insert_has_the_whole_row_and_its_place() -> None:
    text = _encoded(_form(), ROW, None)
    assert json.loads(text) == {
        "key": KEY,
        "value": {"id": "1", "title": "x", "n": 1.5},
        "headers": {
            "operation": "insert",
            "relation": ["public", "items"],
            "lsn": "27",
            "op_position": 0,
            "txids": [27],
            "last": True,
        },
    }
    assert b'"n":1.50' in text


def test_an_update_has_the_key_and_what_changed() -> None:
    text = _form().encode(_change(ROW, ROW | {"title": b'"y"'}))
    assert text is not None
    assert json.loads(text)["value"] == {"id": "1", "title": "x"}
    assert "old_value" not in json.loads(text)


def test_a_column_that_went_away_is_null() -> None:
    text = _form().encode(_change(ROW, ROW | {"gone": b"1"}))
    assert text is not None
    assert json.loads(text)["value"] == {"id": "1", "gone": None}


def test_a_full_update_has_the_row_and_what_it_was() -> None:
    previous: Row = {"id": b'"1"', "title": b'"y"', "gone": b"1"}
    form = _form(replica=Replica.FULL)
    text = form.encode(_change(ROW, previous))
    assert text is not None
    message = json.loads(text)
    assert message["value"] == {"id": "1", "title": "x", "n": 1.5, "gone": None}
    assert message["old_value"] == {"title": "y", "n": None, "gone": 1}


def test_an_update_of_columns_that_are_not_shown_is_none() -> None:
    form = _form({"title"})
    assert form.encode(_change(ROW, ROW | {"n": b"2"})) is None
    assert form.encode(_change(ROW, ROW | {"gone": b"2"})) is None
    text = form.encode(_change(ROW, ROW | {"title": b"2"}))
    assert text is not None
    assert json.loads(text)["value"] == {"id": "1", "title": "x"}


def test_a_delete_has_the_key_or_in_full_the_row_that_was() -> None:
    default = json.loads(_encoded(_form(), None, ROW))
    assert default["value"] == {"id": "1"}
    assert default["headers"]["operation"] == "delete"
    full = _form(replica=Replica.FULL)
    assert json.loads(_encoded(full, None, ROW))["value"]["n"] == 1.5
    assert json.loads(_encoded(full, None, None))["value"] == {"id": "1"}


def test_key_columns_are_told_whatever_columns_are_asked_for() -> None:
    form = _form({"title"})
    assert json.loads(_encoded(form, ROW, None))["value"] == {
        "id": "1",
        "title": "x",
    }
    assert json.loads(form.snapshot_row(KEY, ROW))["value"] == {"id": "1", "title": "x"}


def test_a_row_of_a_snapshot_has_no_place() -> None:
    assert json.loads(_form().snapshot_row(KEY, ROW))["headers"] == {
        "operation": "insert",
        "relation": ["public", "items"],
    }
    marked = json.loads(_form().subset_row(KEY, ROW, mark=7))
    assert marked["headers"]["snapshot_mark"] == 7


def test_only_the_last_message_of_a_transaction_says_so() -> None:
    end = ending(ShapeOffset(5, 2))
    assert end == b',"lsn":"5","op_position":2,"txids":[5],"last":true}}'
    assert without_last(end) == b',"lsn":"5","op_position":2,"txids":[5]}}'


def test_a_snapshot_ends_with_what_it_has_seen() -> None:
    assert json.loads(snapshot_end(ShapeOffset(9, 0)))["headers"] == {
        "control": "snapshot-end",
        "xmin": "10",
        "xmax": "10",
        "xip_list": [],
    }
    assert json.loads(snapshot_end(ShapeOffset(0, 0)))["headers"]["xmin"] == "1"
