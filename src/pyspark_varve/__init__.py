"""Makes `format("varve")` known to every Spark that has varve installed, without `register()`.

Spark imports each top-level module whose name starts with `pyspark_`, for every Python data source
of every session, and an error here would break them all: so nothing but pyspark is imported before
a topic is read or written.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from varve.spark.data_source import VarveDataSource


class DefaultSource(DataSource):
    """The data source `varve`, loaded when it is used."""

    @classmethod
    def name(cls) -> str:
        return "varve"

    def schema(self) -> StructType:
        return self._load().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._load().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return self._load().streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._load().writer(schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return self._load().streamWriter(schema, overwrite)

    def _load(self) -> "VarveDataSource":
        from varve.spark.data_source import VarveDataSource

        return VarveDataSource(self.options)
