"""The commands while the store of the cold tier does not answer: what they say, and change not."""

import json
from pathlib import Path

import pytest

import varve
from tests.support.varve_command import run_varve as run


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
    asked = run("topic", "delete", "t", "--dir", tier.data, code=1)
    assert "its records in the object store, which does not respond now" in asked.stderr
    found = run("topic", "delete", "t", "--dir", tier.data, "--yes", code=1)
    assert "partly deleted" not in found.stderr
    assert run("consume", "t", "--dir", tier.data).stdout == "one\ntwo\n"
    tier.come_up()
    assert run("consume", "t", "--dir", tier.data).stdout == "one\ntwo\n"


def test_a_deletion_asks_with_the_bytes_of_both_tiers(tier: Tier) -> None:
    asked = run("topic", "delete", "t", "--dir", tier.data, code=1)
    sizes = "142 bytes of records on the local disk and 71 bytes in the object store"
    assert f"with {sizes}" in asked.told
    done = run("topic", "delete", "t", "--dir", tier.data, "--yes")
    assert f"deleted t with {sizes}" in done.shown


def test_a_topic_that_is_half_deleted_is_told_of(tier: Tier) -> None:
    table = tier.data / "varve-topics.json"
    content = json.loads(table.read_text())
    content["topics"]["t"]["state"] = "deleting"
    table.write_text(json.dumps(content))
    tier.go_down()
    for command in (("topic", "list", "--dir"), ("tier", "status", "--dir")):
        shown = run(*command, tier.data)
        assert "t is partly deleted and out of service" in shown.stderr
        assert "there are no topics" not in shown.stdout
    (row,) = run("topic", "list", "--dir", tier.data, "--json").rows
    assert (row["topic"], row["bytes"]) == ("t", None)
    again = run("topic", "delete", "t", "--dir", tier.data, "--yes", code=1)
    assert "a file is where a directory has to be" in again.told
    tier.come_up()
    assert run("topic", "list", "--dir", tier.data).stderr == ""
    assert "there is no topic" in run("consume", "t", "--dir", tier.data, code=1).stderr


def test_a_copy_that_fails_does_not_say_that_there_is_nothing_to_copy(tier: Tier) -> None:
    with varve.open(tier.data, maintain=False) as store:
        (manifest,) = tier.data.parent.glob("data.cold/**/manifest/*2.json")
        damaged = manifest.read_bytes()
        assert store.tier
    manifest.write_bytes(b"{}")
    found = run("tier", "copy", "-d", tier.data, code=1)
    assert "nothing was copied: it failed\n" in found.stdout
    assert "copied up to" not in found.stdout
    (shown,) = run("tier", "copy", "-d", tier.data, "--json", code=1).rows
    assert (shown["copied_offset"], shown["segments"]) == (None, 0)
    manifest.write_bytes(damaged)
    assert "1 segment copied" in run("tier", "copy", "-d", tier.data).stdout


def test_a_forecast_that_cannot_be_made_does_not_say_that_there_are_no_topics(tier: Tier) -> None:
    tier.go_down()
    found = run("forecast", "-d", tier.data, code=1)
    assert found.stdout == ""
    assert "t-0: " in found.stderr
