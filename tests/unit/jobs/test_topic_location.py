"""Where topics are: one value for all jobs."""

import json
from pathlib import Path

import pytest

import varve
from varve.foundation.errors import InvalidRequest, NotFound
from varve.jobs.tier.bucket import Bucket, find_cluster
from varve.object_store import open_object_store


def remember(directory: Path, **more: str) -> None:
    directory.mkdir(exist_ok=True)
    document = {"format": 1, "url": "file:/cold", "metadata": "object", **more}
    (directory / "varve-tier.json").write_text(json.dumps(document))


def test_a_location_is_a_value() -> None:
    first = varve.TopicLocation(store="s3://b/p", settings={"region": "x", "a": 1})
    assert first == varve.TopicLocation(store="s3://b/p", settings={"a": 1, "region": "x"})
    assert len({first, varve.TopicLocation(store="s3://b/p")}) == 2


def test_directories_are_absolute_and_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    location = varve.TopicLocation(dir=["a", Path("a"), "b"], store="file:cold")
    assert location.directories == (str(tmp_path / "a"), str(tmp_path / "b"))
    assert location.store == f"file:{tmp_path}/cold"
    assert varve.TopicLocation(dir="a").directories == (str(tmp_path / "a"),)


def test_the_options_of_the_data_source_name_store_cluster_and_directories(tmp_path: Path) -> None:
    remember(tmp_path / "data")
    location = varve.TopicLocation(
        dir=tmp_path / "data", settings={"region": "x", "mirror.region": "y"}, cluster="c"
    )
    assert location.options() == {
        "directory": str(tmp_path / "data"),
        "url": "file:/cold",
        "cluster": "c",
        "store.region": "x",
    }
    alone = varve.TopicLocation(store="s3://b/p")
    assert alone.options() == {"url": "s3://b/p"}


def test_a_named_store_beats_the_remembered_one(tmp_path: Path) -> None:
    remember(tmp_path / "data")
    named = varve.TopicLocation(dir=tmp_path / "data", store="file:/other").find_bucket()
    assert named is not None
    assert named.url == "file:/other"


def test_directories_without_an_object_store_are_refused_where_one_is_needed(
    tmp_path: Path,
) -> None:
    location = varve.TopicLocation(dir=tmp_path)
    assert location.find_bucket() is None
    assert location.options() == {"directory": str(tmp_path)}
    with pytest.raises(InvalidRequest, match=r"has no object store yet: `varve tier copy`"):
        location.get_bucket()


def test_manifests_outside_the_object_store_are_refused(tmp_path: Path) -> None:
    remember(tmp_path / "data", metadata="topic")
    with pytest.raises(InvalidRequest, match=r"varve\.tier\.metadata=topic"):
        varve.TopicLocation(dir=tmp_path / "data").find_bucket()


def test_the_only_cluster_is_meant_and_others_are_named(tmp_path: Path) -> None:
    address = Bucket(f"file:{tmp_path}")
    open_object_store(address.url, {}).close()
    with pytest.raises(NotFound, match=r"holds no cluster yet.*varve tier copy"):
        find_cluster(address)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "object").write_bytes(b"")
        if name == "first":
            assert find_cluster(address) == "first"
    with pytest.raises(InvalidRequest, match=r"2 clusters \(first, second\)"):
        find_cluster(address)
