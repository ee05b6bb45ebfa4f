"""Topics whose names are too long for the keys of objects stay out of the cold tier."""

from pathlib import Path

import pytest

import varve
from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import GivenValue
from varve.object_store.protocol import find_key_fault
from varve.tiering.manifest.paths import TOPIC_SIZE_MAX, RemotePath

TIERED: dict[str, GivenValue] = {"remote.storage.enable": True}
LONGEST, LONGER = "t" * TOPIC_SIZE_MAX, "t" * (TOPIC_SIZE_MAX + 1)


def test_the_longest_name_is_the_longest_that_a_key_takes() -> None:
    for topic, is_good in ((LONGEST, True), (LONGER, False)):
        key = RemotePath("c" * 22, topic, "i" * 22, 0).manifest_key(1)
        assert (find_key_fault(key) is None) == is_good


def test_a_longer_one_is_refused_when_it_is_to_enter_the_tier(tmp_path: Path) -> None:
    with varve.open(str(tmp_path / "data"), maintain=False) as store:
        with pytest.raises(InvalidRequest, match=r"178 characters, .* room for 177; leave out"):
            store.create_topic(LONGER, settings=TIERED)
        store.create_topic(LONGER)
        with pytest.raises(InvalidRequest, match=r"178 characters, .* room for 177; leave out"):
            store.alter_topic(LONGER, TIERED)
        store.create_topic(LONGEST, settings=TIERED).append(value=b"1")
        store.run_once()
        assert store.health().tier == {}
        store.delete_topic(LONGER)
