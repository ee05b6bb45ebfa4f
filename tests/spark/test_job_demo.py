"""`varve job demo`: every step, compared with the changes that were written."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.spark_session import spark as spark
from varve.cli.job_demo import ERASED_KEY, Customers
from varve.cli.main import app

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("spark"),
]


def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    directory = str(tmp_path / "story")
    arguments = ["job", "demo", "--dir", directory, "--records", "20000", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    lines = list(map(json.loads, done.stdout.splitlines()))
    steps = {line["step"]: line for line in lines}
    customers = Customers(20_000)
    assert len(list(customers.changes)) == 20_000
    assert steps["table"]["rows"] == len(customers.state)
    assert steps["bootstrap"]["replayed"] > 0
    assert steps["compact"]["bytes_after"] < steps["compact"]["bytes_before"]
    assert steps["erase"]["records"] > 0
    assert steps["erase"]["left"] == 0
    assert steps["verify"]["verified_bytes"] > 0
    assert ERASED_KEY not in Path(f"{directory}.receipt.html").read_text()
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 1
    assert "exists already" in again.stderr
