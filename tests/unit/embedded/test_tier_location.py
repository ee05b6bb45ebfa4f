"""Where the cold tier is: given, remembered, or beside the logs, and never guessed in a failure."""

import errno
import json
import random
from pathlib import Path
from typing import Any

import pytest

from varve.commit_log import LogDirectory, LogManager
from varve.disk import FileSystem, MemoryFileSystem, RealFileSystem
from varve.embedded.tier_location import (
    TIER_FILE,
    TierLocation,
    check_remembered,
    find_location,
    read_location,
    recall_location,
    remember_location,
)
from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    Corrupt,
    DirectoryOffline,
    InvalidRequest,
    InvalidSetting,
    Unavailable,
)
from varve.testing.faulty_disk import FaultyFileSystem

PLACE = TierLocation("s3://bucket/prefix", "object")
EIO = OSError(errno.EIO, "Input/output error")


class Unreadable(MemoryFileSystem):
    """A disk that cannot read the files below some directories."""

    broken: tuple[str, ...] = ()

    def read(self, path: str) -> bytes:
        if path.startswith(self.broken):
            raise EIO
        return super().read(path)


def directories(fs: FileSystem, *paths: str) -> list[LogDirectory]:
    for path in paths:
        fs.make_directory(path)
    return LogManager(paths, fs=fs, clock=ManualClock(), random=random.Random(1)).directories


def find(
    fs: FileSystem, found: list[LogDirectory], url: str = "", metadata: str = "", mirror: str = ""
) -> TierLocation:
    return find_location(fs, found, url=url, metadata=metadata, mirror=mirror)


@pytest.fixture
def fs() -> Unreadable:
    return Unreadable(ManualClock())


def test_a_place_that_is_given_is_taken_and_nothing_is_written(fs: Unreadable) -> None:
    logs = directories(fs, "/a")
    assert find(fs, logs, "s3://bucket/prefix") == PLACE
    assert find(fs, logs, "s3://bucket/prefix", "topic").metadata == "topic"
    assert read_location(fs, "/a") is None
    assert recall_location(fs, [log.path for log in logs]) is None


def test_a_remembered_place_need_not_be_given_again(fs: Unreadable) -> None:
    logs = directories(fs, "/a", "/b")
    remember_location(fs, logs, PLACE)
    assert recall_location(fs, [log.path for log in logs]) == PLACE
    assert find(fs, logs) == PLACE
    assert find(fs, logs, PLACE.url, "object") == PLACE
    fs.remove(f"/a/{TIER_FILE}")
    assert find(fs, logs) == PLACE
    remember_location(fs, logs, PLACE)
    assert read_location(fs, "/a") == PLACE


@pytest.mark.parametrize(
    ("given", "name"),
    [({"url": "s3://other"}, "varve.tier.url"), ({"metadata": "topic"}, "varve.tier.metadata")],
)
def test_another_place_than_the_remembered_one_is_refused(
    fs: Unreadable, given: dict[str, str], name: str
) -> None:
    logs = directories(fs, "/a")
    remember_location(fs, logs, PLACE)
    with pytest.raises(InvalidSetting, match=f"{name} is .* leave the setting out"):
        find(fs, logs, **given)


def test_a_mirror_may_be_added_later_and_is_remembered_then(fs: Unreadable) -> None:
    logs = directories(fs, "/a")
    remember_location(fs, logs, PLACE)
    mirrored = find(fs, logs, mirror="gs://elsewhere")
    assert mirrored == TierLocation(PLACE.url, "object", "gs://elsewhere")
    assert find(fs, logs) == PLACE
    remember_location(fs, logs, mirrored)
    assert find(fs, logs) == find(fs, logs, mirror="gs://elsewhere") == mirrored
    assert json.loads(fs.read(f"/a/{TIER_FILE}"))["mirror"] == "gs://elsewhere"
    with pytest.raises(
        InvalidSetting, match=r"varve\.tier\.mirror\.url is gs://another, but .* has"
    ):
        find(fs, logs, mirror="gs://another")


