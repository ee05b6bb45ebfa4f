"""One Spark session for all tests of a run that need one; it starts in about eight seconds."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tests.support.spark_python import forked_python
from varve.spark.session import get_session, has_running_context

_PORT = "spark.connect.grpc.binding.port"
_OF_SHORT_LIFE = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""The second compiler of Java, and checks of classes, cost more than they give back in one run."""

SMALL_QUERIES: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Each query of the tests runs once on few rows: to compile it costs more than to interpret it."""


@contextmanager
def python_of_spark(program: str) -> Iterator[None]:
    """Has a session that starts inside take the program for Python."""
    before = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = program
    try:
        yield
    finally:
        os.environ["PYSPARK_PYTHON"] = before or sys.executable


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Embedded on two cores, quiet, on loopback alone; it serves Spark Connect as well."""
    if has_running_context():  # pytest sets the fixture up again for every file that imports it
        yield get_session()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with forked_python(tmp_path_factory.mktemp("python")) as program:
        with python_of_spark(program):
            session = get_session(
                master="local[2]",
                conf={
                    "spark.driver.extraJavaOptions": _OF_SHORT_LIFE,
                    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
                    "spark.connect.grpc.binding.address": "127.0.0.1",
                    _PORT: str(port),
                    **SMALL_QUERIES,
                },
            )
        yield session
        session.stop()


def connect_url(spark: SparkSession) -> str:
    """Where the session serves Spark Connect."""
    return f"sc://127.0.0.1:{spark.sparkContext.getConf().get(_PORT)}"
