"""Who is told what of a change, and how transactions end for each shape."""

import json
from collections import defaultdict
from typing import Any

from tests.support.detached_shapes import detached_shape
from varve.shapes.feed.changes import Change, Transaction
from varve.shapes.feed.row import Row, RowKeys, join_row, row_key_prefix
from varve.shapes.offset import ShapeOffset
from varve.shapes.routing import ChangeRouter, EntriesByShape


def _row(**columns: Any) -> Row:
    return {name: json.dumps(value).encode() for name, value in columns.items()}


def _change(
    tx: int, row: Row | None, previous: Row | None, op: int = 0, *, is_uncertain: bool = False
) -> Change:
    key = RowKeys(row_key_prefix("t")).get(b'{"key":"a"}')
    now = None if row is None else join_row(_row(key="a") | row)
    was = None if previous is None else join_row(_row(key="a") | previous)
    return Change(ShapeOffset(tx, op), key, now, was, is_uncertain)


def _tell(router: ChangeRouter, *changes: Change) -> dict[str, list[dict[str, Any]]]:
    entries_by_shape: EntriesByShape = defaultdict(list)
    router.route([Transaction(list(changes))], entries_by_shape)
    return {
        shape.handle: [json.loads(entry.json) for entry in entries]
        for shape, entries in entries_by_shape.items()
    }


def _operations(reported: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    return {
        handle: [message["headers"]["operation"] for message in messages]
        for handle, messages in reported.items()
    }


def test_what_stands_in_the_snapshot_is_not_told() -> None:
    router = ChangeRouter()
    router.add(detached_shape("old-1", start=3))
    router.add(detached_shape("new-1", start=5, replica="full"))
    assert _tell(router, _change(3, _row(n=1), None)) == {}
    assert list(_tell(router, _change(4, _row(n=1), None))) == ["old-1"]
    assert sorted(_tell(router, _change(6, _row(n=1), None))) == ["new-1", "old-1"]


def test_the_last_message_of_a_transaction_is_the_last_for_eachdetached_shape() -> None:
    router = ChangeRouter()
    router.add(detached_shape("all-1"))
    router.add(detached_shape("low-1", where="n < 5"))
    reported = _tell(
        router,
        _change(9, _row(n=1), None),
        _change(9, _row(n=2), _row(n=1), op=2),
        _change(9, _row(n=8), _row(n=2), op=4),
        _change(9, _row(n=9), _row(n=8), op=6),
    )
    lasts = {
        handle: [message["headers"].get("last", False) for message in messages]
        for handle, messages in reported.items()
    }
    assert lasts == {"all-1": [False, False, False, True], "low-1": [False, False, True]}
    assert [message["headers"]["op_position"] for message in reported["all-1"]] == [0, 2, 4, 6]


def test_shapes_that_tell_alike_share_an_entry() -> None:
    router = ChangeRouter()
    item, other = detached_shape("one-1"), detached_shape("other", where="n > 0")
    router.add(item)
    router.add(other)
    entries_by_shape: EntriesByShape = defaultdict(list)
    router.route([Transaction([_change(1, _row(n=1), None)])], entries_by_shape)
    assert entries_by_shape[item][0] is entries_by_shape[other][0]


def test_a_shape_that_came_or_went_is_known_at_once() -> None:
    router = ChangeRouter()
    item, other = (
        detached_shape("one-1", where="n = 1"),
        detached_shape("other", where="n = 1 AND m = 1"),
    )
    router.add(item)
    assert list(_tell(router, _change(1, _row(n=1, m=1), None))) == ["one-1"]
    router.add(other)
    assert sorted(_tell(router, _change(2, _row(n=1, m=1), None))) == ["one-1", "other"]
    router.remove(item)
    router.remove(item)
    assert list(_tell(router, _change(3, _row(n=1, m=1), None))) == ["other"]
    assert len(router) == 1


def test_filters_over_many_columns_are_asked_each_time() -> None:
    router = ChangeRouter()
    for number in range(12):
        router.add(detached_shape(f"s{number:03}", where=f"c{number} = 1"))
    reported = _tell(router, _change(1, _row(c3=1, c7=1), _row(c3=1, c8=1)))
    assert _operations(reported) == {"s003": ["update"], "s007": ["insert"], "s008": ["delete"]}


def test_the_shapes_of_a_topic_made_anew_are_told_the_quick_way() -> None:
    router = ChangeRouter()
    old = detached_shape("old-1", start=50)
    router.add(old)
    change = _change(7, _row(n=1), None)
    assert router._needs_checks([change])
    router.remove(old)
    router.add(detached_shape("new-1"))
    assert not router._needs_checks([change])
    assert _operations(_tell(router, change)) == {"new-1": ["insert"]}
