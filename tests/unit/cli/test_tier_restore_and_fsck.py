"""`varve tier restore` and `varve tier fsck` from a user's side."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

import varve
from tests.support.copied_log import HOME, CopiedLog, copy_log, make_log
from tests.support.varve_command import run_varve
from varve.cli.output import Progress
from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import GivenValue
from varve.object_store import DirectoryObjectStore

run = partial(run_varve, "tier")


@pytest.fixture
def objects(tmp_path: Path) -> DirectoryObjectStore:
    return DirectoryObjectStore(str(tmp_path / "bucket"))


@pytest.fixture
def remote(objects: DirectoryObjectStore) -> CopiedLog:
    return copy_log(objects, make_log(3))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path}/bucket"


def test_a_topic_is_restored_into_a_new_directory(
    tmp_path: Path, remote: CopiedLog, url: str
) -> None:
    target = tmp_path / "data"
    done = run("restore", "-d", target, "topic", "--store", url, "--json")
    document = json.loads(done.stdout)
    end = remote.segments[-1].end_offset + 1
    assert (document["segments"], document["end_offset"]) == (3, end)
    for name, data in remote.files.items():
        assert (target / "topic-0" / name).read_bytes() == data
    run_varve("check", "-d", target)
    with varve.open(target) as store:
        assert store.topic("topic").partition(0).log.end_offset == end
    again = run("restore", "-d", target, "topic", "--store", url)
    assert "was restored before" in again.stdout


def test_settings_that_are_given_go_into_the_table_of_topics(
    tmp_path: Path, remote: CopiedLog, url: str
) -> None:
    target = tmp_path / "data"
    given = ("--set", "retention.ms=-1", "--set", "cleanup.policy=compact")
    run("restore", "-d", target, "topic:0", "--store", url, *given)
    table = json.loads((target / "varve-topics.json").read_text())
    assert table["topics"]["topic"]["id"] == HOME.topic_id
    assert table["topics"]["topic"]["settings"]["retention.ms"] == "-1"


@pytest.mark.parametrize("is_given_at_once", [True, False])
def test_copying_goes_on_in_the_store_that_was_restored_from(
    tmp_path: Path, remote: CopiedLog, url: str, is_given_at_once: bool
) -> None:
    target, tiered = tmp_path / "data", "remote.storage.enable=true"
    given = ("--set", tiered) if is_given_at_once else ()
    run("restore", "-d", target, "topic", "--store", url, *given)
    assert json.loads((target / "varve-tier.json").read_text())["url"] == url
    if not is_given_at_once:
        run_varve("topic", "alter", "topic", "--dir", target, "--set", tiered)
    with varve.open(target, maintain=False) as store:
        store.topic("topic").append(value="more")
    run("copy", "-d", target, "--roll", "--json")
    assert not (tmp_path / "data.cold").exists()
    run("fsck", "--store", url, "--deep")
    again = run("restore", "-d", tmp_path / "again", "topic", "--store", url, "--json")
    assert json.loads(again.stdout)["segments"] == 4


def test_a_part_that_was_restored_is_not_let_into_the_tier_that_has_more(
    tmp_path: Path, remote: CopiedLog, url: str
) -> None:
    target = tmp_path / "data"
    run("restore", "-d", target, "topic", "--store", url, "--to", "5")
    assert not (target / "varve-tier.json").exists()
    settings: dict[str, GivenValue] = {"varve.tier.url": url}
    with (
        varve.open(target, maintain=False, settings=settings) as store,
        pytest.raises(InvalidRequest, match="not all of them are of this log"),
    ):
        store.alter_topic("topic", {"remote.storage.enable": True})


def test_an_older_state_is_named_by_version_or_time(
    tmp_path: Path, remote: CopiedLog, url: str
) -> None:
    newest = json.loads(
        run("restore", "topic", "-d", tmp_path / "a", "--store", url, "--json").stdout
    )
    version, time_ms = newest["manifest_version"], newest["manifest_ms"]
    for number, at in enumerate((str(version), f"@{time_ms}", "2999-01-01T00:00")):
        target = tmp_path / f"at{number}"
        done = run("restore", "topic", "-d", target, "--store", url, "--at", at, "--json")
        assert json.loads(done.stdout)["manifest_version"] == version
        assert not (target / "varve-tier.json").exists()


def test_fsck_is_content_with_a_whole_tier(remote: CopiedLog, url: str) -> None:
    done = run("fsck", "--store", url, "--deep")
    assert "nothing wrong" in done.stdout


def test_fsck_tells_of_orphans_and_sweeps_them(
    objects: DirectoryObjectStore, remote: CopiedLog, url: str
) -> None:
    orphan = f"{HOME.segment_folder}{0:020}-nobody/log"
    objects.put(orphan, b"lost")
    found = run("fsck", "--store", url, "--json", code=1)
    lines = found.rows
    assert [line["key"] for line in lines if line["type"] == "object"] == [orphan]
    classes = {line["class"]: line["objects"] for line in lines if line["type"] == "class"}
    assert sum(classes.values()) == len(list(objects.list("")))
    swept = run("fsck", "--store", url, "--sweep", "--yes")
    assert f"removed  {orphan}" in swept.stdout
    run("fsck", "--store", url)


def test_a_sweep_asks_first(objects: DirectoryObjectStore, remote: CopiedLog, url: str) -> None:
    orphan = f"{HOME.segment_folder}{0:020}-nobody/log"
    objects.put(orphan, b"lost")
    asked = run("fsck", "--store", url, "--sweep", code=1)
    assert "add --yes" in asked.stderr
    assert objects.get(orphan) == b"lost"


def test_a_sweep_removes_old_manifest_versions_if_told_so(
    objects: DirectoryObjectStore, remote: CopiedLog, url: str
) -> None:
    def versions() -> set[str]:
        return {info.key for info in objects.list(HOME.manifest_folder)}

    before = versions()
    run("fsck", "--store", url, "--sweep", "--yes")
    assert versions() == before
    run("fsck", "--store", url, "--sweep", "--yes", "--keep-versions", "1d")
    assert versions() < before
    run("fsck", "--store", url, "--deep")


def test_a_directory_on_the_command_line_beats_the_store_of_the_environment(
    tmp_path: Path, remote: CopiedLog, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "data"
    run("restore", "topic", "-d", target, "--store", url)
    monkeypatch.setenv("VARVE_TIER_URL", f"file:{tmp_path}/elsewhere")
    run("fsck", "-d", target)
    monkeypatch.setenv("VARVE_DIR", str(tmp_path / "none"))
    run("fsck", "--store", url)


def test_fsck_leaves_foreign_objects_and_says_so(
    objects: DirectoryObjectStore, remote: CopiedLog, url: str
) -> None:
    objects.put("prod/notes.txt", b"mine")
    run("fsck", "--store", url, "--sweep", "--yes", code=1)
    assert objects.get("prod/notes.txt") == b"mine"


def test_an_interrupted_restore_goes_on_when_it_is_run_again(
    tmp_path: Path, remote: CopiedLog, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: Progress, size: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    target = tmp_path / "data"
    given = ("restore", "-d", target, "topic", "--store", url, "--workers", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", interrupt)
        stopped = run(*given, code=130)
    assert "what was fetched is kept, run it again to continue" in stopped.stderr
    assert not (target / "topic-0").exists()
    again = run(*given, "--json")
    assert json.loads(again.stdout)["segments"] == 3


def test_a_tier_whose_manifests_are_elsewhere_is_not_called_damaged(tmp_path: Path) -> None:
    place = {"format": 1, "url": f"file:{tmp_path}/bucket", "metadata": "topic"}
    (tmp_path / "varve-tier.json").write_text(json.dumps(place))
    found = run("fsck", "--dir", tmp_path, code=1)
    assert "varve.tier.metadata=topic" in found.stderr
    given = run("fsck", "--dir", tmp_path, "--store", "file:/elsewhere", code=2)
    assert "--store names an object store" in given.stderr