def test_a_crash_while_a_mirror_was_added_leaves_it_added_or_not(fs: Unreadable) -> None:
    logs = directories(fs, "/a", "/b")
    mirrored = TierLocation(PLACE.url, "object", "gs://elsewhere")
    remember_location(fs, logs, PLACE)
    remember_location(fs, logs[1:], mirrored)
    assert find(fs, logs) == mirrored
    remember_location(fs, logs[:1], TierLocation(PLACE.url, "object", "gs://another"))
    with pytest.raises(Corrupt, match=r"mirrored in gs://another, .* mirrored in gs://elsewhere"):
        find(fs, logs)


def test_a_file_that_cannot_be_read_is_not_taken_for_a_missing_one(fs: Unreadable) -> None:
    """Else a passing failure would lead to an empty tier, and what was copied seem to be lost."""
    logs = directories(fs, "/a", "/b")
    remember_location(fs, logs, PLACE)
    fs.broken = ("/a/",)
    assert find(fs, logs) == PLACE
    fs.broken = ("/a/", "/b/")
    with pytest.raises(Unavailable, match=f"/b/{TIER_FILE} cannot be read"):
        find(fs, logs)
    with pytest.raises(Unavailable):
        find(fs, logs, "s3://other")


def test_directories_that_remember_different_places_are_told_of(fs: Unreadable) -> None:
    logs = directories(fs, "/a", "/b")
    remember_location(fs, logs[:1], PLACE)
    remember_location(fs, logs[1:], TierLocation("s3://other", "object"))
    with pytest.raises(Corrupt, match=r"s3://bucket/prefix by object \(/a\), s3://other"):
        find(fs, logs)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"no json",
        b"[]",
        b'{"format": 2, "url": "s3://b", "metadata": "object"}',
        b'{"format": 1, "url": "", "metadata": "object"}',
        b'{"format": 1, "url": 7, "metadata": "object"}',
        b'{"format": 1, "url": "s3://b"}',
        b'{"format": 1, "url": "s3://b", "metadata": "object", "mirror": ""}',
        b'{"format": 1, "url": "s3://b", "metadata": "object", "mirror": 7}',
    ],
)
def test_a_file_that_does_not_tell_is_corrupt(fs: Unreadable, document: bytes) -> None:
    logs = directories(fs, "/a")
    with fs.open_writable(f"/a/{TIER_FILE}") as file:
        file.write_at(0, document)
    with pytest.raises(Corrupt, match="does not say where the remote tier is: write"):
        find(fs, logs, "s3://b")


def test_without_a_place_the_tier_is_beside_the_logs_of_a_real_disk(tmp_path: Path) -> None:
    logs = directories(RealFileSystem(), str(tmp_path / "data"))
    assert find(RealFileSystem(), logs) == TierLocation(f"file:{tmp_path}/data.cold", "object")
    fs: Any = MemoryFileSystem(ManualClock())
    with pytest.raises(InvalidSetting, match=r"set varve\.tier\.url"):
        find(fs, directories(fs, "/a"))


@pytest.mark.parametrize("given", ["file:/p/q", "file:///p/q/", "FILE:/p/./q"])
def test_a_remembered_directory_may_be_written_otherwise(fs: Unreadable, given: str) -> None:
    logs = directories(fs, "/a")
    remember_location(fs, logs, TierLocation("file:///p/q", "object"))
    assert find(fs, logs, given) == find(fs, logs) == TierLocation("file:/p/q", "object")
    with pytest.raises(InvalidSetting, match="leave the setting out"):
        find(fs, logs, "file:/p/other")


def test_what_is_remembered_may_be_told_in_any_spelling() -> None:
    check_remembered("--mirror", "file:///p/q/", "file:///p/q/", "/a")
    check_remembered("--mirror", "file:///p/q/", "file:/p/q", "/a")


