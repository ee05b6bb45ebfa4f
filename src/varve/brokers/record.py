"""A record as a client sends or receives it."""

from collections.abc import Sequence
from typing import NamedTuple

from varve.foundation.topic_records import (
    NO_TIMESTAMP,
    GivenRecord,
    split_record,
    to_bytes,
    to_headers,
    to_timestamp,
)

RecordHeaders = Sequence[tuple[str, bytes | None]]


class TopicRecord(NamedTuple):
    """A record of a topic; -1 means unknown: chosen by the partitioner, the broker or the clock."""

    topic: str
    partition: int = -1
    offset: int = -1
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: RecordHeaders = ()


def to_topic_record(topic: str, record: GivenRecord, partition: int) -> TopicRecord:
    """A record of any form that `append_many` accepts; raises InvalidRecord. -1: any partition."""
    key, value, headers, timestamp_ms = split_record(record)
    return TopicRecord(
        topic,
        partition,
        timestamp=to_timestamp(timestamp_ms, NO_TIMESTAMP),
        key=to_bytes(key, "key"),
        value=to_bytes(value, "value"),
        headers=list(to_headers(headers)) if headers else (),
    )
