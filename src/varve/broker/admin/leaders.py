"""ElectLeaders and ListPartitionReassignments: this broker leads everything, and nothing moves."""

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.broker.topics import ServedTopic
from varve.wire import ErrorCode
from varve.wire.messages.cluster import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReplicaElectionResult,
)


def elect_leaders(
    broker: Broker, context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """Asked for all partitions, those that need no election are left out, as Kafka does."""
    may = broker.authorizer.is_allowed
    is_allowed = may(context, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    results = []
    for one in request.topic_partitions or []:
        topic = broker.topics.find(one.topic)
        parts = [
            _result(topic, number)
            if is_allowed
            else PartitionResult(
                partition_id=number, error_code=denied, error_message="no right to elect leaders"
            )
            for number in one.partitions
        ]
        results.append(ReplicaElectionResult(topic=one.topic, partition_result=parts))
    return ElectLeadersResponse(
        error_code=ErrorCode.NONE if is_allowed else denied, replica_election_results=results
    )


def _result(topic: ServedTopic | None, partition: int) -> PartitionResult:
    if topic is None or not 0 <= partition < len(topic.logs):
        return PartitionResult(
            partition_id=partition,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message="there is no such partition",
        )
    return PartitionResult(
        partition_id=partition,
        error_code=ErrorCode.ELECTION_NOT_NEEDED,
        error_message="its only replica leads it",
    )


def list_partition_reassignments(
    broker: Broker, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    may = broker.authorizer.is_allowed
    if not may(context, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return ListPartitionReassignmentsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message="no right to describe the cluster",
        )
    return ListPartitionReassignmentsResponse(error_message=None)
