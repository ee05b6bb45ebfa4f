"""The commands while the store of the cold tier does not answer: what they say, and change not."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import varve


def run(*arguments: object) -> Result:
    from varve.cli.main import app

    return CliRunner().invoke(app, [str(one) for one in arguments])


class Tier:
    """The tier of a directory, which a plain file in its place makes unavailable."""

    def __init__(self, place: Path) -> None:
        self.data = place / "data"
        self._path, self._away = place / "data.cold", place / "away"

    def go_down(self) -> None:
        self._path.rename(self._away)
        self._path.write_text("")

    def come_up(self) -> None:
        self._path.unlink()
        self._away.rename(self._path)


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Topic `t` is copied, all but its last segment, which is closed."""
    with varve.open(tmp_path / "data", maintain=False) as store:
        topic = store.create_topic("t", settings={"remote.storage.enable": True})
        for value in ("one", "two"):
            topic.append(value=value)
            topic.partition(0).log.roll()
            if value == "one":
                store.run_once()
    return Tier(tmp_path)


def test_a_deletion_that_fails_changes_nothing(tier: Tier) -> None:
    tier.go_down()
    asked = run("log", "delete", "t", "--dir", tier.data)
    assert "all that is in the cold tier, which cannot be asked now" in asked.stderr
    found = run("log", "delete", "t", "--dir", tier.data, "--yes")
    assert found.exit_code == 1
    assert "half deleted" not in found.stderr
    assert run("log", "read", "t", "--dir", tier.data).stdout == "one\ntwo\n"
    tier.come_up()
    assert run("log", "read", "t", "--dir", tier.data).stdout == "one\ntwo\n"


def test_a_deletion_asks_with_the_bytes_of_both_tiers(tier: Tier) -> None:
    asked = run("log", "delete", "t", "--dir", tier.data)
    words = " ".join(asked.stderr.split())
    assert "with 142 bytes of records on the local disk and 71 in the cold tier" in words
    done = run("log", "delete", "t", "--dir", tier.data, "--yes")
    assert "deleted t with 142 bytes of records on the local disk and 71 in" in done.stdout


def test_a_topic_that_is_half_deleted_is_told_of(tier: Tier) -> None:
    table = tier.data / "varve-topics.json"
    content = json.loads(table.read_text())
    content["topics"]["t"]["state"] = "deleting"
    table.write_text(json.dumps(content))
    tier.go_down()
    for command in (("log", "topics", "--dir"), ("tier", "status")):
        shown = run(*command, tier.data)
        assert "t is out of service and half deleted" in shown.stderr
        assert "there are no topics" not in shown.stdout
    (row,) = map(json.loads, run("log", "topics", "--dir", tier.data, "--json").stdout.splitlines())
    assert (row["topic"], row["bytes"]) == ("t", None)
    again = run("log", "delete", "t", "--dir", tier.data, "--yes")
    assert again.exit_code == 1
    assert "a file is where a directory has to be" in again.stderr.replace("\n", " ")
    tier.come_up()
    assert run("log", "topics", "--dir", tier.data).stderr == ""
    assert "there is no topic" in run("log", "read", "t", "--dir", tier.data).stderr


def test_a_copy_that_fails_does_not_say_that_there_is_nothing_to_copy(tier: Tier) -> None:
    with varve.open(tier.data, maintain=False) as store:
        (manifest,) = tier.data.parent.glob("data.cold/**/manifest/*2.json")
        damaged = manifest.read_bytes()
        assert store.tier
    manifest.write_bytes(b"{}")
    found = run("tier", "copy", tier.data)
    assert found.exit_code == 1
    assert "nothing was copied: it failed\n" in found.stdout
    assert "copied up to" not in found.stdout
    shown = json.loads(run("tier", "copy", tier.data, "--json").stdout)
    assert (shown["copied_offset"], shown["segments"]) == (None, 0)
    manifest.write_bytes(damaged)
    assert "1 segment copied" in run("tier", "copy", tier.data).stdout


def test_a_forecast_that_cannot_be_made_does_not_say_that_there_are_no_topics(tier: Tier) -> None:
    tier.go_down()
    found = run("forecast", tier.data)
    assert found.exit_code == 1
    assert found.stdout == ""
    assert "t-0: " in found.stderr
