"""The table of topics survives its own encoding and names what breaks it."""

import json
from typing import Any
from uuid import UUID

import pytest

from varve.embedded.topic_table import (
    TopicEntry,
    TopicState,
    TopicTable,
    decode_topics,
    encode_topics,
    newest,
)
from varve.foundation.errors import Corrupt, InvalidRequest, InvalidSetting, UnsupportedFormat

ORDERS = TopicEntry(
    name="orders",
    id=UUID(int=7),
    partition_count=3,
    settings={"segment.bytes": "1000"},
    state=TopicState.CREATING,
)


def test_a_table_is_read_as_it_was_written() -> None:
    table = TopicTable().with_topics(ORDERS, TopicEntry(name="x", id=None, partition_count=1))
    assert decode_topics(encode_topics(table)) == table


def test_every_change_raises_the_version_and_the_highest_counts() -> None:
    first = TopicTable().with_topics(ORDERS)
    second = first.without("orders")
    assert (first.version, second.version) == (1, 2)
    assert newest([first, second]) is second
    assert newest([]) == TopicTable()


def _content(**changes: Any) -> bytes:
    topic: dict[str, Any] = {"id": None, "partitions": 1, "settings": {}, "state": "ready"}
    content: dict[str, Any] = {"format": 1, "version": 1, "topics": {"orders": topic}}
    for name, value in changes.items():
        (content if name in content else topic)[name] = value
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", Corrupt),
        (b"[]", Corrupt),
        (b"{", Corrupt),
        (b"\xff\xfe", Corrupt),
        (b"[" * 100_000, Corrupt),
        (_content(format=2), UnsupportedFormat),
        (_content(version=0), Corrupt),
        (_content(version=True), Corrupt),
        (_content(version="1"), Corrupt),
        (_content(topics=[]), Corrupt),
        (_content(topics={"orders": None}), Corrupt),
        (_content(topics={"a/b": {}}), InvalidRequest),
        (_content(partitions=0), Corrupt),
        (_content(partitions=2**31), Corrupt),
        (_content(id="short"), Corrupt),
        (_content(state="gone"), Corrupt),
        (_content(settings=None), Corrupt),
        (_content(settings={"segment.byte": "1"}), InvalidSetting),
        (_content(settings={"segment.bytes": "none"}), InvalidSetting),
    ],
)
def test_a_broken_table_gets_a_named_error(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_topics(data, where="/data/varve-topics.json")


def test_the_error_names_the_file_and_the_remedy() -> None:
    with pytest.raises(Corrupt, match=r"/data/varve-topics.json: .*restore it, or remove it"):
        decode_topics(b"no", where="/data/varve-topics.json")
