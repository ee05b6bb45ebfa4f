"""What the coordinators of groups and transactions measure, and the gates of topics.

Invariant  coordinators count in plain numbers; whoever collects brings them into the table.
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
from varve.broker.transactions.state import Status
from varve.foundation.metrics import Metric, MetricTable, counter, declared_metrics, gauge

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

GROUPS = gauge(
    "varve_broker_groups",
    "Groups by the protocol of their members and by state, in Kafka's words.",
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
GROUP_GENERATIONS = counter(
    "varve_broker_group_generations_total",
    "Generations, or epochs of groups, that were begun: members came, went or changed.",
    unit="generations",
    labels=("kind",),
    kafka_name="kafka.server:type=group-coordinator-metrics,name=group-rebalance-count",
)
OFFSET_COMMITS = counter(
    "varve_broker_offset_commits_total",
    "Offsets of partitions that groups have committed, those of committed transactions included.",
    unit="offsets",
    kafka_name="kafka.server:type=group-coordinator-metrics,name=offset-commit-count",
)
TRANSACTIONAL_IDS = gauge(
    "varve_broker_transactional_ids",
    "Transactional ids by the status of their latest transaction, in Kafka's words.",
    unit="ids",
    labels=("status",),
)
OPEN_TRANSACTIONS = gauge(
    "varve_broker_open_transactions",
    "Transactions that are not complete: nobody has decided them, or markers are still missing.",
    unit="transactions",
)
COMPLETED_TRANSACTIONS = counter(
    "varve_broker_completed_transactions_total",
    "Transactions that were completed, by outcome: committed or aborted.",
    unit="transactions",
    labels=("outcome",),
)

DEDUP_RECORDS = counter(
    "varve_broker_dedup_records_total",
    "Records produced to topics that take no duplicates, by what they were found to be: kept, "
    "duplicates, which were left out, or one of late, future, missing (without a time) and no_id, "
    "which were taken without a look.",
    unit="records",
    labels=("topic", "verdict"),
)
DEDUP_PARTITIONS = gauge(
    "varve_broker_dedup_partitions",
    "Partitions of topics that take no duplicates, by the state of their ids: open, restoring or "
    "failed.",
    unit="partitions",
    labels=("state",),
)

_OUTCOMES = {Status.COMPLETE_COMMIT: "committed", Status.COMPLETE_ABORT: "aborted"}


class BrokerMetrics:
    """The figures of one broker; a collector for a registry."""

    def __init__(
        self, groups: GroupCoordinator, transactions: TransactionCoordinator, gates: DedupTopics
    ) -> None:
        self.table = MetricTable(declared_metrics(sys.modules[__name__]))
        self._gates = gates
        self._groups = groups
        self._transactions = transactions

    def collect(self) -> "Iterator[Family]":
        """What prometheus_client asks a collector for."""
        self._look_at_groups()
        self._look_at_transactions()
        self._look_at_gates()
        return self.table.collect()

    def _look_at_groups(self) -> None:
        groups, members = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        for group in self._groups.groups.snapshot():
            labels = (group.kind.value, group.state_name)
            groups[labels] += 1
            members[labels] += group.member_count
        self.table.replace(GROUPS, {labels: float(count) for labels, count in groups.items()})
        self.table.replace(GROUP_MEMBERS, {labels: float(n) for labels, n in members.items()})
        for kind, count in (
            (GroupKind.CLASSIC, self._groups.classic.generation_count),
            (GroupKind.CONSUMER, self._groups.consumer.generation_count),
        ):
            self._raise_to(GROUP_GENERATIONS, count, kind.value)
        self._raise_to(OFFSET_COMMITS, self._groups.offsets.commit_count)

    def _look_at_transactions(self) -> None:
        statuses = Counter(entry.current.status for entry in self._transactions.table)
        by_status: dict[tuple[str, ...], float] = {
            (one.kafka_name,): float(count) for one, count in statuses.items()
        }
        self.table.replace(TRANSACTIONAL_IDS, by_status)
        is_open = (Status.ONGOING, Status.PREPARE_COMMIT, Status.PREPARE_ABORT)
        self.table.set(OPEN_TRANSACTIONS, sum(statuses[one] for one in is_open))
        for status, outcome in _OUTCOMES.items():
            self._raise_to(
                COMPLETED_TRANSACTIONS, self._transactions.completed_counts[status], outcome
            )

    def _look_at_gates(self) -> None:
        for labels, count in self._gates.counts().items():
            self._raise_to(DEDUP_RECORDS, count, *labels)
        states: dict[tuple[str, ...], float] = {
            (state,): float(count) for state, count in self._gates.states().items()
        }
        self.table.replace(DEDUP_PARTITIONS, states)

    def _raise_to(self, metric: Metric, total: int, *labels: str) -> None:
        self.table.add(metric, total - self.table.value(metric, *labels), *labels)
