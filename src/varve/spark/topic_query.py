"""A read of a topic as rows, checked before Spark starts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from varve.foundation.clock import SystemClock
from varve.foundation.position import PositionKind, ReadPosition, parse_position
from varve.foundation.topic_records import check_list
from varve.jobs.data_source_options import OptionUse
from varve.jobs.source.options import (
    Mode,
    SourceFilters,
    SourceOptions,
    check_partitions,
    parse_options,
)
from varve.jobs.source.plan import estimate
from varve.jobs.source.topic_source import open_partitions
from varve.jobs.tier.location import TopicLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AtPosition = str | int | Mapping[int, int] | ReadPosition

_STANDARD: Final = frozenset(
    ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQuery:
    """The options of the data source, and filters on partition and key."""

    options: Mapping[str, str]
    source: SourceOptions
    partition: int | None = None
    key: bytes | None = None

    def check(self) -> None:
        """Raises NotFound for a topic or partition that is not there."""
        numbers = [source.number for source in open_partitions(self.source)]
        named = [] if self.partition is None else [self.partition]
        check_partitions(self.source.topic, named, numbers)

    def estimate(self) -> Any:
        """What the read takes at most; raises NotFound as `check` does."""
        self.check()
        filters = SourceFilters(
            partitions=None if self.partition is None else frozenset([self.partition]),
            keys=None if self.key is None else frozenset([self.key]),
        )
        return estimate(self.source, filters)

    def open(self, spark: "SparkSession", *, pushes: bool = False) -> "DataFrame":
        """The rows; `pushes` is for a frame that is used in one query only."""
        from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

        options = {**self.options, "pushFilters": str(pushes).lower()}
        frame = spark.read.format("varve").options(**options).load()
        if self.partition is not None:
            frame = frame.where(F.col("partition") == self.partition)
        if self.key is not None:
            frame = frame.where(F.col("key") == F.lit(self.key))
        return frame


def plan_query(
    location: TopicLocation,
    topic: str,
    *,
    start: AtPosition | None = None,
    end: AtPosition | None = None,
    latest: bool = False,
    partition: int | None = None,
    key: str | bytes | None = None,
    columns: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> TopicQuery:
    """Raises InvalidRequest for a wrong position or option."""
    extra = [name for name in check_list(columns, str, what="columns") if name not in _STANDARD]
    read = {
        "topic": topic,
        **location.options(),
        **position_options("starting", start),
        **position_options("ending", end),
        **({"mode": str(Mode.LATEST)} if latest else {}),
        **({"columns": ",".join(extra)} if extra else {}),
        **(options or {}),
    }
    return TopicQuery(
        options=read,
        source=parse_options(read, OptionUse.BATCH),
        partition=partition,
        key=key.encode() if isinstance(key, str) else key,
    )


def query(
    spark: "SparkSession",
    location: TopicLocation,
    topic: str,
    *,
    start: AtPosition | None = None,
    end: AtPosition | None = None,
    latest: bool = False,
    partition: int | None = None,
    key: str | bytes | None = None,
    columns: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """A topic as rows: from `start` to before `end`, or the latest record of each key.

    A position is an offset, a time such as `2026-03-01`, `-10m`, or an offset by partition.
    `columns` selects columns; `options` are further options of the data source.
    """
    planned = plan_query(
        location,
        topic,
        start=start,
        end=end,
        latest=latest,
        partition=partition,
        key=key,
        columns=columns,
        options=options,
    )
    planned.check()
    frame = planned.open(spark)
    return frame.select(*columns) if columns else frame


def position_options(side: str, at: AtPosition | None) -> dict[str, str]:
    """The option of the data source for a position at the start or end of a read."""
    if at is None:
        return {}
    if isinstance(at, Mapping):
        return {f"{side}Offset": json.dumps(at)}
    position = at if isinstance(at, ReadPosition) else parse_position(str(at), SystemClock())
    match position.kind:
        case PositionKind.BEGINNING:
            return {f"{side}Offset": "earliest"}
        case PositionKind.END:
            return {f"{side}Offset": "latest"}
        case PositionKind.OFFSET:
            return {f"{side}Offset": str(position.number)}
        case PositionKind.TIME:
            return {f"{side}Timestamp": str(position.number)}
