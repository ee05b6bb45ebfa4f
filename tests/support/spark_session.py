"""One Spark session for all tests of a run that need one; it starts in about eight seconds."""

import socket
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from varve.spark.session import get_session

_PORT = "spark.connect.grpc.binding.port"
_OF_SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The second compiler of Java costs more than it gives back within one run of the tests."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Embedded on two cores, quiet, on loopback alone; it serves Spark Connect as well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    session = get_session(
        master="local[2]",
        conf={
            "spark.driver.extraJavaOptions": _OF_SHORT_LIFE,
            "spark.sql.shuffle.partitions": "2",
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            _PORT: str(port),
        },
    )
    yield session
    session.stop()


def connect_url(spark: SparkSession) -> str:
    """Where the session serves Spark Connect."""
    return f"sc://127.0.0.1:{spark.sparkContext.getConf().get(_PORT)}"
