"""Producer ids, InitProducerId and DescribeProducers."""

import asyncio

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import append
from tests.support.log_bench import NOW_MS, make_batch
from tests.support.rights import all_but
from varve.broker.request import CLUSTER_NAME, Operation, ResourceType
from varve.broker.transactions.producer_ids import PRODUCER_IDS_FILE
from varve.foundation.errors import Corrupt
from varve.wire import ErrorCode
from varve.wire.messages.data import DescribeProducersRequest, DescribeProducersTopic
from varve.wire.messages.transactions import InitProducerIdRequest

IDEMPOTENT = InitProducerIdRequest(transactional_id=None)


def next_ids(kit: BrokerKit, count: int) -> list[int]:
    async def ask() -> list[int]:
        return [await kit.broker.producer_ids.next_id() for _ in range(count)]

    return kit.run(ask())


def next_id(kit: BrokerKit) -> int:
    return next_ids(kit, 1)[0]


@pytest.mark.parametrize("version", range(6))
def test_an_idempotent_producer_gets_an_id(kit: BrokerKit, version: int) -> None:
    answers = [kit.ask(IDEMPOTENT, version=version) for _ in range(2)]
    assert [(one.error_code, one.producer_epoch) for one in answers] == [(0, 0)] * 2
    assert answers[0].producer_id != answers[1].producer_id


def test_those_who_may_write_nowhere_get_none(kit: BrokerKit) -> None:
    kit.broker.authorizer = all_but(
        (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME),
        (Operation.WRITE, ResourceType.TOPIC, "events"),
    )
    answer = kit.ask(IDEMPOTENT)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert answer.producer_id == -1


@pytest.mark.parametrize("is_crash", [False, True])
def test_ids_never_repeat(kit: BrokerKit, is_crash: bool) -> None:
    given = next_ids(kit, 2_100)
    for _ in range(3):
        kit.restart(is_crash=is_crash)
        given += next_ids(kit, 3)
    assert len(set(given)) == len(given)


def test_many_who_ask_at_once_share_a_block(kit: BrokerKit) -> None:
    async def ask() -> list[int]:
        return await asyncio.gather(*(kit.broker.producer_ids.next_id() for _ in range(1_500)))

    given = kit.run(ask())
    assert sorted(given) == list(range(1_500))


def test_blocks_with_ids_that_logs_or_transactions_use_are_skipped(kit: BrokerKit) -> None:
    append(kit, make_batch(producer_id=41, producer_epoch=0, base_sequence=0), partition=1)
    kit.broker.producer_ids.add_used(1_999)
    ids = next_ids(kit, 1_001)
    assert (ids[0], ids[-1]) == (2_000, 3_000)


@pytest.mark.parametrize("producer_id", [(1 << 63) - 1, (1 << 63) - 1_000, 1 << 62])
def test_a_batch_cannot_use_up_the_ids_before_its_own(kit: BrokerKit, producer_id: int) -> None:
    append(kit, make_batch(producer_id=producer_id, producer_epoch=0, base_sequence=0))
    assert next_ids(kit, 1_001) == list(range(1_001))
    kit.restart()
    answer = kit.ask(IDEMPOTENT)
    assert (answer.error_code, answer.producer_id) == (0, 2_000)


def test_a_block_is_on_disk_before_its_first_id_is_told(kit: BrokerKit) -> None:
    kit.hold_work(work=True)
    waiting = asyncio.ensure_future(kit.broker.producer_ids.next_id(), loop=kit.loop)
    kit.settle()
    assert not waiting.done()
    kit.release_work()
    assert waiting.result() == 0
    assert b"1000" in kit.fs.read(f"data/{PRODUCER_IDS_FILE}")


@pytest.mark.parametrize("next_id_text", ['"many"', "-1", str(1 << 63)])
def test_a_damaged_counter_is_an_error(kit: BrokerKit, next_id_text: str) -> None:
    content = f'{{"format": 1, "version": 1, "next_id": {next_id_text}}}'
    with kit.fs.open_writable(f"data/{PRODUCER_IDS_FILE}") as file:
        file.write_at(0, content.encode())
    with pytest.raises(Corrupt, match="next_id"):
        next_id(kit)
    assert kit.ask(IDEMPOTENT).error_code == ErrorCode.CORRUPT_MESSAGE


def test_producers_of_partitions_are_described(kit: BrokerKit) -> None:
    append(kit, make_batch(2, time=5, producer_id=9, producer_epoch=3, base_sequence=4))
    append(kit, make_batch(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    topics = [DescribeProducersTopic("events", [0, 8]), DescribeProducersTopic("missing", [0])]
    events, missing = kit.ask(DescribeProducersRequest(topics)).topics
    found, unknown = events.partitions
    open_one, plain = found.active_producers
    assert (open_one.producer_id, open_one.current_txn_start_offset) == (7, 2)
    assert (plain.producer_id, plain.producer_epoch, plain.last_sequence) == (9, 3, 5)
    assert (plain.last_timestamp, plain.current_txn_start_offset) == (NOW_MS + 5, -1)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert missing.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
