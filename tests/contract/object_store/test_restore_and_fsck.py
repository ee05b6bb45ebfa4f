"""Restore and account work alike on every kind of store."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.copied_log import HOME, copy_log, make_log, open_manifests
from tests.support.log_bench import NOW_MS
from tests.support.s3_server import BUCKET, S3Server
from varve.disk.memory import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.object_store import (
    DirectoryObjectStore,
    MemoryObjectStore,
    ObjectStore,
    open_object_store,
)
from varve.tiering.fsck import FsckOptions, fsck
from varve.tiering.restore import hold_log_directory, plan_restore, restore_partition


@pytest.fixture(params=["memory", "directory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "memory":
        yield MemoryObjectStore()
    elif request.param == "directory":
        yield DirectoryObjectStore(str(tmp_path))
    else:
        server: S3Server = request.getfixturevalue("s3")
        store = open_object_store(f"s3://{BUCKET}/restore", server.settings)
        yield store
        store.close()


def test_what_was_copied_comes_back_and_leftovers_go(objects: ObjectStore) -> None:
    remote = copy_log(objects, make_log(2))
    objects.put(f"{HOME.segment_folder}{0:020}-nobody/log", b"lost")
    fs = MemoryFileSystem(ManualClock(NOW_MS))
    manifests = open_manifests(objects, 9)
    with hold_log_directory(fs, "data", cluster=HOME.cluster):
        plan = plan_restore(manifests, manifests.load())
        restore_partition(objects, plan, fs, "data", clock=ManualClock(NOW_MS))
    assert {name: fs.read(f"data/topic-0/{name}") for name in remote.files} == remote.files
    report = fsck(
        objects,
        HOME.cluster,
        now_ms=NOW_MS,
        options=FsckOptions(deep=True, sweep=True),
        random=random.Random(3),
        wait=lambda _: None,
    )
    assert [one.size for one in report.swept] == [4]
    assert report.is_clean
