"""Whether the two tiers of a partition join without a hole."""

from dataclasses import replace

import pytest

from tests.support.copied_log import CopiedLog, copy_log, make_log, open_manifests
from varve.object_store import MemoryObjectStore
from varve.tiering.history_check import LocalPart, find_holes, find_lost
from varve.tiering.manifest.store import ObjectManifestStore


@pytest.fixture(scope="module")
def objects() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture(scope="module")
def remote(objects: MemoryObjectStore) -> CopiedLog:
    return copy_log(objects, make_log(3))


@pytest.fixture
def manifests(objects: MemoryObjectStore, remote: CopiedLog) -> ObjectManifestStore:
    return open_manifests(objects)


@pytest.fixture
def local(remote: CopiedLog) -> LocalPart:
    """All that is copied is in object storage alone."""
    end = remote.segments[-1].end_offset + 1
    return LocalPart(
        log_start_offset=remote.segments[0].base_offset,
        local_start_offset=end,
        end_offset=max(end, remote.log.end_offset),
        epochs=remote.log.epochs,
    )


def test_tiers_that_touch_or_overlap_have_no_hole(
    manifests: ObjectManifestStore, remote: CopiedLog, local: LocalPart
) -> None:
    manifest = manifests.load()
    assert find_holes(manifests, manifest, local) == []
    overlapping = replace(local, local_start_offset=remote.segments[1].base_offset)
    assert find_holes(manifests, manifest, overlapping) == []
    assert find_holes(manifests, manifest, replace(local, log_start_offset=None)) == []
    assert find_lost(manifests, manifest, local) is None


def test_what_is_in_neither_tier_is_a_hole(
    manifests: ObjectManifestStore, remote: CopiedLog, local: LocalPart
) -> None:
    manifest = manifests.load()
    behind = replace(
        local,
        local_start_offset=local.local_start_offset + 5,
        end_offset=local.end_offset + 5,
    )
    expected = (local.local_start_offset, local.local_start_offset + 5)
    assert find_holes(manifests, manifest, behind) == [expected]
    middle = remote.segments[1]
    gone = manifest.start_delete([middle.id], at_ms=1)
    expected = (middle.base_offset, middle.end_offset + 1)
    assert find_holes(manifests, gone, local) == [expected]
    assert find_holes(manifests, gone, replace(local, local_start_offset=expected[0])) == []


def test_a_local_log_that_ends_before_its_copies_has_lost_its_tail(
    manifests: ObjectManifestStore, local: LocalPart
) -> None:
    cut = local.local_start_offset - 1
    lost = find_lost(manifests, manifests.load(), replace(local, end_offset=cut))
    assert lost == (cut, local.local_start_offset)
