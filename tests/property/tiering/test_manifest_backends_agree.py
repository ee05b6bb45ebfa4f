"""Any history of the cold tier reads the same from every ManifestStore, in one at any time too."""

import random

import pytest

from tests.support.metadata_bench import MetadataBench
from tests.support.remote_builder import HOME, SMALL
from tests.support.tier_history import TierHistory
from varve.object_store import MemoryObjectStore
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore


def facts(store: ManifestStore, manifest: Manifest) -> tuple[object, ...]:
    """All that a manifest says, but for how versions are numbered and segments are folded."""
    return (
        list(store.segments(manifest)),
        list(store.pending(manifest)),
        manifest.leader_epoch,
        manifest.at_ms,
        manifest.log_start_offset,
        manifest.cleaned_up_to,
        manifest.writer,
        manifest.segment_count,
        manifest.readable_count,
        manifest.log_bytes,
        manifest.record_count,
        manifest.stored_bytes,
        manifest.highest_offset,
    )


def look_up(store: ManifestStore, manifest: Manifest, chance: random.Random) -> list[object]:
    end = manifest.highest_offset + 50
    offsets = [chance.randint(0, end) for _ in range(10)]
    times = [chance.choice([-1, manifest.at_ms - chance.randrange(10**7)]) for _ in range(5)]
    found: list[object] = [store.find(manifest, offset) for offset in offsets]
    found += [store.find_by_time(manifest, time) for time in times]
    return [*found, [list(store.segments(manifest, from_offset=offset)) for offset in offsets]]


@pytest.mark.parametrize("seed", range(10))
def test_both_backends_tell_the_same(seed: int) -> None:
    objects, bench = MemoryObjectStore(), MetadataBench(partition_count=2)
    paged = ObjectManifestStore(
        objects, HOME, random=random.Random(seed), wait=lambda _: None, layout=SMALL
    )
    topic: ManifestStore = bench.store(HOME)
    history = TierHistory(random.Random(seed))
    made: list[tuple[int, tuple[object, ...]]] = []
    for step in range(50):
        for change in history.draw(list(topic.segments(topic.load()))):
            for store in (paged, topic):
                store.commit(
                    lambda m, s=store, c=change: c(s.unfold(m, start_offset=0, end_offset=1 << 62)),  # type: ignore[misc]  # bound now
                    leader_epoch=history.leader_epoch,
                    writer=f"step {step}",
                    now_ms=history.now_ms,
                )
        newest = topic.load()
        told = facts(topic, newest)
        assert told == facts(paged, paged.load())
        assert look_up(topic, newest, random.Random(step)) == look_up(
            paged, paged.load(), random.Random(step)
        )
        made.append((newest.at_ms, told))
    last = dict(made)
    for at_ms in random.Random(seed).sample(sorted(last), min(6, len(last))):
        assert facts(paged, paged.at(time_ms=at_ms)) == last[at_ms]
    bench.reopen()
    assert bench.store(HOME).load() == newest
