"""Tables made on Spark: the command, and the rows read back by Spark, pyiceberg and DuckDB."""

import json
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

import varve
from tests.support.spark_session import spark as spark
from varve.cli.main import app
from varve.jobs.table.catalog import CatalogAddress
from varve.spark.functions import read_table

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def test_a_topic_is_a_table_for_every_reader(spark: SparkSession, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with varve.open(data, maintain=False) as store:
        topic = store.create_topic("orders", partitions=2)
        for number in range(300):
            value = json.dumps({"id": number, "who": f"p{number % 7}", "total": number / 4})
            topic.append(key=f"k{number % 50}", value=value)
        topic.append(key="k1", value=None)
        topic.append(key="k2", value="oops")
    table = ("job", "table", "orders", "--dir", data, "--format", "json")
    done = run(*table, "--to", "shop.orders", "--json")
    assert done.exit_code == 0, done.stderr
    told, report = map(json.loads, done.stdout.splitlines())
    assert (told["type"], told["records"], told["bad"], told["deleted"]) == ("table", 302, 1, 1)
    assert told["inferred"] == ["id long", "who string", "total double"]
    assert (report["type"], report["rows"]) == ("report", 302)
    state = run(*table, "--to", "shop.state", "--mode", "upsert", "--buckets", "2")
    assert state.exit_code == 0, state.stderr
    assert "1 record went to shop.state__bad" in state.stdout

    address = CatalogAddress(f"{data}.tables")
    frame = read_table(spark, address, "shop.orders")
    assert frame.where("NOT _deleted").count() == 300
    assert frame.where("who = 'p3'").agg({"total": "sum"}).first()[0] == sum(  # type: ignore[index]  # one row
        number / 4 for number in range(300) if number % 7 == 3
    )
    assert read_table(spark, address, "shop.state").select("_key").distinct().count() == 49
    assert read_table(spark, address, "shop.orders__bad").first().reason.startswith("not JSON")  # type: ignore[union-attr]  # one row

    rows = address.open().load_table("shop.orders").scan("id >= 290").to_arrow()
    assert sorted(rows["id"].to_pylist()) == list(range(290, 300))
    with duckdb.connect() as base:
        base.register("orders", rows)
        counted = base.execute("SELECT who, count(*) FROM orders GROUP BY who").fetchall()
    assert sum(count for _, count in counted) == 10
