"""Messages of shapes as tests write them, and a client that applies them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from varve.shapes.offset import ShapeOffset
from varve.shapes.storage.log_writer import ShapeEntry
from varve.shapes.storage.shape_storage import ShapeStorage

INSERT, UPDATE, DELETE, CONTROL = b"iudc"
_NAMES = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}

State = dict[str, dict[str, Any]]


def make_message(
    operation: int,
    key: str,
    value: dict[str, Any],
    *,
    old_value: dict[str, Any] | None = None,
    tx: int = 1,
) -> bytes:
    message: dict[str, Any] = {"key": key, "value": value}
    if old_value is not None:
        message["old_value"] = old_value
    message["headers"] = {
        "operation": _NAMES[operation],
        "relation": ["public", "rows"],
        "lsn": str(tx),
        "op_position": 0,
        "txids": [tx],
        "last": True,
    }
    return json.dumps(message, separators=(",", ":")).encode()


def make_entry(
    offset: ShapeOffset, operation: int, key: str, value: dict[str, Any] | None = None, **more: Any
) -> ShapeEntry:
    """A change of a row; a control message where that is the operation."""
    if operation == CONTROL:
        text = json.dumps({"headers": {"control": key, "lsn": str(offset.tx)}})
        return ShapeEntry(offset, b"", CONTROL, text.encode())
    message = make_message(operation, key, value or {"id": key}, tx=offset.tx, **more)
    return ShapeEntry(offset, key.encode(), operation, message)


def apply_message(state: State, message: dict[str, Any]) -> None:
    """What the client does with a message: an insert replaces, an update adds, a delete removes."""
    operation = message["headers"].get("operation")
    if operation == "insert":
        state[message["key"]] = dict(message["value"])
    elif operation == "update":
        state.setdefault(message["key"], {}).update(message["value"])
    elif operation == "delete":
        state.pop(message["key"], None)


def apply_all(state: State, messages: Iterable[bytes]) -> State:
    for message in messages:
        apply_message(state, json.loads(message))
    return state


def read_messages(
    storage: ShapeStorage, start: ShapeOffset, end: ShapeOffset
) -> Iterator[dict[str, Any]]:
    """The messages of a read, as a client parses them."""
    body = b"[" + b",".join(storage.read(start, end)) + b"]"
    yield from json.loads(body)
