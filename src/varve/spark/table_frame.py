"""A table read by Spark without Iceberg's own reader: the files of one snapshot as a frame.

Invariant  it is right for tables that varve keeps, which have no files of deletes; one that has is
           refused. Columns are found by name; ones that a file lacks are null.
"""

from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from varve.foundation.errors import InvalidRequest, NotFound
from varve.jobs.table.catalog import CatalogAddress, find_table, translate_catalog_errors


def read_table(
    spark: SparkSession, address: CatalogAddress, name: str, *, snapshot_id: int | None = None
) -> DataFrame:
    """The rows of a snapshot, by default the current one; Spark must reach the files itself."""
    catalog = address.open_existing()
    table = find_table(catalog, name)
    if table is None:
        raise NotFound(f"{address.place} has no table {name}")
    with translate_catalog_errors(f"table {name}"):
        scan = table.scan(snapshot_id=snapshot_id)
        schema = from_arrow_schema(schema_to_pyarrow(scan.projection(), include_field_ids=False))
        tasks = list(scan.plan_files())
    if any(task.delete_files for task in tasks):
        raise InvalidRequest(
            f"table {name} has files of deletes, written by another program: read it with "
            "Iceberg's own reader"
        )
    if not tasks:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(task.file.file_path for task in tasks))
