"""The requests of transactional producers, at every version they are served in."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import produce
from tests.support.rights import all_but
from tests.support.transaction_bench import QUICK
from varve.broker.request import Operation, ResourceType
from varve.records import Record, build_batch
from varve.wire import ErrorCode
from varve.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)


@pytest.fixture
def kit() -> Iterator[BrokerKit]:
    with BrokerKit(transactions=QUICK) as kit:
        kit.make_topic("a", partitions=2)
        yield kit


def _init(kit: BrokerKit, version: int = 5, **fields: object) -> tuple[int, int, int]:
    told: dict[str, Any] = {"transactional_id": "t", "transaction_timeout_ms": 1_000, **fields}
    answer = kit.ask(InitProducerIdRequest(**told), version=version)
    return answer.error_code, answer.producer_id, answer.producer_epoch


def _begin(kit: BrokerKit) -> tuple[int, int]:
    """The id and epoch of a new run."""
    error, producer_id, epoch = _init(kit)
    assert error == ErrorCode.NONE
    return producer_id, epoch


def _add(
    kit: BrokerKit, producer: tuple[int, int], *topics: AddPartitionsToTxnTopic, version: int = 3
) -> dict[tuple[str, int], int]:
    answer = kit.ask(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=list(topics) or [AddPartitionsToTxnTopic("a", [0])],
        ),
        version=version,
    )
    return {
        (topic.name, one.partition_index): one.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    }


def _add_offsets(kit: BrokerKit, producer: tuple[int, int], version: int = 4) -> int:
    request = AddOffsetsToTxnRequest("t", producer[0], producer[1], "g")
    code: int = kit.ask(request, version=version).error_code
    return code


def _end(
    kit: BrokerKit, producer: tuple[int, int], *, committed: bool = True, version: int = 4
) -> int:
    request = EndTxnRequest("t", producer[0], producer[1], committed)
    code: int = kit.ask(request, version=version).error_code
    return code


def _commit_offset(
    kit: BrokerKit, producer: tuple[int, int], *, version: int = 4, partition: int = 0
) -> int:
    answer = kit.ask(
        TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            producer_id=producer[0],
            producer_epoch=producer[1],
            topics=[
                TxnOffsetCommitRequestTopic(
                    "a", [TxnOffsetCommitRequestPartition(partition, 5, -1, "note")]
                )
            ],
        ),
        version=version,
    )
    code: int = answer.topics[0].partitions[0].error_code
    return code


def _produce(kit: BrokerKit, producer: tuple[int, int], transactional_id: str = "t") -> int:
    batch = build_batch(
        [Record(b"k", b"v")],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
        transactional=True,
    )
    return produce(kit, "a", batch, transactional_id=transactional_id, version=11).error_code


@pytest.mark.parametrize("version", range(6))
def test_a_transaction_through_all_its_requests(kit: BrokerKit, version: int) -> None:
    error, producer_id, epoch = _init(kit, version)
    assert (error, epoch) == (ErrorCode.NONE, 0)
    producer = (producer_id, epoch)
    assert _add(kit, producer, version=min(version, 3)) == {("a", 0): ErrorCode.NONE}
    assert _produce(kit, producer) == ErrorCode.NONE
    assert _add_offsets(kit, producer, min(version, 4)) == ErrorCode.NONE
    assert _commit_offset(kit, producer, version=min(version, 4)) == ErrorCode.NONE
    assert kit.log("a").last_stable_offset == 0
    assert _end(kit, producer, version=min(version, 4)) == ErrorCode.NONE
    assert kit.log("a").last_stable_offset == kit.log("a").end_offset == 2
    found = kit.broker.groups.offsets.of_group("g")
    assert [(str(one), found[one].offset, found[one].metadata) for one in found] == [
        ("a-0", 5, "note")
    ]


def test_a_fenced_producer_hears_of_it_in_the_words_of_its_version(kit: BrokerKit) -> None:
    old = producer_id, epoch = _begin(kit)
    _init(kit)
    _init(kit)
    for version, expected in (
        (1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, ErrorCode.PRODUCER_FENCED),
    ):
        assert _add(kit, old, version=version) == {("a", 0): expected}
        assert _add_offsets(kit, old, version) == expected
        assert _end(kit, old, version=version) == expected
    for version, expected in (
        (3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (4, ErrorCode.PRODUCER_FENCED),
    ):
        told = _init(kit, version, producer_id=producer_id, producer_epoch=epoch)
        assert told == (expected, -1, -1)
    assert _produce(kit, old) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert _commit_offset(kit, old) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_one_unknown_partition_keeps_the_others_out(kit: BrokerKit) -> None:
    mine = _begin(kit)
    answer = _add(
        kit,
        mine,
        AddPartitionsToTxnTopic("a", [0, 7]),
        AddPartitionsToTxnTopic("missing", [0]),
    )
    assert answer == {
        ("a", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("a", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert _end(kit, mine) == ErrorCode.INVALID_TXN_STATE


def test_offsets_need_their_group_and_their_partition(kit: BrokerKit) -> None:
    mine = _begin(kit)
    _add(kit, mine)
    assert _commit_offset(kit, mine) == ErrorCode.INVALID_TXN_STATE
    assert _add_offsets(kit, mine) == ErrorCode.NONE
    assert _commit_offset(kit, mine, partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert _commit_offset(kit, mine) == ErrorCode.NONE


def test_a_batch_outside_a_transaction_is_refused(kit: BrokerKit) -> None:
    mine = _begin(kit)
    assert _produce(kit, mine) == ErrorCode.INVALID_TXN_STATE
    assert _produce(kit, mine, "nobody") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert kit.log("a").end_offset == 0


NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("operation", "type", "name", "expected"),
    [
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "t", (NO_ID,) * 5),
        (Operation.WRITE, ResourceType.TOPIC, "a", (0, NO_TOPIC, 0, 0, 0)),
        (Operation.READ, ResourceType.GROUP, "g", (0, 0, NO_GROUP, NO_GROUP, 0)),
        (Operation.READ, ResourceType.TOPIC, "a", (0, 0, 0, NO_TOPIC, 0)),
    ],
)
def test_rights_are_asked_for(
    kit: BrokerKit, operation: Operation, type: ResourceType, name: str, expected: tuple[int, ...]
) -> None:
    mine = _begin(kit)
    _add(kit, mine)
    kit.broker.authorizer = all_but((operation, type, name))
    told = _init(kit, producer_id=99, producer_epoch=0)[0]
    assert (told if told != ErrorCode.PRODUCER_FENCED else 0) == expected[0]
    assert _add(kit, mine)["a", 0] == expected[1]
    assert _add_offsets(kit, mine) == expected[2]
    assert _commit_offset(kit, mine) == expected[3]
    assert _end(kit, mine) == expected[4]


def test_an_open_transaction_is_described(kit: BrokerKit) -> None:
    mine = _begin(kit)
    start_ms = kit.clock.now_ms()
    _add(kit, mine, AddPartitionsToTxnTopic("a", [1]))
    kit.clock.advance(50)
    _add(kit, mine)
    found, missing = kit.ask(DescribeTransactionsRequest(["t", "nobody"])).transaction_states
    assert (found.error_code, found.transaction_state) == (ErrorCode.NONE, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == mine
    assert (found.transaction_timeout_ms, found.transaction_start_time_ms) == (1_000, start_ms)
    assert [(one.topic, one.partitions) for one in found.topics] == [("a", [0, 1])]
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    kit.broker.authorizer = all_but((Operation.DESCRIBE, ResourceType.TOPIC, "a"))
    assert kit.ask(DescribeTransactionsRequest(["t"])).transaction_states[0].topics == []


def _listed(kit: BrokerKit, version: int = 2, **fields: Any) -> list[str]:
    answer = kit.ask(ListTransactionsRequest(**fields), version=version)
    assert answer.error_code == ErrorCode.NONE
    return sorted(one.transactional_id for one in answer.transaction_states)


def test_transactions_are_listed_by_what_is_asked(kit: BrokerKit) -> None:
    _add(kit, _begin(kit))
    other = _init(kit, transactional_id="other")[1]
    kit.advance(300)
    for version in range(3):
        assert _listed(kit, version) == ["other", "t"]
        assert _listed(kit, version, state_filters=["Ongoing"]) == ["t"]
        assert _listed(kit, version, state_filters=["Odd"]) == []
        assert _listed(kit, version, producer_id_filters=[other, 99]) == ["other"]
    assert _listed(kit, duration_filter=200, state_filters=["Ongoing"]) == ["t"]
    assert _listed(kit, duration_filter=900, state_filters=["Ongoing"]) == []
    assert _listed(kit, transactional_id_pattern="o.*") == ["other"]
    assert _listed(kit, transactional_id_pattern="o") == []
    unknown = kit.ask(ListTransactionsRequest(state_filters=["Odd", "Empty"]))
    assert unknown.unknown_state_filters == ["Odd"]
    for pattern in ("(", "a)|(b"):
        broken = kit.ask(ListTransactionsRequest(transactional_id_pattern=pattern))
        assert broken.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    kit.broker.authorizer = all_but((Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "t"))
    assert _listed(kit) == ["other"]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_partitions_of_internal_topics_are_not_added_by_clients(kit: BrokerKit, name: str) -> None:
    producer = _begin(kit)
    assert _add_offsets(kit, producer) == ErrorCode.NONE
    added = _add(kit, producer, AddPartitionsToTxnTopic(name, [0]))
    assert added == {(name, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED}
