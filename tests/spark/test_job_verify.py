"""`varve job verify` in a session: a whole tier, whose damage is told and drawn."""

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


def test_a_damaged_object_of_a_tier_is_named_and_nothing_else(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with varve.open(data, maintain=False) as store:
        for name in ("state", "plain"):
            policy = "compact" if name == "state" else "delete"
            topic = store.create_topic(name, settings={**TOPIC, "cleanup.policy": policy})
            for number in range(300):
                topic.append(key=f"k{number % 10}", value=f"value {number}")
    assert run("tier", "copy", "-d", data, "--roll").exit_code == 0
    log = sorted((tmp_path / "data.cold").rglob("*/log"))[1]
    log.write_bytes(log.read_bytes()[:-1] + b"~")
    page = tmp_path / "page.html"
    done = run("job", "verify", "--dir", data, "--json", "--page", str(page))
    assert done.exit_code == 1, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["type"] for one in lines] == ["partition", "partition", "finding", "report"]
    assert sum(one["records"] for one in lines[:2]) == 600
    assert lines[2]["rule"] == "object-checksum"
    assert lines[2]["where"].endswith("/log")
    assert lines[-1]["verified_bytes"] > 10_000
    assert "Damage was found" in page.read_text()
