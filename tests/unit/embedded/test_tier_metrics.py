"""The figures of a store whose topics are in the cold tier."""

import pytest

from varve.foundation.errors import StoreUnavailable
from varve.foundation.metrics import exposition
from varve.object_store import FaultyObjectStore, MemoryObjectStore
from varve.testing import VirtualStore


def samples(kit: VirtualStore) -> dict[str, float]:
    lines = exposition(kit.store.metrics).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def fill(kit: VirtualStore, settings: dict[str, str | int | bool] | None = None) -> None:
    given = {"segment.bytes": 1000, "remote.storage.enable": True, "local.retention.bytes": 1}
    topic = kit.store.create_topic("t", settings={**given, **(settings or {})})
    for number in range(50):
        topic.append(value=f"{number:060}")


def test_a_store_without_tiered_topics_has_no_figures_of_the_tier() -> None:
    with VirtualStore() as kit:
        kit.store.create_topic("t").append(value="a")
        kit.run_background()
        assert not [name for name in samples(kit) if name.startswith("varve_tier")]


def test_copies_reads_and_sizes_are_counted() -> None:
    with VirtualStore() as kit:
        fill(kit)
        kit.run_background()
        assert len(list(kit.store.topic("t").read())) == 50
        found = samples(kit)
        status = kit.store.tier.status(kit.store.partitions("t")[0])
    assert found['varve_tier_copy_requests_total{topic="t"}'] == status.cold_segments
    assert found['varve_tier_copy_bytes_total{topic="t"}'] == status.cold_bytes
    assert found['varve_tier_size_bytes{partition="0",topic="t"}'] == status.cold_bytes
    assert found['varve_tier_copy_lag_segments{partition="0",topic="t"}'] == 0
    assert found['varve_tier_fetch_bytes_total{topic="t"}'] == status.cold_bytes
    assert found["varve_tier_reader_idle_percent"] == 100
    assert found['varve_tier_cache_misses_total{cache="extent"}'] > 0


def test_what_expires_is_to_be_deleted_and_then_counted_as_gone() -> None:
    with VirtualStore() as kit:
        fill(kit, {"retention.ms": 1000})
        kit.run_background()
        kit.advance(seconds=2)
        kit.run_background()
        going = samples(kit)
        kit.advance(days=2)
        kit.run_background()
        gone = samples(kit)
    lag = 'varve_tier_delete_lag_segments{partition="0",topic="t"}'
    deleted = 'varve_tier_delete_requests_total{topic="t"}'
    assert going[lag] > 0
    assert deleted not in going
    assert gone[lag] == 0
    assert gone[deleted] == going[lag]


def test_failures_are_counted_and_a_measure_survives_a_store_that_is_down() -> None:
    objects = FaultyObjectStore(MemoryObjectStore())
    with VirtualStore(objects=objects) as kit:
        fill(kit)
        kit.run_background()
        objects.go_down()
        kit.store.tier.reads.extents.clear()
        with pytest.raises(StoreUnavailable):
            list(kit.store.topic("t").read())
        kit.advance(days=1)
        kit.store.measure()
        found = samples(kit)
        assert kit.store.health().tier
    assert found['varve_tier_fetch_errors_total{topic="t"}'] == 1
