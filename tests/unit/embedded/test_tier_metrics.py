"""The figures of a store whose topics are in the cold tier."""

from pathlib import Path

import pytest

import varve
from tests.support.remote_bench import drop_extents
from varve.foundation.errors import StoreUnavailable
from varve.foundation.metrics import exposition
from varve.object_store import MemoryObjectStore
from varve.testing import FaultyObjectStore, VirtualStore


def samples(store: varve.Store) -> dict[str, float]:
    lines = exposition(store.metrics).splitlines()
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
        assert not [name for name in samples(kit.store) if name.startswith("varve_tier")]


def test_copies_reads_and_sizes_are_counted() -> None:
    with VirtualStore() as kit:
        fill(kit)
        kit.run_background()
        assert len(list(kit.store.topic("t").read())) == 50
        found = samples(kit.store)
        status = kit.store.tier.status(kit.store.partitions("t")[0])
    assert found['varve_tier_copy_requests_total{topic="t"}'] == status.remote_segments
    assert found['varve_tier_copy_bytes_total{topic="t"}'] == status.remote_bytes
    assert found['varve_tier_size_bytes{partition="0",topic="t"}'] == status.remote_bytes
    assert found['varve_tier_copy_lag_segments{partition="0",topic="t"}'] == 0
    assert found['varve_tier_fetch_bytes_total{topic="t"}'] == status.remote_bytes
    assert found["varve_tier_reader_idle_percent"] == 100
    assert found['varve_tier_cache_misses_total{cache="extent"}'] > 0


def test_what_expires_is_to_be_deleted_and_then_counted_as_gone() -> None:
    with VirtualStore() as kit:
        fill(kit, {"retention.ms": 1000, "segment.ms": 1 << 40})
        kit.run_background()
        kit.advance(seconds=2)
        kit.run_background()
        kit.run_background()  # the active segment was rolled by the first and is copied by now
        going = samples(kit.store)
        kit.advance(days=8)
        kit.run_background()
        gone = samples(kit.store)
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
        drop_extents(kit.store.tier.caches.extents)
        with pytest.raises(StoreUnavailable):
            list(kit.store.topic("t").read())
        kit.advance(days=1)
        kit.store.measure()
        found = samples(kit.store)
        assert kit.store.health().tier
    assert found['varve_tier_fetch_errors_total{topic="t"}'] == 1


def test_requests_to_the_object_store_are_counted(tmp_path: Path) -> None:
    for settings in (
        {"varve.tier.url": f"file:{tmp_path}/a"},
        {"varve.tier.url": f"file:{tmp_path}/b", "varve.tier.mirror.url": f"file:{tmp_path}/c"},
    ):
        with varve.open(tmp_path / f"log-{len(settings)}", settings=settings) as store:
            topic = store.create_topic("t", settings={"remote.storage.enable": True})
            topic.append(value="a")
            topic.partition().log.roll()
            report = store.tier.copy(store.partitions("t")[0], 0)
            assert report.error is None
            found = samples(store)
        for url in settings.values():
            name = url.replace("file:", "file://")
            key = f'varve_object_store_requests_total{{operation="put",store="{name}"}}'
            assert found[key] > 0
            assert found[f'varve_object_store_written_bytes_total{{store="{name}"}}'] > 0
