"""A store whose cold tier is in two object stores: what goes on when either of them is down."""

import errno
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import varve
from varve.disk import MemoryFileSystem
from varve.embedded import Store
from varve.embedded.tier_location import MARK_FILE, TIER_FILE, MirrorInSyncFile
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidRequest, InvalidSetting, StoreUnavailable, Unavailable
from varve.foundation.settings import GivenValue
from varve.object_store import (
    MemoryObjectStore,
    MirroredObjectStore,
    ObjectStore,
    RetryPolicy,
    register,
)
from varve.object_store import opening as mirror_opening
from varve.object_store import opening as registry
from varve.testing import FaultyObjectStore
from varve.testing.faulty_disk import FaultyFileSystem


class Buckets:
    """Stores by URL, `unsteady://NAME`, that keep what they hold and may be down at an open."""

    def __init__(self) -> None:
        self.stores: dict[str, FaultyObjectStore] = {}
        self.away: set[str] = set()
        self.given: dict[str, Mapping[str, GivenValue]] = {}

    def open(self, url: str, settings: Mapping[str, GivenValue]) -> ObjectStore:
        if url in self.away:
            raise StoreUnavailable(f"{url}: open failed: it is away")
        self.given[url] = dict(settings)
        if url not in self.stores:
            self.stores[url] = FaultyObjectStore(MemoryObjectStore(url))
        return self.stores[url]


HERE, THERE = "unsteady://here", "unsteady://there"
MIRRORED: dict[str, GivenValue] = {"varve.tier.url": HERE, "varve.tier.mirror.url": THERE}


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> Buckets:
    found = Buckets()
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(mirror_opening, "SIDE_RETRIES", RetryPolicy(attempt_count_max=1))
    register("unsteady", found.open)
    return found


def open_store(path: Path, settings: Mapping[str, GivenValue] | None = None) -> Store:
    return varve.open(path, settings=settings, maintain=False)


def fill(store: Store) -> None:
    store.create_topic("t", settings={"segment.bytes": 1000, "remote.storage.enable": True})
    for number in range(50):
        store.topic("t").append(value=f"{number:060}")
    store.run_once()
    assert store.health().tier == {}


def keys(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list("")]


def test_a_mirror_is_opened_by_its_url_and_settings_and_remembered(
    tmp_path: Path, buckets: Buckets
) -> None:
    given = {**MIRRORED, "varve.tier.store.a": 1, "varve.tier.mirror.store.b": 2}
    with open_store(tmp_path / "data", given) as store:
        fill(store)
    assert buckets.given == {HERE: {"a": 1}, THERE: {"b": 2}}
    assert keys(buckets.stores[HERE]) == keys(buckets.stores[THERE]) != []
    remembered = json.loads((tmp_path / "data" / TIER_FILE).read_text())
    assert (remembered["url"], remembered["mirror"]) == (HERE, THERE)
    with open_store(tmp_path / "data") as store:
        assert store.tier.objects.name == f"mirror of {HERE} and {THERE}"


@pytest.mark.parametrize("away", [HERE, THERE])
def test_a_tier_opens_and_reads_while_either_store_is_away(
    tmp_path: Path, buckets: Buckets, away: str
) -> None:
    with open_store(tmp_path / "data", MIRRORED) as store:
        fill(store)
        store.alter_topic("t", {"local.retention.bytes": 1})
        store.run_once()
        assert store.topic("t").partition(0).offsets().local_start > 0
    buckets.away = {away}
    buckets.stores[away].go_down()
    with open_store(tmp_path / "data") as store:
        assert len(list(store.topic("t").read())) == 50
        buckets.away = set()
        buckets.stores[away].come_up()
        assert len(list(store.topic("t").read())) == 50


