"""All log directories of a store belong to one cluster."""

import random
from collections.abc import Sequence

import pytest

from varve.commit_log import LogManager
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InconsistentClusterId


def _cluster_ids(fs: MemoryFileSystem, paths: Sequence[str], seed: int = 1) -> set[str | None]:
    store = LogManager(paths, fs=fs, clock=ManualClock(), random=random.Random(seed))
    with store:
        return {one.metadata.cluster_id for one in store.directories if one.metadata}


def test_new_directories_share_one_cluster_id() -> None:
    assert len(_cluster_ids(MemoryFileSystem(ManualClock()), ["/a", "/b", "/c"])) == 1


def test_a_new_directory_joins_the_cluster_of_the_others() -> None:
    fs = MemoryFileSystem(ManualClock())
    first = _cluster_ids(fs, ["/b"])
    assert _cluster_ids(fs, ["/a", "/b"], seed=2) == first


def test_directories_of_two_clusters_are_refused_and_stay_usable() -> None:
    fs = MemoryFileSystem(ManualClock())
    (first,) = _cluster_ids(fs, ["/a"])
    (second,) = _cluster_ids(fs, ["/b"], seed=2)
    with pytest.raises(InconsistentClusterId, match=f"{first} .*/a.*{second} .*/b"):
        _cluster_ids(fs, ["/a", "/b"])
    assert _cluster_ids(fs, ["/a"]) == {first}
