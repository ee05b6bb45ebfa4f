"""A store that refuses to create what is not there: waited for, and given up in the end."""

import random

import pytest

from tests.support.remote_builder import HOME, make_segment
from varve.foundation.errors import ObjectExists, Unavailable
from varve.object_store import Buffer, MemoryObjectStore, ObjectInfo
from varve.tiering.manifest.commit import RetryLimits
from varve.tiering.manifest.store import ObjectManifestStore


class RefusingStore(MemoryObjectStore):
    """Says so many times that an object exists which does not."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        if self.refusals > 0:
            self.refusals -= 1
            raise ObjectExists(f"memory: create {key!r} failed: it exists")
        return super().create(key, data)


def _open(objects: RefusingStore, waits: list[float]) -> ObjectManifestStore:
    retry = RetryLimits(attempts=10)
    return ObjectManifestStore(
        objects, HOME, random=random.Random(1), wait=waits.append, retry=retry
    )


def _announce(store: ObjectManifestStore) -> int:
    segment = make_segment(0)
    done = store.commit(lambda m: m.announce(segment), leader_epoch=0, writer="copier", now_ms=0)
    return done.version


def test_a_commit_waits_until_the_store_lets_it_create() -> None:
    waits: list[float] = []
    assert _announce(_open(RefusingStore(4), waits)) == 1
    assert len(waits) == 4


def test_a_commit_that_is_always_refused_is_given_up() -> None:
    objects = RefusingStore(10_000)
    waits: list[float] = []
    with pytest.raises(Unavailable, match=r"given up after 10 attempts.*does not let copier"):
        _announce(_open(objects, waits))
    assert objects.refusals == 10_000 - 10
    assert list(objects.list("")) == []
