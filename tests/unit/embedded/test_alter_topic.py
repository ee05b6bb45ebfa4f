"""Settings of a topic that change while the store is open."""

from collections.abc import Callable

import pytest

import varve
from varve.disk import MemoryFileSystem
from varve.foundation.errors import InvalidRecord, InvalidSetting

OpenStore = Callable[..., varve.Store]


def test_altered_settings_hold_at_once_and_after_a_reopen(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=2, settings={"segment.bytes": 5000})
    assert store.alter_topic("orders", {"cleanup.policy": "compact"}) is topic
    for number in range(2):
        with pytest.raises(InvalidRecord, match="no key"):
            topic.append(value="v", partition=number)
    assert topic.settings.segment_bytes == 5000
    store.close()
    reopened = open_store().topic("orders")
    assert reopened.settings == topic.settings
    with pytest.raises(InvalidRecord, match="no key"):
        reopened.append(value="v")


@pytest.mark.parametrize(
    "settings", [{"segment.byte": 1}, {"segment.bytes": 1}, {"nonsense": None}]
)
def test_a_refused_setting_changes_nothing(
    store: varve.Store, settings: dict[str, int | None]
) -> None:
    topic = store.create_topic("orders")
    before = topic.settings
    with pytest.raises(InvalidSetting):
        store.alter_topic("orders", {"flush": "ack", **settings})
    assert topic.settings == before
    assert topic.partition().log.settings == before


def test_a_topic_deleted_at_once_leaves_no_files(store: varve.Store, fs: MemoryFileSystem) -> None:
    store.create_topic("orders").append(value="v")
    store.delete_topic("orders", at_once=True)
    names = fs.names("/data")
    assert not [name for name in names if name.startswith("orders")]
