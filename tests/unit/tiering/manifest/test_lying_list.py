"""A store whose list is empty although its objects can be read: never taken for an empty tier."""

from collections.abc import Iterator

import pytest

from tests.support.remote_builder import HOME, copy, open_manifest
from varve.foundation.errors import Unavailable
from varve.object_store import MemoryObjectStore, ObjectInfo
from varve.tiering.manifest.versions import HINT_INTERVAL


class LyingStore(MemoryObjectStore):
    """Lists nothing while `is_lying`."""

    is_lying = False

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return iter(()) if self.is_lying else super().list(prefix, start_after=start_after)


def _make() -> LyingStore:
    objects = LyingStore()
    store = open_manifest(objects, 1)
    for number in range(HINT_INTERVAL):
        copy(store, number)
    return objects


def test_an_empty_list_beside_a_version_that_is_there_is_refused() -> None:
    objects = _make()
    objects.is_lying = True
    with pytest.raises(Unavailable, match=r"shows no version, but version 32 is there"):
        open_manifest(objects, 2).load()
    objects.is_lying = False
    assert open_manifest(objects, 3).load().version == 2 * HINT_INTERVAL


def test_a_hint_without_any_version_is_an_empty_tier() -> None:
    objects = _make()
    objects.delete([info.key for info in objects.list("") if info.key != HOME.hint_key])
    assert open_manifest(objects, 2).load().version == 0
