"""Rows of a query as text for people: a table, lines of JSON or CSV, or files.

Invariant  bytes become text where they are UTF-8 and else `base64:` and their base64; Parquet alone
           keeps them as they are.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from typing import Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

VIEW: Final = "records"
"""The name of the topic in SQL."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of a table, with the names and types of its columns."""

    columns: list[tuple[str, str]]
    rows: list[tuple[object, ...]]
    has_more: bool


def select_rows(
    frame: DataFrame, *, where: str | None = None, select: str = "*", sql: str | None = None
) -> DataFrame:
    """The rows that a condition leaves, by a selection or a statement over the view `records`."""
    if where is not None:
        # Not in the statement, which would parse `offset IN (1, 2)` as an OFFSET clause.
        frame = frame.where(where)
    frame.createOrReplaceTempView(VIEW)
    return frame.sparkSession.sql(sql or f"SELECT {select} FROM {VIEW}")


def json_lines(frame: DataFrame) -> Iterator[str]:
    """A JSON object per row, read partition by partition."""
    frame = with_text(frame, flat=False)
    return _lines(frame.select(F.to_json(_row_of(frame), {"ignoreNullFields": "false"})))


def csv_lines(frame: DataFrame) -> Iterator[str]:
    """A line of names, then a line per row."""
    frame = with_text(frame, flat=True)
    names = StringIO()
    csv.writer(names, lineterminator="").writerow(frame.columns)
    yield names.getvalue()
    yield from _lines(frame.select(F.to_csv(_row_of(frame), {"escape": '"'})))


def collect_table(frame: DataFrame, limit: int) -> RowTable:
    """The first rows, and whether there are more."""
    frame = with_text(frame, flat=True)
    # Spark converts timestamps to local time for Python; as text they are in the session's UTC.
    timestamps = {
        name: F.date_format(F.col(_quoted(name)), "yyyy-MM-dd HH:mm:ss.SSS")
        for name, kind in frame.dtypes
        if kind == "timestamp"
    }
    shown = (
        frame.withColumns(timestamps) if timestamps else frame
    )  # Spark Connect needs at least one
    rows = shown.limit(limit + 1).collect()
    return RowTable(frame.dtypes, [tuple(row) for row in rows[:limit]], len(rows) > limit)


def write_files(frame: DataFrame, format: str, path: str) -> int:
    """A directory of json, csv or parquet files, written by the executors; returns their rows.

    Raises where the directory exists already.
    """
    if format != "parquet":
        frame = with_text(frame, flat=format == "csv")
    observation = Observation()
    writer = frame.observe(observation, F.count(F.lit(1)).alias("rows")).write.mode("error")
    if format == "csv":
        writer = writer.option("header", True).option("escape", '"')
    writer.format(format).save(path)
    return int(observation.get["rows"])


def with_text(frame: DataFrame, *, flat: bool) -> DataFrame:
    """The frame with bytes as text; with `flat`, nested columns are JSON."""
    columns = []
    for field in frame.schema.fields:
        column = _as_text(F.col(_quoted(field.name)), field.dataType)
        if flat and isinstance(field.dataType, (ArrayType, MapType, StructType)):
            column = F.to_json(column)
        columns.append(column.alias(field.name))
    return frame.select(*columns)


def _as_text(column: Column, kind: DataType) -> Column:
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


def _converter(kind: DataType) -> Callable[[Column], Column]:
    # Spark inspects the signature: the function must have exactly one parameter.
    def convert(element: Column) -> Column:
        return _as_text(element, kind)

    return convert


def _row_of(frame: DataFrame) -> Column:
    return F.struct(*(F.col(_quoted(name)) for name in frame.columns))


def _lines(frame: DataFrame) -> Iterator[str]:
    return (line for (line,) in frame.toLocalIterator(prefetchPartitions=True))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