def test_an_outage_never_makes_what_the_second_lacks_look_lost(
    tmp_path: Path, buckets: Buckets
) -> None:
    with open_store(tmp_path / "data", MIRRORED) as store:
        fill(store)
        store.alter_topic("t", {"local.retention.bytes": 1})
        buckets.stores[THERE].go_down()
        for number in range(50, 100):
            store.topic("t").append(value=f"{number:060}")
        store.run_once()
        assert store.topic("t").partition(0).offsets().local_start > 60
        health = store.health()
        assert "is behind by" in health.mirror
        assert (health.tier, health.is_healthy) == ({}, False)
    assert not (tmp_path / "data" / MARK_FILE).exists()
    buckets.stores[THERE].come_up()
    buckets.stores[HERE].go_down()
    with open_store(tmp_path / "data") as store:
        for start in (0, 70):
            with pytest.raises(StoreUnavailable, match="unsteady://here"):
                list(store.topic("t").read(start=start))
        assert "was not compared" in store.health().mirror
        buckets.stores[HERE].come_up()
        assert len(list(store.topic("t").read())) == 100


def test_a_mirror_that_is_level_is_so_for_the_next_process_too(
    tmp_path: Path, buckets: Buckets
) -> None:
    with open_store(tmp_path / "data", MIRRORED) as store:
        fill(store)
        store.run_once()
    assert (tmp_path / "data" / MARK_FILE).exists()
    buckets.stores[HERE].go_down()
    with open_store(tmp_path / "data") as store:
        assert store.tier.status(store.partitions("t")[0]).remote_segments


def test_a_mirror_may_be_added_to_a_tier_and_not_exchanged(
    tmp_path: Path, buckets: Buckets
) -> None:
    with open_store(tmp_path / "data", {"varve.tier.url": HERE}) as store:
        fill(store)
    with open_store(tmp_path / "data", {"varve.tier.mirror.url": THERE}) as store:
        for number in range(50):
            store.topic("t").append(value=f"{number:060}")
        store.run_once()
        assert store.health().is_healthy
    assert keys(buckets.stores[HERE]) == keys(buckets.stores[THERE])
    with pytest.raises(InvalidSetting, match=f"has {THERE}: leave the setting out"):
        open_store(tmp_path / "data", {"varve.tier.mirror.url": "unsteady://another"})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"varve.tier.mirror.url": "nonsense://x"}, "begins with one of"),
        (
            {"varve.tier.mirror.url": "s3://b", "varve.tier.mirror.store.regions": "x"},
            "did you mean",
        ),
        ({"varve.tier.mirror.url": HERE}, "cannot be the mirror of"),
        ({"varve.tier.mirror.url": f"{HERE}/inner"}, "cannot be the mirror of"),
        ({"varve.tier.mirror.store.region": "x"}, r"set varve\.tier\.mirror\.url"),
    ],
)
def test_a_wrong_mirror_is_refused_when_a_topic_enters_the_tier(
    tmp_path: Path, buckets: Buckets, settings: dict[str, GivenValue], told: str
) -> None:
    with (
        open_store(tmp_path / "data", {"varve.tier.url": HERE, **settings}) as store,
        pytest.raises(InvalidRequest, match=told),
    ):
        store.create_topic("t", settings={"remote.storage.enable": True})


def test_buckets_of_one_name_on_two_servers_are_two_stores() -> None:
    names = [
        mirror_opening.open_mirrored(
            "s3://b", "s3://b", settings={"endpoint": "https://one"}, second_settings={}
        ).name
    ]
    assert names == ["mirror of s3://b and s3://b"]


# The mark


def test_a_mark_counts_where_all_directories_have_it_for_these_stores() -> None:
    fs = MemoryFileSystem(ManualClock())
    for path in ("/a", "/b"):
        fs.make_directory(path)
    mark = MirrorInSyncFile(fs, ["/a", "/b"], url="s3://one", mirror="s3://two")
    assert not mark.is_set()
    mark.set()
    assert mark.is_set()
    assert not MirrorInSyncFile(fs, ["/a"], url="s3://one", mirror="s3://three").is_set()
    mark.clear()
    assert not mark.is_set()
    mark.clear()


def test_a_mark_that_no_directory_lets_go_of_fails_the_write() -> None:
    fs = FaultyFileSystem(ManualClock())
    fs.make_directory("/a")
    mark = MirrorInSyncFile(fs, ["/a"], url="s3://one", mirror="s3://two")
    second = FaultyObjectStore(MemoryObjectStore("memory:second"))
    mark.set()
    mirror = MirroredObjectStore(MemoryObjectStore(), second, in_sync=mark)
    second.go_down()
    fs.fail_at(fs.steps + 1, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(Unavailable, match="varve-mirror-level cannot be removed from /a"):
        mirror.put("a", b"1")
