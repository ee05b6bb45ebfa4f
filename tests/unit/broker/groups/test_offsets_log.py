"""The topic in which groups and offsets are kept."""

import asyncio

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.groups.records import GroupRecord, decode_record, encode_record
from varve.broker.state_topic import StateRecord, partition_for, replay_log
from varve.foundation.errors import Corrupt, DirectoryOffline, InvalidRequest
from varve.records import Codec, build_batch
from varve.wire import Message
from varve.wire.messages.state_records import (
    OFFSETS_TOPIC,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)


def _commit(offset: int, partition: int = 0) -> tuple[Message, Message | None]:
    return OffsetCommitKey("g", "events", partition), OffsetCommitValue(offset=offset)


def _decode(records: list[StateRecord]) -> list[GroupRecord]:
    decoded = (decode_record(record, "log") for record in records)
    return [record for record in decoded if record is not None]


def _offsets(kit: BrokerKit) -> dict[int, int]:
    found = {}
    number = kit.broker.groups.log.topic.partition_of("g").partition
    for one in _decode(replay_log(kit.log(OFFSETS_TOPIC, number)).live):
        assert isinstance(one.key, OffsetCommitKey)
        assert isinstance(one.value, OffsetCommitValue)
        found[one.key.partition] = one.value.offset
    return found


# Formats


def test_an_offset_commit_has_the_bytes_that_kafka_writes() -> None:
    value = OffsetCommitValue(offset=42, leader_epoch=7, metadata="m", commit_timestamp=1)
    record = encode_record(OffsetCommitKey("g", "t", 3), value, 1)
    assert record.key == bytes.fromhex("000100016700017400000003")
    expected = "0004000000000000002a00000007026d000000000000000100"
    assert record.value == bytes.fromhex(expected)


def test_an_offset_with_its_own_time_to_expire_is_written_in_the_version_that_has_it() -> None:
    value = OffsetCommitValue(offset=1, expire_timestamp=9)
    record = encode_record(OffsetCommitKey("g", "t", 3), value, 1)
    assert record.value is not None
    assert record.value[:2] == b"\0\1"


def test_records_of_unknown_types_and_versions_are_left_alone() -> None:
    key = b"\0\2\0\1g"
    records = [
        StateRecord(1, b"\0\x63", b""),
        StateRecord(2, key, b"\0\x63"),
        StateRecord(3, key, None),
    ]
    assert _decode(records) == [GroupRecord(GroupMetadataKey("g"), None, 3, -1)]


def test_a_key_without_a_type_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="1 bytes"):
        decode_record(StateRecord(1, b"\0", b""), "log")


def test_a_message_that_is_no_record_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="GroupMetadataValue"):
        encode_record(GroupMetadataValue(), None, 0)


@pytest.mark.parametrize(
    ("group", "partition"),
    # Math.abs("...".hashCode()) % 50 in Java; the second one's hash is Integer.MIN_VALUE.
    [("my-group", 12), ("polygenelubricants", 0), ("", 0), ("😀", 49)],
)
def test_the_partition_of_a_group_is_kafkas(group: str, partition: int) -> None:
    assert partition_for(group, 50) == partition


# The topic


def test_the_topic_is_made_when_it_is_needed_and_only_once(kit: BrokerKit) -> None:
    assert kit.broker.topics.find(OFFSETS_TOPIC) is None
    log = kit.broker.groups.log

    async def two() -> None:
        await asyncio.gather(log.append("a", [_commit(1)]), log.append("b", [_commit(1)]))

    kit.run(two())
    topic = kit.topic(OFFSETS_TOPIC)
    assert len(topic.logs) == 8
    assert topic.settings.is_compacted
    assert topic.settings.syncs_every_append


def test_records_are_read_back_with_the_last_of_each_key(kit: BrokerKit) -> None:
    log = kit.broker.groups.log
    kit.run(log.append("g", [_commit(1), _commit(1, partition=1)]))
    kit.run(log.append("g", [_commit(2), (_commit(0, partition=1)[0], None)]))
    assert _offsets(kit) == {0: 2}


def test_appends_return_in_the_order_they_were_called(kit: BrokerKit) -> None:
    log = kit.broker.groups.log
    kit.run(log.topic.ensure())
    done: list[int] = []

    async def append(number: int) -> None:
        await log.append("g", [_commit(number)])
        done.append(number)

    kit.hold_work(syncs=True)
    tasks = [kit.loop.create_task(append(number)) for number in range(3)]
    kit.settle()
    assert not done
    # The last sync is the first to be done: it covers the others, which must not be overtaken.
    kit.syncs._waiting.reverse()
    kit.release_work()
    kit.run(asyncio.wait(tasks))
    assert done == [0, 1, 2]


def test_an_offline_partition_refuses(kit: BrokerKit) -> None:
    log = kit.broker.groups.log
    kit.run(log.topic.ensure())
    topic = kit.topic(OFFSETS_TOPIC)
    kit.broker.topics._by_name[OFFSETS_TOPIC] = type(topic)(topic.topic, (None,) * 8)
    with pytest.raises(DirectoryOffline, match="__consumer_offsets-"):
        kit.run(log.append("g", [_commit(1)]))


def test_compressed_batches_and_a_log_that_begins_within_one_are_read(kit: BrokerKit) -> None:
    kit.run(kit.broker.groups.log.append("g", [_commit(1), _commit(2, partition=1)]))
    log = kit.log(OFFSETS_TOPIC, kit.broker.groups.log.topic.partition_of("g").partition)
    key, value = _commit(3, partition=2)
    log.append(build_batch([encode_record(key, value, 1)], codec=Codec.GZIP))
    assert _offsets(kit) == {0: 1, 1: 2, 2: 3}
    log.raise_log_start(1)
    assert _offsets(kit) == {1: 2, 2: 3}
