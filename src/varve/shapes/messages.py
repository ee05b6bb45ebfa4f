"""Encodes changes and rows as the JSON messages that clients receive.

Layout     `{"key":...,"value":{...},"headers":{...}}`, and `old_value` where the replica is full.
Messages are encoded by a kernel, many at once. Those that the kernel does not support are encoded
here, one by one: both give the same bytes.

Invariant  values keep their bytes. An update names each column that was removed as null, so that
           folding updates keeps the removal. Key columns are always included, whatever columns the
           shape selects. Decoders put the key columns first: the first columns whose values give
           the text of the key are the key. That is unique, because slashes in values are doubled.
Threads    any; an encoder keeps no state except texts of its topic.
"""

import json
from collections.abc import Collection
from functools import partial
from json.encoder import encode_basestring
from typing import Final, NamedTuple

from varve.foundation.errors import Corrupt
from varve.shapes.definition import Replica
from varve.shapes.feed.changes import Change
from varve.shapes.feed.row import (
    NULL,
    SCHEMA,
    Row,
    join_row,
    name_prefix,
    row_key,
    row_key_prefix,
)
from varve.shapes.kernels.row_messages import MessageResult, MessageTexts
from varve.shapes.offset import ShapeOffset
from varve.shapes.storage.log_writer import DELETE, INSERT, TRANSACTION_END, UPDATE, ShapeEntry

_NEEDS_PYTHON: Final = int(MessageResult.UNSUPPORTED)
_NEW_ENTRY: Final = partial(tuple.__new__, ShapeEntry)
"""Builds an entry without calling the class, which is slow for many."""
_LAST: Final = b"]," + TRANSACTION_END
_NAMES: Final = {INSERT: b"insert", UPDATE: b"update", DELETE: b"delete"}


class EncoderKey(NamedTuple):
    """Columns and replica of a shape; shapes with equal keys share encoded messages."""

    columns: frozenset[str] | None
    replica: Replica


class MessageEncoder:
    """Encodes the changes of one topic for shapes with the same columns and replica."""

    def __init__(self, topic: str, key: EncoderKey) -> None:
        self._columns = key.columns
        self._is_full = key.replica is Replica.FULL
        self._key_prefix = row_key_prefix(topic)
        relation = json.dumps([SCHEMA, topic], separators=(",", ":")).encode()
        self._headers = {
            operation: b',"headers":{"operation":"%b","relation":%b' % (name, relation)
            for operation, name in _NAMES.items()
        }
        self._texts = MessageTexts(
            [self._headers[operation] for operation in (INSERT, UPDATE, DELETE)],
            None if key.columns is None else [name_prefix(name) for name in sorted(key.columns)],
            is_full=self._is_full,
        )

    def entries(self, changes: list[Change]) -> list[ShapeEntry | None]:
        """The entries of changes, each as the last of its transaction.

        None if nothing changed that the shape shows. Changes that the kernel cannot encode are
        encoded here.
        """
        statuses, messages = self._texts.write(changes)
        offsets = [change[0] for change in changes]
        keys = [change[1][1] for change in changes]
        entries: list[ShapeEntry | None] = list(
            map(_NEW_ENTRY, zip(offsets, keys, statuses, messages, strict=True))
        )
        if min(statuses, default=_NEEDS_PYTHON + 1) <= _NEEDS_PYTHON:
            for index, status in enumerate(statuses):
                if status <= _NEEDS_PYTHON:
                    entries[index] = self._encode_entry(changes[index], status)
        return entries

    def _encode_entry(self, change: Change, status: int) -> ShapeEntry | None:
        message = self.encode(change) if status == _NEEDS_PYTHON else None
        if message is None:
            return None
        return ShapeEntry(change.offset, change.row_key.encoded, operation_of(change), message)

    def encode(self, change: Change) -> bytes | None:
        """The message of one change, last of its transaction; None if no shown column changed."""
        row, previous, key_columns = change.row, change.previous, change.key_columns
        old_value = b""
        if row is None:
            is_whole = self._is_full and previous is not None
            value = self._select(previous or {}, key_columns) if is_whole else key_columns
        elif previous is None:
            value = self._select(row, key_columns)
        else:
            changed = self._find_changed(row, previous)
            if not changed:
                return None
            value = {
                **(self._select(row, key_columns) if self._is_full else key_columns),
                **changed,
            }
            if self._is_full:
                old = {name: previous.get(name, NULL) for name in changed}
                old_value = b',"old_value":' + join_row(old)
        return b'{"key":%b,"value":%b%b%b%b' % (
            change.row_key.json,
            join_row(value),
            old_value,
            self._headers[operation_of(change)],
            ending(change.offset),
        )

    def _find_changed(self, row: Row, previous: Row) -> Row:
        """The shown columns that changed, those that were removed as null."""
        changed = {name: text for name, text in row.items() if previous.get(name) != text}
        changed |= dict.fromkeys(sorted(previous.keys() - row.keys()), NULL)
        return self._select(changed, ())

    def _select(self, row: Row, key_columns: Collection[str]) -> Row:
        """The columns of a row that the shape shows."""
        columns = self._columns
        if columns is None:
            return row
        return {name: text for name, text in row.items() if name in columns or name in key_columns}

    def snapshot_row(self, key: str, row: Row) -> bytes:
        """A row of a snapshot."""
        return b'{"key":%b,"value":%b%b}}' % (
            message_key(key),
            self._table_row(key, row),
            self._headers[INSERT],
        )

    def subset_row(self, key: str, row: Row, *, mark: int) -> bytes:
        """A row of the response to a subset request, with the mark of that response."""
        return b'{"key":%b,"value":%b%b,"snapshot_mark":%d}}' % (
            message_key(key),
            self._table_row(key, row),
            self._headers[INSERT],
            mark,
        )

    def _table_row(self, key: str, row: Row) -> bytes:
        if self._columns is None:
            return join_row(row)
        return join_row(self._select(row, self._key_columns(key, row)))

    def _key_columns(self, key: str, row: Row) -> Row:
        """The key columns of a row; raises Corrupt for a row that does not have its key."""
        columns: Row = {}
        for name, text in row.items():
            columns[name] = text
            if row_key(self._key_prefix, columns) == key:
                return columns
        raise Corrupt(f"a row under {key:.100} does not begin with the columns of that key")


def operation_of(change: Change) -> int:
    """The operation of a change for a shape that holds the row before and after it."""
    if change.text is None:
        return DELETE
    return INSERT if change.previous_text is None else UPDATE


def ending(offset: ShapeOffset) -> bytes:
    """The end of a message of the log: its offset, as the last of its transaction."""
    tx, op = offset
    return b',"lsn":"%d","op_position":%d,"txids":[%d%b' % (tx, op, tx, _LAST)


def without_last(message: bytes) -> bytes:
    """The message of a change that is not the last of its transaction."""
    return message.removesuffix(_LAST) + b"]}}"


def snapshot_end(position: ShapeOffset) -> bytes:
    """The last message of a snapshot that holds the topic up to and including a position."""
    seen = max(position.tx, 0) + 1
    return b'{"headers":{"control":"snapshot-end","xmin":"%d","xmax":"%d","xip_list":[]}}' % (
        seen,
        seen,
    )


def message_key(key: str) -> bytes:
    """The key of a row as a JSON string."""
    return encode_basestring(key).encode()