def test_a_secret_in_a_url_is_refused_before_it_could_be_shown(fs: Unreadable) -> None:
    logs = directories(fs, "/a")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="credentials and options are settings") as caught:
            find(fs, logs, "s3://AKIA:TOPSECRET@b/x")
        assert "TOPSECRET" not in str(caught.value)
        remember_location(fs, logs, PLACE)
    with pytest.raises(InvalidSetting, match="leave the setting out") as refused:
        find(fs, logs, "own://AKIA:TOPSECRET@b/x?TOPSECRET")
    assert "TOPSECRET" not in str(refused.value)


def test_a_relative_directory_is_absolute_before_it_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = directories(RealFileSystem(), str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    place = find(RealFileSystem(), logs, "file:cold")
    assert place.url == f"file:{tmp_path}/cold"
    remember_location(RealFileSystem(), logs, place)
    monkeypatch.chdir("/")
    assert find(RealFileSystem(), logs) == place


@pytest.mark.parametrize("url", ["file:cold", "file:", "s3://", "s3://a:b@c"])
def test_a_remembered_url_that_names_no_one_place_is_corrupt(fs: Unreadable, url: str) -> None:
    logs = directories(fs, "/a")
    remember_location(fs, logs, PLACE)
    document = json.dumps({"format": 1, "url": url, "metadata": "object"}).encode()
    with fs.open_writable(f"/a/{TIER_FILE}") as file:
        file.truncate(0)
        file.write_at(0, document)
    with pytest.raises(
        Corrupt, match=f"/a/{TIER_FILE} does not say where the remote tier is: .*write|takes"
    ):
        find(fs, logs)


@pytest.mark.parametrize("below", ["", "data", "data/t-0", "link/x"])
def test_a_tier_and_a_log_directory_lie_apart(tmp_path: Path, below: str) -> None:
    fs = RealFileSystem()
    logs = directories(fs, str(tmp_path / "other"), str(tmp_path / "data"))
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for given in (
        {"url": f"file:{tmp_path}/{below}"},
        {"url": "s3://b", "mirror": f"file:{tmp_path}/{below}"},
    ):
        with pytest.raises(InvalidSetting, match="one must not be the other or lie inside it"):
            find(fs, logs, **given)
    assert find(fs, logs, f"file:{tmp_path}/data2").url == f"file:{tmp_path}/data2"


@pytest.mark.parametrize("given", [{"url": "memory:"}, {"url": "s3://b", "mirror": "Memory:x"}])
def test_memory_is_no_tier_of_logs_on_a_real_disk(
    tmp_path: Path, fs: Unreadable, given: dict[str, str]
) -> None:
    """Records would leave the disk for what is gone when the process ends."""
    logs = directories(RealFileSystem(), str(tmp_path / "data"))
    with pytest.raises(InvalidSetting, match=r"is memory:.* gone when this process ends.*objects"):
        find(RealFileSystem(), logs, **given)
    remember_location(RealFileSystem(), logs, TierLocation("memory:", "object"))
    with pytest.raises(InvalidSetting, match="gone when this process ends"):
        find(RealFileSystem(), logs)
    assert find(fs, directories(fs, "/a"), "memory:").url == "memory:"


def test_no_secret_is_written_and_a_directory_that_is_offline_is_left_out(fs: Unreadable) -> None:
    logs = directories(fs, "/a", "/b")
    logs[1].health.fail(DirectoryOffline("broken"))
    remember_location(fs, logs, PLACE)
    known = json.loads(fs.read(f"/a/{TIER_FILE}"))
    assert known == {"format": 1, "url": PLACE.url, "metadata": "object"}
    assert read_location(fs, "/b") is None


def test_a_crash_leaves_the_old_file_or_the_new_one() -> None:
    clock = ManualClock()
    for step in range(1, 12):
        fs = FaultyFileSystem(clock)
        logs = directories(fs, "/a")
        fs.fail_at(fs.steps + step, EIO)
        try:
            remember_location(fs, logs, PLACE)
        except OSError:
            assert read_location(fs, "/a") in (None, PLACE)
        else:
            assert read_location(fs, "/a") == PLACE
