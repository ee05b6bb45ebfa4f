"""The data source `varve`: reads a topic as rows, and writes rows as records of a topic.

Remote segments are read from the object store, other records from a log directory or a server.

    spark.read.format("varve").option("url", "s3://bucket/prefix").option("topic", "orders").load()

Invariant  the driver plans from manifests and indexes; tasks read log data where it is stored.
           Filters are pushed down only with `pushFilters`: Spark reuses a plan with filters for
           later queries of the same DataFrame, also for queries without filters.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from varve.jobs.sink.target import parse_sink_options
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.options import Mode, SourceFilters, SourceOptions, learn_tier, parse_options
from varve.jobs.source.plan import plan_tasks
from varve.jobs.source.read import read_task
from varve.spark.columns import check_schema, make_schema
from varve.spark.executor import freeze_objects_once
from varve.spark.stream_reader import TaskPartition, VarveStreamReader
from varve.spark.writer import VarveStreamWriter, VarveWriter

FORMAT: Final = "varve"


class VarveDataSource(DataSource):
    """Created by Spark from the options of a read or a write."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return make_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> "VarveReader":
        options = learn_tier(parse_options(self.options))
        return (FilteringReader if options.pushes_filters else VarveReader)(options, schema)

    def streamReader(self, schema: StructType) -> VarveStreamReader:  # noqa: N802
        return VarveStreamReader(learn_tier(parse_options(self.options)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> VarveWriter:
        return VarveWriter(parse_sink_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> VarveStreamWriter:  # noqa: N802
        return VarveStreamWriter(parse_sink_options(self.options), schema, overwrite=overwrite)


class VarveReader(DataSourceReader):
    """A batch read: the driver plans it, tasks read the rows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._filters = SourceFilters()

    def partitions(self) -> Sequence[InputPartition]:
        planned = [TaskPartition(task) for task in plan_tasks(self._options, self._filters)]
        freeze_objects_once()
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TaskPartition):
            columns = ArrowColumns(self._schema.fieldNames())
            yield from read_task(partition.task, columns, self._options, self._filters)
            freeze_objects_once()


class FilteringReader(VarveReader):
    """A batch read that is narrowed by the filters of its query before it is planned."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Applies filters that narrow the read; yields those that Spark must evaluate again.

        A read of the latest state is narrowed by partition and key only.
        """
        for filter_ in filters:
            narrowed, is_exact = apply_filter(self._filters, filter_)
            if self._options.mode is Mode.LATEST and not narrowed.is_of_keys(self._filters):
                yield filter_
                continue
            self._filters = narrowed
            if not is_exact:
                yield filter_


def apply_filter(filters: SourceFilters, filter: Filter) -> tuple[SourceFilters, bool]:
    """The filters narrowed by another one, and whether Spark need not evaluate that again."""
    match filter:
        case EqualTo((name,), value) | EqualNullSafe((name,), value):
            return filters.take_values(name, [value])
        case In((name,), values):
            return filters.take_values(name, list(values))
        case GreaterThanOrEqual((name,), value):
            return filters.take_range(name, at_least=value)
        case GreaterThan((name,), value):
            return filters.take_range(name, above=value)
        case LessThanOrEqual((name,), value):
            return filters.take_range(name, at_most=value)
        case LessThan((name,), value):
            return filters.take_range(name, below=value)
        case _:
            return filters, False


def register(spark: SparkSession) -> None:
    """Registers the format `varve` in a session."""
    spark.dataSource.register(VarveDataSource)
