"""`varve job demo`: every step of the story, each compared with the stream it began with."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.spark_session import spark as spark
from varve.cli.job_demo_stream import CustomerStream
from varve.cli.main import app

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("spark"),
]


def test_the_story_comes_to_its_end(tmp_path: Path) -> None:
    place = str(tmp_path / "story")
    arguments = ["job", "demo", "--dir", place, "--records", "20000", "--seed", "7", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    stream = CustomerStream(seed=7, count=20_000)
    for _ in stream.batches():
        pass
    assert facts["table"]["rows"] == len(stream.state())
    assert facts["bootstrap"]["replayed"] > 0
    assert facts["compaction"]["bytes_after"] < facts["compaction"]["bytes_before"]
    assert facts["erasure"]["records"] > 0
    assert facts["erasure"]["left"] == 0
    assert "customer-0000042" not in Path(f"{place}.receipt.html").read_text()
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 1
    assert "exists already" in again.stderr
