"""Records and tables on standard output: text for people, JSON lines for programs."""

import base64
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varve.embedded import StoredRecord

FormatRecord = Callable[["StoredRecord"], bytes]

NULL = b"null"


def text_format(key_separator: str | None, *, is_terminal: bool) -> FormatRecord:
    """The value, or key and value with a separator; bytes as they are but for a terminal."""
    mark = None if key_separator is None else key_separator.encode()

    def format(record: "StoredRecord") -> bytes:
        value = NULL if record.value is None else record.value
        if mark is not None:
            value = (NULL if record.key is None else record.key) + mark + value
        if is_terminal:
            value = value.decode(errors="backslashreplace").encode()
        return value + b"\n"

    return format


def json_format(record: "StoredRecord") -> bytes:
    """A line that `varve log append --json` takes back."""
    content: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": json_cell(record.key),
        "value": json_cell(record.value),
    }
    if record.headers:
        pairs = [(name, json_cell(value)) for name, value in record.headers]
        names = {name for name, _ in pairs}
        # An object cannot hold a name twice, a record can.
        content["headers"] = dict(pairs) if len(names) == len(pairs) else pairs
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def json_cell(data: bytes | None) -> str | dict[str, str] | None:
    """Text where the bytes are UTF-8, else base64 in a wrapper."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], *, as_json: bool) -> None:
    """Rows as a table, or as a JSON object each with the column names in snake case."""
    if as_json:
        names = [column.replace(" ", "_") for column in columns]
        for row in rows:
            print(json.dumps(dict(zip(names, row, strict=True))))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        is_number = bool(rows) and isinstance(rows[0][index], int)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_shown(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _shown(cell: object) -> str:
    if isinstance(cell, dict):
        return " ".join(f"{name}={value}" for name, value in cell.items())
    return "-" if cell is None else str(cell)
