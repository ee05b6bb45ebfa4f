"""DeleteRecords."""

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import append
from tests.support.log_bench import make_batch
from varve.wire import ErrorCode
from varve.wire.messages.data import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from varve.wire.messages.state_records import OFFSETS_TOPIC


def request(offset: int, topic: str, partition: int) -> DeleteRecordsRequest:
    asked = DeleteRecordsPartition(partition, offset)
    return DeleteRecordsRequest([DeleteRecordsTopic(topic, [asked])], 1_000)


def delete(
    kit: BrokerKit, offset: int, *, topic: str = "events", partition: int = 0, version: int = 2
) -> DeleteRecordsPartitionResult:
    answer = kit.ask(request(offset, topic, partition), version=version)
    found = answer.topics[0].partitions[0]
    assert isinstance(found, DeleteRecordsPartitionResult)
    return found


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(("offset", "start"), [(2, 2), (-1, 5), (0, 0)])
def test_the_log_start_is_raised(kit: BrokerKit, version: int, offset: int, start: int) -> None:
    append(kit, make_batch(5))
    found = delete(kit, offset, version=version)
    assert (found.error_code, found.low_watermark) == (0, start)
    kit.restart()
    assert kit.log("events").log_start_offset == start


def test_refusals(kit: BrokerKit) -> None:
    kit.make_topic("compacted", settings={"cleanup.policy": "compact"})
    kit.make_topic(OFFSETS_TOPIC)
    assert delete(kit, 6).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete(kit, 0, topic="compacted").error_code == ErrorCode.POLICY_VIOLATION
    assert delete(kit, 0, topic=OFFSETS_TOPIC).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert delete(kit, 0, topic="missing").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    missing = delete(kit, 0, partition=4)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert missing.low_watermark == -1


def test_the_time_of_a_request_passes(kit: BrokerKit) -> None:
    append(kit, make_batch(5))
    kit.hold_work(work=True)
    waiting = kit.begin(request(3, "events", 0))
    kit.advance(1_000)
    (found,) = waiting.result().topics[0].partitions
    assert found.error_code == ErrorCode.REQUEST_TIMED_OUT
    kit.release_work()
    assert kit.log("events").log_start_offset == 3  # it happened all the same


def test_a_timeout_of_zero_waits_for_the_deletion(kit: BrokerKit) -> None:
    append(kit, make_batch(5))
    asked = DeleteRecordsTopic("events", [DeleteRecordsPartition(0, 3)])
    [found] = kit.ask(DeleteRecordsRequest([asked], 0)).topics[0].partitions
    assert (found.error_code, found.low_watermark) == (ErrorCode.NONE, 3)
