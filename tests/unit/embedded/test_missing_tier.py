"""A tier in a directory that is not there, as when its disk is not mounted."""

import os
import re
import shutil
from pathlib import Path

import pytest

import varve
from varve.commit_log import TopicPartition
from varve.foundation.errors import Corrupt, StoreUnavailable
from varve.foundation.settings import GivenValue
from varve.object_store.directory import WRITING

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
