"""Rows of a Spark frame on standard output or in files: a table, JSON, CSV or Parquet.

Invariant  bytes are shown as text where they are UTF-8 and else as `base64:` and their base64;
           Parquet alone keeps them as they are.
"""

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

TABLE_ROWS: Final = 40
"""So many rows are shown where nobody says how many."""


class RowFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of a table, with the names and types of its columns."""

    columns: list[tuple[str, str]]
    rows: list[tuple[object, ...]]
    has_more: bool


def print_json(frame: "DataFrame") -> int:
    """A JSON object per row on standard output, as they come; gives how many there were."""
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    row = F.struct(*(F.col(_quoted(name)) for name in frame.columns))
    return _print_lines(frame.select(F.to_json(row, {"ignoreNullFields": "false"})))


def print_csv(frame: "DataFrame") -> int:
    """A line of names, then a line per row."""
    from pyspark.sql import functions as F  # noqa: N812

    csv.writer(sys.stdout, lineterminator="\n").writerow(frame.columns)
    row = F.struct(*(F.col(_quoted(name)) for name in frame.columns))
    return _print_lines(frame.select(F.to_csv(row, {"escape": '"'})))


def collect_table(frame: "DataFrame", limit: int) -> RowTable:
    """The first rows, and one more where there are more."""
    from pyspark.sql import functions as F  # noqa: N812

    # Spark gives moments to Python in local time; as text they are in the session's, which is UTC.
    moments = {
        name: F.date_format(F.col(_quoted(name)), "yyyy-MM-dd HH:mm:ss.SSS")
        for name, kind in frame.dtypes
        if kind == "timestamp"
    }
    shown = frame.withColumns(moments) if moments else frame  # Spark Connect wants one at least
    rows = shown.limit(limit + 1).collect()
    return RowTable(frame.dtypes, [tuple(row) for row in rows[:limit]], len(rows) > limit)


def print_table(table: RowTable) -> None:
    """The rows below their names, and whether there are more."""
    from rich.table import Table
    from rich.text import Text

    from varve.cli.screen import make_console

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name, kind in table.columns:
        is_number = kind not in ("string", "timestamp")
        grid.add_column(
            Text(name),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number or name in ("topic", "timestamp"),
        )
    for row in table.rows:
        grid.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    console = make_console()
    console.print(grid)
    if table.has_more:
        console.print(f"... and more rows than the {len(table.rows)} that --limit allows")


def write_files(frame: "DataFrame", format: RowFormat, path: str) -> int:
    """A directory of files, written by the executors; raises where it is there already."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    seen = Observation()
    writer = frame.observe(seen, F.count(F.lit(1)).alias("rows")).write.mode("error")
    if format is RowFormat.CSV:
        writer = writer.option("header", True).option("escape", '"')
    writer.format(format.value).save(path)
    return int(seen.get["rows"])


def with_text(frame: "DataFrame", *, flat: bool) -> "DataFrame":
    """All bytes in it as text; where it must be flat, nested columns are JSON."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, MapType, StructType

    columns = []
    for field in frame.schema.fields:
        column = _as_text(F.col(_quoted(field.name)), field.dataType)
        if flat and isinstance(field.dataType, (ArrayType, MapType, StructType)):
            column = F.to_json(column)
        columns.append(column.alias(field.name))
    return frame.select(*columns)


def _as_text(column: "Column", kind: "DataType") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, BinaryType, StructType

    if isinstance(kind, BinaryType):
        text = F.try_validate_utf8(column.cast("string"))
        return F.coalesce(text, F.concat(F.lit("base64:"), F.base64(column)))
    if isinstance(kind, ArrayType):
        return F.transform(column, _converter(kind.elementType))
    if isinstance(kind, StructType):
        fields = [
            _as_text(column.getField(field.name), field.dataType).alias(field.name)
            for field in kind.fields
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    return column


def _converter(kind: "DataType") -> "Callable[[Column], Column]":
    def convert(element: "Column") -> "Column":
        return _as_text(element, kind)

    return convert


def _print_lines(frame: "DataFrame") -> int:
    count = 0
    for (line,) in frame.toLocalIterator(prefetchPartitions=True):
        sys.stdout.write(f"{line}\n")
        count += 1
    sys.stdout.flush()
    return count


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
