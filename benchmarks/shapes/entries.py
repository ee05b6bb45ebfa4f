"""Entries like those of a feed: updates of some rows in turn, each a transaction."""

import json
from collections.abc import Sequence
from pathlib import Path

from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock
from varve.shapes.offset import ShapeOffset
from varve.shapes.settings import StorageSettings
from varve.shapes.storage.log_writer import UPDATE, ShapeEntry
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.shapes.storage.snapshot import SnapshotWriter

HANDLE = "benchmark-1"
TURN = 500
"""Entries of one turn of a feed."""


def make_entries(count: int, *, row_bytes: int, row_count: int) -> list[ShapeEntry]:
    """Updates with messages of about `row_bytes`, of `row_count` rows in turn."""
    entries = []
    for number in range(count):
        row = number % row_count
        key = f'"public"."items"/"{row}"'
        quoted = json.dumps(key)
        head = f'{{"key":{quoted},"value":{{"id":"{row}","n":{number},"text":"'
        tail = (
            '"},"headers":{"operation":"update","relation":["public","items"],'
            f'"lsn":"{number + 1}","op_position":0,"txids":[{number + 1}],"last":true}}}}'
        )
        filling = "x" * max(0, row_bytes - len(head) - len(tail))
        message = f"{head}{filling}{tail}".encode()
        entries.append(ShapeEntry(ShapeOffset(number + 1, 0), key.encode(), UPDATE, message))
    return entries


def create_storage(root: Path, settings: StorageSettings | None = None) -> ShapeStorage:
    """A new shape without rows in its snapshot."""
    storage = ShapeStorage.create(
        RealFileSystem(), str(root), HANDLE, settings or StorageSettings(), SystemClock()
    )
    SnapshotWriter(storage.snapshot).finish(b'{"headers":{"control":"snapshot-end"}}')
    return storage


def append_all(storage: ShapeStorage, entries: Sequence[ShapeEntry]) -> None:
    """As a feed does, a turn at a time; durable in the end."""
    for start in range(0, len(entries), TURN):
        storage.append(entries[start : start + TURN])
    storage.flush()
