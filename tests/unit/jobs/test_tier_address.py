"""An address names one cluster of a store, or the store says what it has."""

from pathlib import Path

import pytest

from varve.foundation.errors import InvalidRequest, NotFound
from varve.jobs.tier.bucket import Bucket, find_cluster
from varve.object_store import open_object_store


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
