"""Spark's own Kafka source and sink, fetched once, and a program that runs them.

    python -m tests.conformance.tools.spark_connector ADDRESS NAME JAR...

reads and writes topics of that server in every way the connector has and prints what it found as
JSON. It is a process of its own, since jars are given to a Java when it starts.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final

from tests.conformance.tools.toolchain import fetch_jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Neither of Spark's own could be had for the installed Spark; these are the newest that could.
ARTIFACTS: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
RUN_SECONDS: Final = 480
STREAM_SECONDS: Final = 120


class ConnectorFailed(Exception):
    """The program ended badly; the message is the end of what it said."""


def run_connector(address: str, name: str) -> dict[str, Any]:
    """What the program found; raises ToolchainMissing where the connector is not to be had."""
    jars = sorted(fetch_jars(*ARTIFACTS).glob("*.jar"))
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__, address, name, *map(str, jars)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectorFailed(f"no end after {RUN_SECONDS} s") from error
    if done.returncode != 0:
        raise ConnectorFailed(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(address: str, name: str, jars: list[str]) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(jars))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as checkpoints:
        found = _Connector(spark, address, checkpoints).run(name)
    spark.stop()
    print(json.dumps(found))


class _Connector:
    """A source and a sink on one server."""

    def __init__(self, spark: "SparkSession", address: str, checkpoints: str) -> None:
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": address}
        self._checkpoints = checkpoints

    def run(self, name: str) -> dict[str, Any]:
        """`<name>-mixed` has committed and aborted records; the other topics are made here."""
        numbers = self._spark.range(100).selectExpr(
            "cast(id as string) as key",
            "concat('value ', id) as value",
            "array(named_struct('key', 'id', 'value', cast(cast(id as string) as binary))) "
            "as headers",
        )
        numbers.write.format("kafka").options(**self._options, topic=name).save()
        found: dict[str, Any] = {
            "batch": self._values(name),
            "headers": self._read(name, includeHeaders="true")
            .selectExpr("headers[0].value")
            .distinct()
            .count(),
            "range": self._read(
                name,
                startingOffsets=json.dumps({name: {"0": 10}}),
                endingOffsets=json.dumps({name: {"0": 25}}),
            ).count(),
            "by_time": self._read(name, startingTimestamp="1").count(),
        }
        for isolation in ("read_committed", "read_uncommitted"):
            mixed = self._values(f"{name}-mixed", **{"kafka.isolation.level": isolation})
            found[isolation] = mixed
        found["first_stream"] = self._copy(name, f"{name}-copy")
        numbers.limit(10).write.format("kafka").options(**self._options, topic=name).save()
        found["second_stream"] = self._copy(name, f"{name}-copy")
        return found

    def _read(self, topic: str, **options: str) -> "DataFrame":
        given = {**self._options, "subscribe": topic, **options}
        return self._spark.read.format("kafka").options(**given).load()

    def _values(self, topic: str, **options: str) -> list[str]:
        rows = self._read(topic, **options).selectExpr("cast(value as string) as value").collect()
        return sorted(row["value"] for row in rows)

    def _copy(self, source: str, sink: str) -> int:
        """Streams what is there and was not copied before; gives how much the sink has then."""
        stream = (
            self._spark.readStream.format("kafka")
            .options(**self._options, subscribe=source, startingOffsets="earliest")
            .option("kafka.isolation.level", "read_committed")
            .option("maxOffsetsPerTrigger", "30")
            .load()
            .select("key", "value")
            .writeStream.format("kafka")
            .options(**self._options, topic=sink, checkpointLocation=self._checkpoints)
            .trigger(availableNow=True)
            .start()
        )
        if not stream.awaitTermination(STREAM_SECONDS):
            stream.stop()
            raise ConnectorFailed(f"a stream was not done after {STREAM_SECONDS} s")
        return self._read(sink).count()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
