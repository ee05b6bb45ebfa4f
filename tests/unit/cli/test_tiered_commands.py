"""The commands on a directory whose topics are in the cold tier."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import varve
from varve.cli.main import app
from varve.foundation.settings import GivenValue

TIERED: dict[str, GivenValue] = {
    "remote.storage.enable": True,
    "segment.bytes": 1000,
    "local.retention.bytes": 2000,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything is copied, nothing has left the local disk, and half of `orders` may expire."""
    place = tmp_path_factory.mktemp("made")
    with varve.open(place / "data", maintain=False) as store:
        orders = store.create_topic("orders", settings={**TIERED, "retention.bytes": 4000})
        scores = store.create_topic("scores", settings={**TIERED, "cleanup.policy": "compact"})
        store.create_topic("plain").append(value="a")
        for number in range(60):
            orders.append(value=f"{number:080}")
            scores.append(key=f"k{number}", value=f"{number:080}")
        for one in store.partitions():
            if store.topic(one.topic).settings.copies_to_tier:
                assert store.tier.copy(one, 0).error is None
    return place


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A copy to be changed, with a cold tier of its own."""
    shutil.copytree(made, tmp_path / "made")
    path = tmp_path / "made" / "data"
    place = json.loads((path / "varve-tier.json").read_text())
    place["url"] = f"file:{path}.cold"
    (path / "varve-tier.json").write_text(json.dumps(place))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_clean_foresees_and_tells_what_leaves_the_local_disk_and_what_expires(data: Path) -> None:
    (foreseen,) = lines(run("clean", data, "orders", "--dry-run", "--json"))
    text = run("clean", data, "orders", "--dry-run").stdout
    (done,) = lines(run("clean", data, "orders", "--json"))
    assert foreseen == {**done, "dry_run": True}
    tier = done["tier"]
    assert tier["moved"][0]["base_offset"] == tier["expired"][0]["base_offset"] == 0
    assert "local.retention" in tier["moved"][0]["rule"]
    assert tier["expired"][0]["reason"] == "beyond retention.bytes"
    assert "would be let go by the local disk" in text
    assert "of the cold tier would be expired" in text
    with varve.open(data, maintain=False) as store:
        offsets = store.topic("orders").partition(0).offsets()
    assert offsets.log_start == tier["expired"][-1]["next_offset"]
    assert offsets.local_start == tier["moved"][-1]["next_offset"]
    assert (done["expiry"], lines(run("clean", data, "plain", "--json"))[0]["tier"]) == (None, None)
