"""A partition of the cold tier for tests: its segments by number, and its manifest."""

import random

from varve.object_store import ObjectStore
from varve.tiering.manifest.commit import DEFAULT_RETRY, RetryLimits
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.pages import ManifestLayout
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState
from varve.tiering.manifest.store import ObjectManifestStore

HOME = RemotePath("prod", "orders", "q1Sh9e5zQ8G5YyvbVnCk_w", 3)
SMALL = ManifestLayout(inline_max=4, page_segments=3, ref_max=3, page_refs=2)
"""Pages so small that a dozen segments need several levels."""


def open_manifest(
    objects: ObjectStore,
    seed: int = 0,
    *,
    path: RemotePath = HOME,
    layout: ManifestLayout = SMALL,
    retry: RetryLimits = DEFAULT_RETRY,
    grace_ms: int = 0,
) -> ObjectManifestStore:
    """A writer or reader of the partition's manifest; each needs a seed of its own."""
    return ObjectManifestStore(
        objects,
        path,
        random=random.Random(seed),
        wait=lambda _: None,
        layout=layout,
        retry=retry,
        grace_ms=grace_ms,
    )


def make_segment(
    number: int, state: SegmentState = SegmentState.COPY_STARTED, id: str | None = None
) -> RemoteSegment:
    """Segment number n holds the offsets [100 n, 100 n + 100) and times up to 10 n."""
    return RemoteSegment(
        id=id or f"segment-{number}",
        base_offset=100 * number,
        end_offset=100 * number + 99,
        size=1_000,
        record_count=100,
        max_timestamp=10 * number,
        append_ms=(10 * number, 10 * number + 9),
        epochs=((0, 100 * number),),
        parts=(ObjectPart("log", 1_000, 7), ObjectPart("index", 80, 9)),
        has_aborted=False,
        state=state,
        at_ms=10 * number,
    )


def copy(store: ObjectManifestStore, number: int, *, now_ms: int = 0) -> Manifest:
    """Announces and finishes a segment, as the copier does: two commits."""
    started = make_segment(number)
    finished = make_segment(number, SegmentState.COPY_FINISHED)
    store.commit(lambda m: m.announce(started), leader_epoch=0, writer="copier", now_ms=now_ms)
    return store.commit(
        lambda m: m.finish(finished), leader_epoch=0, writer="copier", now_ms=now_ms
    )


def delete(store: ObjectManifestStore, number: int, *, now_ms: int = 0) -> Manifest:
    """Starts and finishes the deletion of a segment, as expiry does: two commits."""
    id, start = f"segment-{number}", 100 * number

    def started(manifest: Manifest) -> Manifest:
        near = store.unfold(manifest, start_offset=start, end_offset=start + 1)
        return near.start_delete([id], at_ms=now_ms)

    def finished(manifest: Manifest) -> Manifest:
        return store.unfold(manifest, start_offset=start, end_offset=start + 1).forget([id])

    store.commit(started, leader_epoch=0, writer="expiry", now_ms=now_ms)
    return store.commit(finished, leader_epoch=0, writer="expiry", now_ms=now_ms)
