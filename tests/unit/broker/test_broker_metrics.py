"""What the broker tells of its groups and transactions, in figures."""

from collections.abc import Iterator

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import ConsumerMember, Member, commit
from tests.support.transaction_bench import QUICK, TransactionBench
from varve.broker.metrics import (
    COMPLETED_TRANSACTIONS,
    GROUP_MEMBERS,
    GROUP_REBALANCES,
    GROUPS,
    OFFSET_COMMITS,
    OPEN_TRANSACTIONS,
    TRANSACTIONAL_IDS,
)
from varve.commit_log import TopicPartition
from varve.foundation.metrics import Metric, exposition

EVENTS = TopicPartition("events", 0)


@pytest.fixture
def kit() -> Iterator[BrokerKit]:
    with BrokerKit(transactions=QUICK) as kit:
        kit.make_topic("events")
        yield kit


def _value(kit: BrokerKit, metric: Metric, *labels: str) -> float:
    list(kit.broker.metrics.collect())
    return kit.broker.metrics.value(metric, *labels)


def test_groups_are_counted_by_kind_and_state(kit: BrokerKit) -> None:
    member = Member(kit).settle()
    assert ConsumerMember(kit, "m").join().error_code == 0
    for kind in ("classic", "consumer"):
        assert _value(kit, GROUPS, kind, "Stable") == 1
        assert _value(kit, GROUP_MEMBERS, kind, "Stable") == 1
        assert _value(kit, GROUP_REBALANCES, kind) == 1
    assert member.leave() == 0
    assert _value(kit, GROUPS, "classic", "Stable") == 0
    assert _value(kit, GROUPS, "classic", "Empty") == 1
    assert _value(kit, GROUP_MEMBERS, "classic", "Empty") == 0
    assert _value(kit, GROUP_REBALANCES, "classic") == 2


def test_transactions_and_commits_are_counted_by_outcome(kit: BrokerKit) -> None:
    assert commit(kit, "alone", "events", 0, 5) == 0
    assert _value(kit, OFFSET_COMMITS) == 1
    bench = TransactionBench(kit)
    producer = bench.start("one")
    for is_commit in (True, False, False):
        bench.add(producer, EVENTS)
        bench.commit_offset(producer, EVENTS, 7)
        assert _value(kit, OPEN_TRANSACTIONS) == 1
        assert _value(kit, TRANSACTIONAL_IDS, "Ongoing") == 1
        bench.end(producer, is_commit=is_commit)
    assert _value(kit, OPEN_TRANSACTIONS) == 0
    assert _value(kit, TRANSACTIONAL_IDS, "Ongoing") == 0
    assert _value(kit, TRANSACTIONAL_IDS, "CompleteAbort") == 1
    assert _value(kit, COMPLETED_TRANSACTIONS, "committed") == 1
    assert _value(kit, COMPLETED_TRANSACTIONS, "aborted") == 2
    assert _value(kit, OFFSET_COMMITS) == 2


def test_figures_stand_beside_those_of_the_store(kit: BrokerKit) -> None:
    text = exposition(kit.store.metrics, kit.broker.metrics)
    assert "varve_broker_open_transactions 0.0" in text
    assert 'varve_broker_completed_transactions_total{outcome="aborted"} 0.0' in text
