"""Iceberg's own Java reader finds in varve's tables what varve wrote."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.conformance.tools.toolchain import ToolchainMissing, fetch_jars
from tests.support.table_bench import TableBench
from varve.jobs.table.definition import TableMode, TableSettings, ValueFormat

ARTIFACT = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
PROGRAM = Path(__file__).with_name("ReadTable.java")

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def class_path() -> str:
    """Iceberg with all it needs but Hadoop, which Spark brings along."""
    try:
        jars = fetch_jars(ARTIFACT)
    except ToolchainMissing as missing:
        pytest.skip(f"not compared with Iceberg's own reader: {missing}")
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    return f"{jars}/*:{Path(spark.origin).parent}/jars/*"


def read(class_path: str, bench: TableBench, column: str, *, from_offset: int) -> list[list[str]]:
    """Partition, offset and a column of rows, in order."""
    place = bench.table().metadata_location
    program = ["java", "-cp", class_path, str(PROGRAM), place, column, str(from_offset)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("row ")]
    return sorted(rows, key=lambda row: (int(row[0]), int(row[1])))


@pytest.mark.parametrize("mode", list(TableMode))
def test_icebergs_reader_finds_the_same_rows(
    class_path: str, tmp_path: Path, mode: TableMode
) -> None:
    bench = TableBench(tmp_path, partitions=2)
    for number in range(3):
        pairs = [(f"k{n}", f'{{"id": {number * 100 + n}, "new": 1}}') for n in range(9)]
        bench.topic.put(*pairs, ("k1", None), partition=number % 2)
        bench.sync(
            TableSettings(
                mode=mode,
                format=ValueFormat.JSON,
                schema=None if number else '{"id": "long"}',
                is_adding_columns=number == 1,
            )
        )
    bench.expire_to(3)
    bench.sync()
    wanted = [
        [
            str(row["_partition"]),
            str(row["_offset"]),
            "null" if row["id"] is None else str(row["id"]),
        ]
        for row in bench.rows()
        if row["_offset"] >= 4
    ]
    assert len(wanted) > 10
    assert read(class_path, bench, "id", from_offset=4) == wanted
    bench.close()
