"""`varve tier copy` and `varve tier status`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import varve
from varve.cli.main import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tier", *arguments])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with varve.open(tmp_path / "data", maintain=False) as store:
        store.create_topic("orders", settings={"remote.storage.enable": True})
        store.create_topic("local")
        for name in ("orders", "local"):
            for number in range(20):
                store.topic(name).append(value=f"value {number}")
    return tmp_path


def test_tiered_topics_are_copied_and_others_are_not(place: Path) -> None:
    url = f"file:{place / 'bucket'}"
    found = run("copy", str(place / "data"), "--store", url, "--roll", "--json")
    assert found.exit_code == 0, found.output
    (report,) = [json.loads(line) for line in found.stdout.splitlines()]
    assert report["partition"] == "orders-0"
    assert (report["copied_offset"], report["segments"], report["error"]) == (20, 1, None)
    again = run("copy", str(place / "data"), "--store", url)
    assert "nothing to copy; copied up to offset 20" in again.stdout
    status = run("status", str(place / "data"), "--store", url, "--json")
    rows = {row["topic"]: row for row in map(json.loads, status.stdout.splitlines())}
    assert rows["orders"]["cold_segments"] == 1
    assert rows["orders"]["copying"] is True
    assert rows["local"]["cold_segments"] is None
    assert rows["local"]["tiered"] is False


def test_a_named_topic_that_is_not_tiered_is_refused_with_the_remedy(place: Path) -> None:
    found = run("copy", str(place / "data"), "local", "--store", f"file:{place / 'bucket'}")
    assert found.exit_code == 1
    assert "remote.storage.enable=true" in found.stderr.replace("\n", "")
