"""Jobs over Spark Connect: from a process without Java, at a server that has varve."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import varve
from tests.support.spark_session import connect_url
from tests.support.spark_session import spark as spark
from varve.cli.main import app
from varve.foundation.settings import GivenValue

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.filterwarnings("ignore")]

TOPIC: dict[str, GivenValue] = {
    "remote.storage.enable": True,
    "cleanup.policy": "compact",
    "segment.bytes": 16_384,
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own: one process has sessions of one kind."""
    return subprocess.run(
        [sys.executable, "-m", "varve", "job", *arguments],
        env={**os.environ, "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_query_and_a_compaction_run_at_the_server(spark: SparkSession, tmp_path: Path) -> None:
    data, report = str(tmp_path / "data"), tmp_path / "report.json"
    with varve.open(data, maintain=False) as store:
        topic = store.create_topic("state", settings=TOPIC)
        for number in range(400):
            topic.append(key=f"k{number % 10}", value=f"value {number}")
    assert CliRunner().invoke(app, ["tier", "copy", "-d", data, "--roll"]).exit_code == 0
    place = ["--dir", data, "--master", connect_url(spark), "--json"]

    there = ["--conf", "spark.varve.hereBytes=0"]
    compacted = run("compact", *place, *there, "--report", str(report))
    assert compacted.returncode == 0, compacted.stderr
    partition = json.loads(compacted.stdout.splitlines()[0])
    assert partition["records"]["superseded"] > 300
    done = json.loads(report.read_text())
    assert {one["name"] for one in done["steps"]} >= {"plan", "rewrite"}
    assert done["store"]["read_bytes"] > 0
    assert done["tasks"] > 0
    assert done["stages"] == []
    assert "Spark Connect" in done["notes"][0]

    asked = run("query", "state", *place, "--where", "offset >= 398")
    assert asked.returncode == 0, asked.stderr
    *rows, _ = map(json.loads, asked.stdout.splitlines())
    assert {(row["offset"], row["value"]) for row in rows} == {
        (398, "value 398"),
        (399, "value 399"),
    }
