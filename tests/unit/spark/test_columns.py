"""The columns of a topic are the same to Spark and to Arrow."""

from pyspark.sql.pandas.types import to_arrow_schema

from varve.jobs.source.arrow_columns import ALL_COLUMNS, EXTRA_COLUMNS, arrow_schema
from varve.spark.columns import make_schema


def test_spark_and_arrow_agree_on_every_column() -> None:
    spark = to_arrow_schema(make_schema(list(EXTRA_COLUMNS)), timezone="UTC")
    assert spark.equals(arrow_schema(ALL_COLUMNS))
