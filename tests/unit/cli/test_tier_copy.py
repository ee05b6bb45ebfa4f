"""`varve tier copy` and `varve tier status`."""

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import varve
from varve.cli.main import app
from varve.cli.output import Progress
from varve.commit_log import TopicPartition
from varve.foundation.errors import StoreUnavailable
from varve.tiering.tier import Tier


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
    found = run("copy", "-d", str(place / "data"), "--store", url, "--roll", "--json")
    assert found.exit_code == 0, found.output
    (report,) = [json.loads(line) for line in found.stdout.splitlines()]
    assert report["partition"] == "orders-0"
    assert (report["copied_offset"], report["segments"], report["error"]) == (20, 1, None)
    again = run("copy", "-d", str(place / "data"), "--store", url)
    assert "nothing to copy; copied up to offset 20" in again.stdout
    status = run("status", "-d", str(place / "data"), "--store", url, "--json")
    rows = {row["topic"]: row for row in map(json.loads, status.stdout.splitlines())}
    assert rows["orders"]["remote_segments"] == 1
    assert rows["orders"]["copying"] is True
    assert rows["local"]["remote_segments"] is None
    assert rows["local"]["tiered"] is False


def test_a_named_topic_that_is_not_tiered_is_refused_with_the_remedy(place: Path) -> None:
    found = run("copy", "-d", str(place / "data"), "local", "--store", f"file:{place / 'bucket'}")
    assert found.exit_code == 1
    assert "remote.storage.enable=true" in found.stderr.replace("\n", "")


def test_where_copying_rests_the_remedy_names_what_makes_it_rest(place: Path) -> None:
    with varve.open(place / "data", maintain=False) as store:
        store.alter_topic("orders", {"remote.log.copy.disable": True})
    found = run("copy", "-d", str(place / "data"))
    assert "remote.log.copy.disable=false" in found.stderr.replace("\n", "")


def test_a_wrong_url_is_refused_even_if_there_is_nothing_to_copy(place: Path) -> None:
    with varve.open(place / "data", maintain=False) as store:
        store.alter_topic("orders", {"remote.log.copy.disable": True})
    found = run("copy", "-d", str(place / "data"), "--store", "bogus://x")
    assert found.exit_code == 1
    assert "bogus" in found.stderr


def test_a_store_to_which_nothing_was_copied_is_not_remembered_and_said_so(place: Path) -> None:
    url = f"file:{place / 'bucket'}"
    found = run("copy", "-d", str(place / "data"), "--store", url)
    assert "the directory will remember --store when one is" in found.stderr
    copied = run("copy", "-d", str(place / "data"), "--store", url, "--roll")
    assert (copied.exit_code, copied.stderr) == (0, "")


def test_the_rate_is_a_size(place: Path) -> None:
    rate = ("--max-bytes-per-second", "100MB")
    assert run("copy", "-d", str(place / "data"), "--roll", *rate).exit_code == 0
    assert run("copy", "-d", str(place / "data"), "--max-bytes-per-second", "0").exit_code == 2


def test_an_interrupted_copy_leaves_all_to_be_resumed_and_exits_with_130(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: Progress, title: str, done_bytes: int, total_bytes: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "show", interrupt)
        stopped = run("copy", "-d", str(place / "data"), "--roll")
    assert stopped.exit_code == 130
    assert "stopped; what is copied stays, run it again to continue" in stopped.stderr
    again = run("copy", "-d", str(place / "data"), "--json")
    assert json.loads(again.stdout)["copied_offset"] == 20
    assert run("fsck", "--dir", str(place / "data"), "--deep").exit_code == 0


def test_a_topic_that_cannot_be_asked_for_shows_its_local_side(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fail(tier: Tier, partition: TopicPartition) -> None:
        asked.append(str(partition))
        raise StoreUnavailable("the bucket is out of reach")

    assert run("copy", "-d", str(place / "data"), "--roll").exit_code == 0
    with varve.open(place / "data", maintain=False) as store:
        store.create_topic("zebra", settings={"remote.storage.enable": True})
    monkeypatch.setattr(Tier, "status", fail)
    found = run("status", "-d", str(place / "data"), "--json")
    assert found.exit_code == 1
    rows = {row["topic"]: row for row in map(json.loads, found.stdout.splitlines())}
    assert rows["orders"]["local_bytes"] > 0
    assert rows["orders"]["remote_bytes"] is None
    assert rows["orders"]["errors"] == {"orders-0": "the bucket is out of reach"}
    assert rows["zebra"]["errors"] == {"zebra-0": "the bucket is out of reach"}
    assert rows["local"]["errors"] == {}
    assert asked == ["orders-0"]
    shown = run("status", "-d", str(place / "data"))
    assert "the bucket is out of reach" in shown.stdout
    assert "2 of 3 topics have a remote tier" in shown.stdout
    assert shown.exit_code == 1
