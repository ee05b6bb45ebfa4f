"""Backends of manifests by name, and the making of the topic that one of them needs."""

import random
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from tests.support.metadata_bench import MetadataBench
from tests.support.remote_builder import HOME
from varve.commit_log import LogSettings
from varve.embedded.topic_admin import TopicAdmin
from varve.foundation import plugins
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import parse_settings
from varve.object_store import MemoryObjectStore
from varve.testing import VirtualStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore
from varve.tiering.metadata.topic import (
    COMMIT_BYTES_MAX,
    MetadataTopic,
    ensure_metadata_topic,
)
from varve.tiering.metadata.topic_manifest_store import TopicManifestStore
from varve.tiering.partition import ManifestStores
from varve.tiering.settings import MetadataSettings, TierSettings
from varve.wire.messages.state_records import METADATA_TOPIC


def open_stores(backend: str, topic: MetadataTopic | None = None) -> ManifestStores:
    return ManifestStores(
        backend,
        MemoryObjectStore(),
        random=random.Random(1),
        wait=lambda _: None,
        settings=TierSettings(),
        topic=topic,
    )


def open_mine(stores: ManifestStores, path: RemotePath) -> ManifestStore:
    return ObjectManifestStore(
        stores.objects, path, random=stores.random, wait=stores.wait, grace_ms=1
    )


def test_manifests_are_beside_the_segments_or_in_the_topic() -> None:
    for stores, kind in (
        (open_stores("object"), ObjectManifestStore),
        (open_stores("topic", MetadataBench().topic), TopicManifestStore),
    ):
        store = stores.open(HOME)
        assert type(store) is kind
        assert store.load().path == HOME


def test_a_store_without_the_topic_says_so() -> None:
    with pytest.raises(InvalidSetting, match="no topic __remote_log_metadata: use object"):
        open_stores("topic")


def test_a_backend_of_an_installed_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        [EntryPoint(name="mine", group="varve.manifest_stores", value=f"{__name__}:open_mine")]
    )
    monkeypatch.setattr(EntryPoint, "load", lambda self: open_mine)
    monkeypatch.setattr(plugins, "entry_points", points.select)
    assert type(open_stores("mine").open(HOME)) is ObjectManifestStore
    with pytest.raises(InvalidSetting, match="'etcd' is unknown; use one of object, topic, mine"):
        open_stores("etcd")


@pytest.fixture
def admin() -> Iterator[TopicAdmin]:
    with VirtualStore() as kit:
        yield kit.store._admin


def test_the_topic_is_made_once_as_kafka_makes_it(admin: TopicAdmin) -> None:
    for _ in range(2):
        ensure_metadata_topic(admin, MetadataSettings())
    entry = admin.get(METADATA_TOPIC)
    assert entry.partition_count == 50
    made = parse_settings(LogSettings, entry.settings, METADATA_TOPIC)
    assert (made.cleanup_policy, made.retention_ms, made.retention_bytes) == (("delete",), -1, -1)
    assert not made.remote_storage_enable
    assert made.max_message_bytes == COMMIT_BYTES_MAX


def test_another_number_of_partitions_is_refused(admin: TopicAdmin) -> None:
    ensure_metadata_topic(admin, MetadataSettings())
    with pytest.raises(InvalidSetting, match=r"has 50 partitions.* is 12: set it to 50"):
        ensure_metadata_topic(admin, MetadataSettings(remote_log_metadata_topic_num_partitions=12))
