"""`varve tier copy`: what it copies, and what it tells, also of two copies of one directory."""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

import varve
from tests.support.varve_command import run_varve
from varve.cli.output import Progress
from varve.commit_log import TopicPartition
from varve.foundation.errors import StoreUnavailable
from varve.tiering.tier import Tier

run = partial(run_varve, "tier")


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
    (report,) = found.rows
    assert report["partition"] == "orders-0"
    assert (report["copied_offset"], report["segments"], report["error"]) == (20, 1, None)
    again = run("copy", "-d", str(place / "data"), "--store", url)
    assert "nothing to copy; copied up to offset 20" in again.stdout
    # The store that a directory remembers beats one of the environment.
    elsewhere = f"file:{place / 'elsewhere'}"
    status = run("status", "-d", str(place / "data"), "--json", VARVE_TIER_URL=elsewhere)
    rows = {row["topic"]: row for row in status.rows}
    assert rows["orders"]["remote_segments"] == 1
    assert rows["orders"]["copying"] is True
    assert rows["local"]["remote_segments"] is None
    assert rows["local"]["tiered"] is False


def test_a_named_topic_that_is_not_tiered_is_refused_with_the_remedy(place: Path) -> None:
    found = run(
        "copy", "-d", str(place / "data"), "local", "--store", f"file:{place / 'bucket'}", code=1
    )
    assert "remote.storage.enable=true" in found.told


def test_where_copying_rests_the_remedy_names_what_makes_it_rest(place: Path) -> None:
    with varve.open(place / "data", maintain=False) as store:
        store.alter_topic("orders", {"remote.log.copy.disable": True})
    found = run("copy", "-d", str(place / "data"))
    assert "remote.log.copy.disable=false" in found.told


def test_a_store_to_which_nothing_was_copied_is_not_remembered_and_said_so(place: Path) -> None:
    url = f"file:{place / 'bucket'}"
    found = run("copy", "-d", str(place / "data"), "--store", url)
    assert "the directory does not remember --store yet" in found.stderr
    copied = run("copy", "-d", str(place / "data"), "--store", url, "--roll")
    assert copied.stderr == ""


def test_an_interrupted_copy_leaves_all_to_be_resumed_and_exits_with_130(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: Progress, title: str, done_bytes: int, total_bytes: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "show", interrupt)
        stopped = run("copy", "-d", str(place / "data"), "--roll", code=130)
    assert "stopped; what is copied stays, run it again to continue" in stopped.stderr
    again = run("copy", "-d", str(place / "data"), "--json")
    assert json.loads(again.stdout)["copied_offset"] == 20
    run("fsck", "--dir", str(place / "data"), "--deep")


def test_a_topic_that_cannot_be_asked_for_shows_its_local_side(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fail(tier: Tier, partition: TopicPartition) -> None:
        asked.append(str(partition))
        raise StoreUnavailable("the bucket is out of reach")

    run("copy", "-d", str(place / "data"), "--roll")
    with varve.open(place / "data", maintain=False) as store:
        store.create_topic("zebra", settings={"remote.storage.enable": True})
    monkeypatch.setattr(Tier, "status", fail)
    found = run("status", "-d", str(place / "data"), "--json", code=1)
    rows = {row["topic"]: row for row in found.rows}
    assert rows["orders"]["local_bytes"] > 0
    assert rows["orders"]["remote_bytes"] is None
    assert rows["orders"]["errors"] == {"orders-0": "the bucket is out of reach"}
    assert rows["zebra"]["errors"] == {"zebra-0": "the bucket is out of reach"}
    assert rows["local"]["errors"] == {}
    assert asked == ["orders-0"]
    shown = run("status", "-d", str(place / "data"), code=1)
    assert "the bucket is out of reach" in shown.stdout
    assert "2 of 3 topics have a remote tier" in shown.stdout


# Two copies of one log directory on one bucket


def append(data: Path, *values: str) -> None:
    with varve.open(data, maintain=False) as store:
        for value in values:
            store.topic("t").append(value=value)


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path]:
    """Two directories that begin alike, with one segment in the bucket of both."""
    first, second = tmp_path / "first", tmp_path / "second"
    with varve.open(first, maintain=False) as store:
        store.create_topic("t", settings={"remote.storage.enable": True})
    append(first, "one", "two")
    bucket = f"file:{tmp_path / 'bucket'}"
    run_varve("tier", "copy", "-d", first, "--roll", "--store", bucket)
    shutil.copytree(first, second)
    return first, second


@pytest.mark.parametrize("others", [["x"], ["xxxxx", "y"], ["x", "y", "z"]])
def test_a_copy_of_a_directory_does_not_copy_over_the_first(
    twins: tuple[Path, Path], others: list[str]
) -> None:
    first, second = twins
    append(first, "a")
    run_varve("tier", "copy", "-d", first, "--roll")
    append(second, *others)
    found = run_varve("tier", "copy", "-d", second, "--roll", code=1)
    words = found.told
    assert "a copy of this log directory writes to the same object store" in words
    assert "nothing was copied" in found.stdout
    assert run_varve("consume", "t", "--dir", first).stdout == "one\ntwo\na\n"
    run_varve("tier", "copy", "-d", first)
    run_varve("tier", "fsck", "--dir", first, "--deep")
