"""Backends of manifests by name, and the making of the topic that one of them needs."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from tests.support.cold_builder import HOME
from tests.support.metadata_bench import MetadataBench
from varve.commit_log import LogSettings
from varve.foundation.errors import InvalidRequest, InvalidSetting
from varve.foundation.settings import GivenValue, parse_settings
from varve.object_store import MemoryObjectStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.store import ManifestStore, ObjectManifestStore
from varve.tiering.metadata import backends as manifest_backends
from varve.tiering.metadata.backends import BackendContext, open_backend, register_backend
from varve.tiering.metadata.settings import MetadataSettings
from varve.tiering.metadata.topic import (
    COMMIT_BYTES_MAX,
    METADATA_TOPIC,
    MetadataTopic,
    ensure_metadata_topic,
)
from varve.tiering.metadata.topic_manifest_store import TopicManifestStore


@pytest.fixture(autouse=True)
def _unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_backends, "_registered", {})


@pytest.fixture
def context() -> Iterator[BackendContext]:
    topics: list[MetadataTopic] = []

    def metadata_topic() -> MetadataTopic:
        topics.append(MetadataBench().topic)
        return topics[-1]

    yield BackendContext(
        objects=MemoryObjectStore(),
        random=random.Random(1),
        wait=lambda _: None,
        metadata_topic=metadata_topic,
    )
    assert len(topics) <= 1


def make_mine(context: BackendContext, home: RemotePath) -> ManifestStore:
    return ObjectManifestStore(
        context.objects, home, random=context.random, wait=context.wait, grace_ms=1
    )


@pytest.mark.parametrize(
    ("name", "kind"), [("object", ObjectManifestStore), ("topic", TopicManifestStore)]
)
def test_the_backends_of_varve_are_there(
    context: BackendContext, name: str, kind: type[ManifestStore]
) -> None:
    store = open_backend(name)(context, HOME)
    assert type(store) is kind
    assert store.load().home == HOME


def test_the_topic_is_not_asked_for_where_it_is_not_needed(context: BackendContext) -> None:
    def refuse() -> MetadataTopic:
        raise AssertionError

    lean = BackendContext(
        objects=context.objects, random=context.random, wait=context.wait, metadata_topic=refuse
    )
    open_backend("object")(lean, HOME).load()


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    register_backend("mine", make_mine)
    with pytest.raises(InvalidSetting, match="'etcd' is not known, only object, topic, mine"):
        open_backend("etcd")


def test_a_registered_backend_is_opened(context: BackendContext) -> None:
    register_backend("mine", make_mine)
    assert open_backend("mine") is make_mine


@pytest.mark.parametrize("name", ["object", "topic", "", "Etcd", "a b"])
def test_some_names_cannot_be_registered(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be registered"):
        register_backend(name, make_mine)


def test_a_backend_of_an_installed_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*, group: str, name: str) -> EntryPoints:
        point = EntryPoint(name=name, group=group, value=f"{__name__}:make_mine")
        monkeypatch.setattr(EntryPoint, "load", lambda self: make_mine)
        return EntryPoints([point] if (group, name) == ("varve.manifest_stores", "mine") else [])

    monkeypatch.setattr(manifest_backends, "entry_points", find)
    assert open_backend("mine") is make_mine
    with pytest.raises(InvalidSetting):
        open_backend("other")


@dataclass
class Known:
    partition_count: int


@dataclass
class Maker:
    """Notes what topics are made."""

    topics: dict[str, Known] = field(default_factory=dict)
    settings: dict[str, GivenValue] = field(default_factory=dict)

    def find(self, name: str) -> Known | None:
        return self.topics.get(name)

    def create(
        self,
        name: str,
        *,
        partition_count: int | None,
        settings: Mapping[str, GivenValue] | None,
        exist_ok: bool,
    ) -> None:
        assert name not in self.topics
        self.topics[name] = Known(partition_count or 1)
        self.settings = dict(settings or {})


def test_the_topic_is_made_once_as_kafka_makes_it() -> None:
    maker = Maker()
    ensure_metadata_topic(maker, MetadataSettings())
    ensure_metadata_topic(maker, MetadataSettings())
    assert maker.topics == {METADATA_TOPIC: Known(50)}
    made = parse_settings(LogSettings, maker.settings, METADATA_TOPIC)
    assert (made.cleanup_policy, made.retention_ms, made.retention_bytes) == (("delete",), -1, -1)
    assert not made.remote_storage_enable
    assert made.max_message_bytes == COMMIT_BYTES_MAX


def test_another_number_of_partitions_is_refused() -> None:
    maker = Maker({METADATA_TOPIC: Known(50)})
    with pytest.raises(InvalidSetting, match=r"has 50 partitions.* is 12: set it to 50"):
        ensure_metadata_topic(maker, MetadataSettings(remote_log_metadata_topic_num_partitions=12))


def test_the_settings_have_the_names_and_defaults_of_kafka() -> None:
    given = {
        "remote.log.metadata.topic.num.partitions": 5,
        "remote.log.metadata.topic.retention.ms": 1_000,
        "remote.log.metadata.custom.metadata.max.bytes": 0,
    }
    assert parse_settings(MetadataSettings, given, "store") == MetadataSettings(
        remote_log_metadata_topic_num_partitions=5,
        remote_log_metadata_topic_retention_ms=1_000,
        remote_log_metadata_custom_metadata_max_bytes=0,
    )
    with pytest.raises(InvalidSetting):
        parse_settings(MetadataSettings, {"remote.log.metadata.topic.retention.ms": 0}, "store")
