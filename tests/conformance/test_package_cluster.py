"""What `varve job package` makes is all that executors of another process need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import varve
from tests.conformance.tools import packaged_cluster
from varve.cli.main import app
from varve.foundation.settings import GivenValue

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

TOPIC: dict[str, GivenValue] = {
    "remote.storage.enable": True,
    "cleanup.policy": "compact",
    "segment.bytes": 4096,
}


def test_executors_without_varve_run_a_job_from_a_package(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    archive = str(tmp_path / "env.tar")
    with varve.open(data, maintain=False) as store:
        topic = store.create_topic("state", settings=TOPIC)
        for number in range(400):
            topic.append(key=f"k{number % 10}", value=f"value {number}")
    assert CliRunner().invoke(app, ["tier", "copy", "-d", data, "--roll"]).exit_code == 0
    made = CliRunner().invoke(app, ["job", "package", "--output", archive, "--json"])
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["conf"]["spark.archives"] == f"{archive}#varve-env"
    ran = subprocess.run(
        [sys.executable, packaged_cluster.__file__, data, archive],
        env=packaged_cluster.environment(tmp_path / "spark"),
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["error"] is None
    assert "/varve-env/varve/" in found["where"]
    assert found["superseded"]["superseded"] > 300
    assert found["rows"][-1] == 399
    assert len(found["rows"]) < 100
    assert all(read > 0 for _, read in found["steps"]), found["steps"]
    kind, message = found["refused"]
    assert kind == "VersionMismatch"
    assert "varve job package" in message
