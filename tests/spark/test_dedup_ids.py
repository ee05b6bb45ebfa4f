"""The processor and the Spark job find the same ids in JSON values."""

import pytest
from pyspark.sql import SparkSession

from tests.support.json_ids import FOUND, NOT_FOUND, NUMBERS
from tests.support.spark_session import spark as spark
from varve.dedup.ids import JsonField
from varve.dedup.rules import parse_id_source
from varve.spark.deduplication.deduplicate import make_id

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def test_fields_are_the_same_ids_to_both(spark: SparkSession) -> None:
    texts = [
        *(text for text, _ in FOUND),
        *(f'{{"a":{number}}}' for number, _ in NUMBERS),
        *NOT_FOUND,
        '{"a":{"b":7}}',
        '{"a":[{"b":7}]}',
        '{"a":{"c":1},"a":{"b":8}}',
    ]
    values = [text.encode() for text in texts] + [b'{"a":"\xff"}', b'{"a":"x","b":"\xff"}']
    rows = [(number, bytearray(value)) for number, value in enumerate(values)]
    frame = spark.createDataFrame(rows, "number int, value binary")
    for path in ("a", "a.b"):
        identity = make_id(parse_id_source(f"field:{path}"))
        told = frame.select("number", identity.alias("id")).orderBy("number").collect()
        theirs = [None if row["id"] is None else bytes(row["id"]) for row in told]
        assert [JsonField(path).find(value) for value in values] == theirs
