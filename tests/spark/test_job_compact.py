"""`varve job compact` in a session: the tier before and after, told and reported."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import varve
from tests.support.spark_session import spark as spark
from varve.cli.main import app
from varve.foundation.settings import GivenValue

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("spark"),
]

TOPIC: dict[str, GivenValue] = {
    "remote.storage.enable": True,
    "cleanup.policy": "compact",
    "segment.bytes": 4096,
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def test_what_is_superseded_goes_and_a_second_run_finds_nothing(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with varve.open(data, maintain=False) as store:
        topic = store.create_topic("state", settings=TOPIC)
        for number in range(400):
            topic.append(key=f"k{number % 10}", value=f"value {number}")
    assert run("tier", "copy", "-d", data, "--roll").exit_code == 0
    done = run("job", "compact", "--dir", data, "--json", "--report", str(tmp_path / "report"))
    assert done.exit_code == 0, done.stderr
    partition, report = map(json.loads, done.stdout.splitlines())
    assert (partition["type"], partition["topic"], report["type"]) == (
        "partition",
        "state",
        "report",
    )
    assert partition["segments_after"] < partition["segments_before"]
    assert partition["bytes_after"] < partition["bytes_before"] / 4
    assert partition["records"]["superseded"] > 300
    assert json.loads((tmp_path / "report").read_text())["job"] == "compact"
    assert [step["name"] for step in report["steps"]] == ["index", "plan", "segments", "rewrite"]
    assert report["store"]["written_bytes"] > 0
    assert run("tier", "fsck", "--dir", data, "--deep").exit_code == 0
    again = run("job", "compact", "--dir", data)
    assert again.exit_code == 0, again.stderr
    assert "removed" not in again.stdout
    with varve.open(data, maintain=False) as store:
        found = store.topic("state").get("k7")
        assert found is not None
        assert (found.offset, found.value) == (397, b"value 397")
