"""A directory that a Kafka broker wrote opens without a table of topics, and takes appends."""

import shutil
from pathlib import Path

import pytest

import varve

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kafka"


@pytest.mark.parametrize("shutdown", ["clean", "unclean"])
def test_topics_of_a_broker_are_derived_read_and_appended_to(tmp_path: Path, shutdown: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(FIXTURES / shutdown / "data", data)
    expected = sorted(path.parent.name[:-2] for path in data.glob("*-0/partition.metadata"))
    with varve.open(data) as store:
        assert [topic.name for topic in store.topics()] == expected
        assert all(topic.id is not None for topic in store.topics())
        topic = store.topic("transactions")
        everything = [record.offset for record in topic.read()]
        committed = [record.offset for record in topic.read(isolation="read_committed")]
        assert 0 < len(committed) < len(everything)
        assert set(committed) < set(everything)
        end = store.topic("codecs").offsets().end
        assert store.topic("codecs").append(value=b"ours").offset == end
    with varve.open(data) as store:
        *_, last = store.topic("codecs").read()
        assert (last.offset, last.value) == (end, b"ours")


def test_what_a_broker_wrote_is_kept_until_somebody_says_how_long(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(FIXTURES / "clean" / "data", data)
    with varve.open(data, maintain=False) as store:
        assert store.topic("codecs").settings.retention_ms == -1
        store.alter_topic("codecs", {"flush": "ack"})
        assert store.topic("codecs").settings.retention_ms == -1
        assert store.create_topic("ours").settings.retention_ms == 604_800_000
    with varve.open(data, maintain=False, settings={"log.retention.ms": 5_000}) as store:
        assert store.topic("codecs").settings.retention_ms == -1  # altered: now it has its own
        assert store.topic("transactions").settings.retention_ms == 5_000
        store.alter_topic("codecs", {"retention.ms": None})
        assert store.topic("codecs").settings.retention_ms == 5_000
