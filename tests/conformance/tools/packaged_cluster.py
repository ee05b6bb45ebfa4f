"""A driver on a cluster of one worker whose Python has no varve but the one of the package.

Run as a program with a log directory and an archive; prints what it found as a JSON object.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pyspark

import varve
from varve.commit_log import LogSettings
from varve.foundation.errors import StoreError
from varve.jobs.compact.job import compact
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.tier.bucket import Bucket
from varve.spark.package import PACKAGE_KEY
from varve.spark.runner import SparkRunner
from varve.spark.session import get_session
from varve.spark.stages import get_step_log


@dataclass(frozen=True)
class _Foreign:
    """A task whose class no executor can import."""

    def run(self, shared: None) -> object:
        return 0


def environment(home: Path) -> dict[str, str]:
    """For the process of the driver: its executors get the Python below the virtual environment.

    `home` becomes the home of Spark, in which workers work.
    """
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        if path.name in ("bin", "jars", "python", "sbin"):
            (home / path.name).symlink_to(path)
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PYSPARK_PYTHON": os.path.realpath(sys.executable),
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _main(data: str, archive: str) -> dict[str, object]:
    spark = get_session(
        master="local-cluster[1,2,1024]",
        conf={
            PACKAGE_KEY: archive,
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    runner = SparkRunner(spark)
    tier = json.loads(Path(data, "varve-tier.json").read_text())
    address = Bucket(tier["url"])
    settings = CompactSettings(log=LogSettings(cleanup_policy=("compact",)), is_forced=True)
    (partition,) = compact(address, ["state"], settings=settings, runner=runner).partitions
    rows = spark.read.format("varve").options(url=address.url, topic="state").load()
    found: dict[str, object] = {
        "error": partition.error,
        "superseded": partition.to_json()["records"],
        "steps": [(one.name, one.store.read_bytes) for one in get_step_log(spark).steps()],
        "rows": sorted(row["offset"] for row in rows.select("offset").collect()),
        "where": spark.sparkContext.parallelize([0], 1).map(_find_varve).collect()[0],
    }
    try:
        runner.run("foreign", [_Foreign()])
    except StoreError as error:
        found["refused"] = [type(error).__name__, str(error)]
    spark.stop()
    return found


def _find_varve(_: int) -> str:
    return varve.__file__


if __name__ == "__main__":
    print(json.dumps(_main(*sys.argv[1:])))
