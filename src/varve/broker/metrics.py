"""Metrics of groups, transactions and deduplicated topics.

Invariant  coordinators count in plain numbers, which are copied into the table at collection.
Threads    counted in the loop's thread, collected in any.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from varve.broker.dedup.topics import DedupTopics
from varve.broker.groups.coordinator import GroupCoordinator
from varve.broker.groups.group import GroupKind
from varve.broker.transactions.coordinator import TransactionCoordinator
from varve.broker.transactions.transaction import Status
from varve.foundation.metrics import MetricTable, counter, declared_metrics, gauge
from varve.wire.messages.state_records import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

GROUPS = gauge(
    "varve_broker_groups",
    "Groups by kind and state.",
    unit="groups",
    labels=("kind", "state"),
    kafka_name="kafka.server:type=group-coordinator-metrics,name=group-count",
)
GROUP_MEMBERS = gauge(
    "varve_broker_group_members",
    "Members of the groups in a state.",
    unit="members",
    labels=("kind", "state"),
)
GROUP_REBALANCES = counter(
    "varve_broker_group_rebalances_total",
    "Rebalances of classic groups, and new epochs of consumer groups.",
    unit="rebalances",
    labels=("kind",),
    kafka_name="kafka.server:type=group-coordinator-metrics,name=group-rebalance-count",
)
OFFSET_COMMITS = counter(
    "varve_broker_offset_commits_total",
    "Offsets that groups have committed, those of committed transactions included.",
    unit="offsets",
    kafka_name="kafka.server:type=group-coordinator-metrics,name=offset-commit-count",
)
TRANSACTIONAL_IDS = gauge(
    "varve_broker_transactional_ids",
    "Transactional ids by the state of their latest transaction.",
    unit="ids",
    labels=("status",),
)
OPEN_TRANSACTIONS = gauge(
    "varve_broker_open_transactions",
    "Transactions that are not complete: undecided, or with markers missing.",
    unit="transactions",
)
COMPLETED_TRANSACTIONS = counter(
    "varve_broker_completed_transactions_total",
    "Completed transactions by outcome: committed or aborted.",
    unit="transactions",
    labels=("outcome",),
)
UNREADABLE_STATE = counter(
    "varve_broker_unreadable_state_total",
    "Records and batches of internal topics that could not be read at the start and were ignored.",
    unit="records",
    labels=("topic",),
)
OVERSIZED_ANSWERS = counter(
    "varve_broker_oversized_answers_total",
    "Requests refused because their answers would exceed varve.response.max.bytes.",
    unit="requests",
    labels=("api",),
)

DEDUP_RECORDS = counter(
    "varve_broker_dedup_records_total",
    "Records produced to deduplicated topics, by verdict: kept, duplicates (dropped), and late, "
    "future, missing (no timestamp) and no_id (kept without a check).",
    unit="records",
    labels=("topic", "verdict"),
)
DEDUP_PARTITIONS = gauge(
    "varve_broker_dedup_partitions",
    "Deduplicated partitions by state: open, restoring or failed.",
    unit="partitions",
    labels=("state",),
)

_OUTCOMES = {Status.COMPLETE_COMMIT: "committed", Status.COMPLETE_ABORT: "aborted"}


class BrokerMetrics(MetricTable):
    """The metrics of one broker; a collector for a registry."""

    def __init__(
        self, groups: GroupCoordinator, transactions: TransactionCoordinator, dedup: DedupTopics
    ) -> None:
        super().__init__(declared_metrics(sys.modules[__name__]))
        self._dedup = dedup
        self._groups = groups
        self._transactions = transactions

    def collect(self) -> "Iterator[Family]":
        """Called by prometheus_client."""
        self._collect_groups()
        self._collect_transactions()
        for labels, count in self._dedup.counts().items():
            self.raise_to(DEDUP_RECORDS, count, *labels)
        self.replace(
            DEDUP_PARTITIONS, {(state,): count for state, count in self._dedup.states().items()}
        )
        return super().collect()

    def _collect_groups(self) -> None:
        groups, members = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        for group in self._groups.groups.snapshot():
            labels = (group.kind.value, group.state_name)
            groups[labels] += 1
            members[labels] += group.member_count
        self.replace(GROUPS, groups)
        self.replace(GROUP_MEMBERS, members)
        for kind in GroupKind:
            self.raise_to(GROUP_REBALANCES, self._groups.rebalance_counts[kind], kind.value)
        self.raise_to(OFFSET_COMMITS, self._groups.offsets.commit_count)
        self.raise_to(UNREADABLE_STATE, self._groups.log.topic.unreadable_count, OFFSETS_TOPIC)

    def _collect_transactions(self) -> None:
        statuses = Counter(entry.current.status for entry in self._transactions.table)
        self.replace(
            TRANSACTIONAL_IDS,
            {(status.display_name,): count for status, count in statuses.items()},
        )
        self.raise_to(UNREADABLE_STATE, self._transactions.unreadable_count, TRANSACTIONS_TOPIC)
        is_open = (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT)
        self.set(OPEN_TRANSACTIONS, sum(statuses[status] for status in is_open))
        for status, outcome in _OUTCOMES.items():
            self.raise_to(
                COMPLETED_TRANSACTIONS, self._transactions.completed_counts[status], outcome
            )
