"""A Spark session: embedded by default, on a cluster with another master.

Embedded it listens on loopback alone, shows no page and says nothing but errors.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from varve.jobs.java import get_java
from varve.jobs.source import register

LOCAL: Final = "local[*]"

_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_EMBEDDED: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",
}


def get_session(
    *, master: str | None = None, conf: Mapping[str, str] | None = None, app: str = "varve"
) -> SparkSession:
    """The session of this process, made if there is none; `conf` outranks what varve sets.

    Raises Unavailable where no Java is found.
    """
    if SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = get_java().home  # what Spark's own scripts look at first
    chosen = master or LOCAL
    is_embedded = chosen.startswith("local")
    if is_embedded:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Spark would take the python3 on PATH, which need not have varve.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.Builder().master(chosen).appName(app)
    for name, value in {**_ALWAYS, **(_EMBEDDED if is_embedded else {}), **(conf or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    if is_embedded:
        spark.sparkContext.setLogLevel("ERROR")
    return spark
