"""What internal topics hold and cannot be read does not keep a broker from starting."""

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.metrics import UNREADABLE_STATE
from varve.commit_log import AppendOrigin
from varve.records import Record, build_batch
from varve.wire import ErrorCode
from varve.wire.messages.groups import ListGroupsRequest
from varve.wire.messages.state_records import INTERNAL_TOPICS, OFFSETS_TOPIC
from varve.wire.messages.transactions import InitProducerIdRequest

STATUS_77 = b"\0\0" + bytes(8) + bytes(2) + bytes(4) + b"\x4d" + bytes(20)


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(b"", b"", id="empty"),
        pytest.param(b"\0", b"", id="half a type"),
        pytest.param(b"\0\0", b"\0\0", id="a type alone"),
        pytest.param(b"\0\0\0\x01\xff", b"\0\0", id="text that is not UTF-8"),
        pytest.param(b"\0\0\x7f\xff", b"\0\0", id="a length beyond the key"),
        pytest.param(b"\0\0\0\x01t", STATUS_77[:9], id="a value cut short"),
        pytest.param(b"\0\0\0\x01t", STATUS_77, id="an unknown status, or a value too long"),
    ],
)
def test_a_record_that_cannot_be_read_is_ignored_and_counted(
    kit: BrokerKit, topic: str, key: bytes, value: bytes
) -> None:
    kit.make_topic(topic, settings={"cleanup.policy": "compact"})
    batch = build_batch([Record(key, value, timestamp=1)])
    kit.log(topic, 0).append(batch, origin=AppendOrigin.COORDINATOR)
    kit.restart()
    assert kit.ask(ListGroupsRequest()).error_code == ErrorCode.NONE
    assert (
        kit.ask(InitProducerIdRequest("t", transaction_timeout_ms=1_000)).error_code
        == ErrorCode.NONE
    )
    list(kit.broker.metrics.collect())
    assert kit.broker.metrics.value(UNREADABLE_STATE, topic) == 1


def test_a_damaged_batch_is_ignored_and_counted(kit: BrokerKit) -> None:
    kit.make_topic(OFFSETS_TOPIC, settings={"cleanup.policy": "compact"})
    log = kit.log(OFFSETS_TOPIC, 0)
    log.append(build_batch([Record(b"k", b"v", timestamp=1)]), origin=AppendOrigin.COORDINATOR)
    with kit.fs.open_writable(f"{log.directory}/{0:020}.log") as file:
        file.write_at(log.size - 1, b"?")
    kit.restart()
    assert kit.ask(ListGroupsRequest()).error_code == ErrorCode.NONE
    list(kit.broker.metrics.collect())
    assert kit.broker.metrics.value(UNREADABLE_STATE, OFFSETS_TOPIC) == 1
