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
