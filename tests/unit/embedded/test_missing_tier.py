"""A tier in a directory that is not there, or that fails: the log directory goes on."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import varve
from varve.commit_log import TopicPartition
from varve.foundation.errors import Corrupt, StoreDenied, StoreUnavailable
from varve.foundation.settings import GivenValue
from varve.object_store.directory import WRITING

# Not there, as when its disk is not mounted


PARTITION = TopicPartition("orders", 0)
SETTINGS: dict[str, GivenValue] = {"remote.storage.enable": True, "log.retention.ms": -1}


class Place:
    """A store in `data` whose offset 0 is in the cold tier alone, and 1 on the local disk alone."""

    def __init__(self, directory: Path, mirror: str = "") -> None:
        self.data, self.remote, self.aside = (
            str(directory / name) for name in ("data", "data.cold", "aside")
        )
        self.settings = {**SETTINGS, "varve.tier.mirror.url": mirror} if mirror else SETTINGS
        with self.open() as store:
            topic = store.create_topic("orders")
            for value in (b"0", b"1"):
                topic.append(value=value)
                if value == b"0":
                    topic.partition(0).log.roll()
            store.run_once()
            topic.partition(0).log.drop_local_segments_before(1, now_ms=1)

    def open(self) -> varve.Store:
        return varve.open(self.data, settings=self.settings, maintain=False)

    def offsets(self) -> list[int]:
        with self.open() as store:
            return [one.offset for one in store.topic("orders").read()]


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_a_directory_that_is_not_there_is_unavailable_and_never_made_anew(
    tmp_path: Path, is_mount_point: bool
) -> None:
    place = Place(tmp_path)
    os.rename(place.remote, place.aside)
    if is_mount_point:
        os.makedirs(f"{place.remote}/lost+found")
    with place.open() as store:
        with pytest.raises(StoreUnavailable, match=r"data\.cold (is|exists).*mount or restore it"):
            list(store.topic("orders").read())
        store.run_once()
        assert "mount or restore it" in store.health().tier[PARTITION]
        assert [one.offset for one in store.topic("orders").partition(0).read(start=1)] == [1]
    assert os.path.exists(place.remote) == is_mount_point
    shutil.rmtree(place.remote, ignore_errors=True)
    os.rename(place.aside, place.remote)
    assert place.offsets() == [0, 1]


def test_a_directory_that_was_never_copied_to_is_made_when_it_is_missing(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    for _ in range(2):
        with varve.open(data, settings=SETTINGS, maintain=False) as store:
            store.create_topic("orders", exist_ok=True)
            store.run_once()
            assert store.health().tier == {}
        shutil.rmtree(f"{data}.cold", ignore_errors=True)


def test_an_empty_tier_is_first_told_to_be_another_one_and_given_up_last(tmp_path: Path) -> None:
    place = Place(tmp_path)
    os.rename(place.remote, place.aside)
    os.makedirs(f"{place.remote}/{WRITING}")
    with place.open() as store:
        store.run_once()
        told = store.health().tier[PARTITION]
        assert re.search(r"may be unmounted, emptied or another one; .* delete-records", told)
        with pytest.raises(Corrupt, match=r"may be unmounted, emptied or another.*delete-records"):
            list(store.topic("orders").read())


def test_reads_go_to_the_mirror_of_a_directory_that_is_missing(tmp_path: Path) -> None:
    place = Place(tmp_path, mirror=f"file:{tmp_path}/mirror")
    os.rename(place.remote, place.aside)
    assert place.offsets() == [0, 1]
    with place.open() as store:
        list(store.topic("orders").read())
        assert "data.cold is missing" in store.health().mirror
    assert not os.path.exists(place.remote)


# Read-only


TIERED = {"remote.storage.enable": True, "segment.bytes": 1_000, "retention.ms": -1}


class ReadOnly:
    """Makes what is below a path read-only, as a mount would: also for root."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = str(path)
        self.is_on = False
        for name in ("unlink", "link", "replace", "mkdir", "rmdir"):
            monkeypatch.setattr(os, name, self._guard(getattr(os, name), lambda *given: True))
        monkeypatch.setattr(os, "open", self._guard(os.open, _is_for_writing))

    def _guard(self, real: Callable[..., Any], is_write: Callable[..., bool]) -> Callable[..., Any]:
        def guarded(path: Any, *given: Any, **named: Any) -> Any:
            if self.is_on and str(path).startswith(self._path) and is_write(path, *given):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return real(path, *given, **named)

        return guarded


def _is_for_writing(path: Any, flags: int, *mode: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadOnly:
    return ReadOnly(tmp_path / "data.cold", monkeypatch)


@pytest.fixture
def store(tmp_path: Path, remote: ReadOnly) -> Iterator[varve.Store]:
    with varve.open(tmp_path / "data", maintain=False) as opened:
        opened.create_topic("t", settings=TIERED)
        opened.create_topic("other")
        fill(opened)
        opened.run_once()
        yield opened
        remote.is_on = False


def fill(store: varve.Store) -> None:
    for number in range(40):
        store.topic("t").append(value=b"value-%d" % number * 5)


def test_a_tier_that_turns_read_only_fails_the_copy_alone(
    store: varve.Store, remote: ReadOnly
) -> None:
    remote.is_on = True
    fill(store)
    store.run_once()
    health = store.health()
    assert not health.offline
    assert "Read-only file system; mount it for writing" in "".join(map(str, health.tier.values()))
    store.topic("other").append(value=b"goes on")
    assert len(list(store.topic("t").read(partition=0))) == 80
    remote.is_on = False
    store.run_once(10**15)
    assert store.health().tier == {}


def test_a_topic_that_cannot_leave_keeps_no_store_from_opening(
    tmp_path: Path, store: varve.Store, remote: ReadOnly
) -> None:
    remote.is_on = True
    with pytest.raises(StoreDenied, match="Read-only file system"):
        store.delete_topic("t")
    store.abandon()
    with varve.open(tmp_path / "data", maintain=False) as again:
        again.topic("other").append(value=b"goes on")
