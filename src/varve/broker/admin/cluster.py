"""ElectLeaders, ListPartitionReassignments and DescribeQuorum, of a cluster with one broker.

The one broker leads every partition and is its own controller: there is nothing to elect or move.
"""

from typing import Final

from varve.broker.broker import Broker
from varve.broker.request import Operation, RequestContext, ResourceType
from varve.wire import ErrorCode
from varve.wire.messages import cluster as messages

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"


# ElectLeaders and ListPartitionReassignments


def handle_elect_leaders(
    broker: Broker, context: RequestContext, request: messages.ElectLeadersRequest
) -> messages.ElectLeadersResponse:
    """Without a list of partitions, those that need no election are left out, as in Kafka."""
    response = messages.ElectLeadersResponse()
    is_authorized = context.is_authorized(Operation.ALTER, ResourceType.CLUSTER)
    if not is_authorized:
        response.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    for requested in request.topic_partitions or ():
        topic = broker.topics.find(requested.topic)
        results = []
        for number in requested.partitions:
            error = ErrorCode.ELECTION_NOT_NEEDED, "its only replica is the leader"
            if not is_authorized:
                error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not authorized to elect leaders"
            elif topic is None or not 0 <= number < len(topic.logs):
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partition does not exist"
            results.append(messages.PartitionResult(number, *error))
        response.replica_election_results.append(
            messages.ReplicaElectionResult(requested.topic, results)
        )
    return response


def handle_list_partition_reassignments(
    broker: Broker, context: RequestContext, request: messages.ListPartitionReassignmentsRequest
) -> messages.ListPartitionReassignmentsResponse:
    context.authorize(Operation.DESCRIBE, ResourceType.CLUSTER)
    return messages.ListPartitionReassignmentsResponse(error_message=None)


# DescribeQuorum

_LEADER_EPOCH: Final = 0
_END_OFFSET: Final = 0
"""There is no metadata log: it counts as empty."""


def handle_describe_quorum(
    broker: Broker, context: RequestContext, request: messages.DescribeQuorumRequest
) -> messages.DescribeQuorumResponse:
    """A quorum of this broker alone; only the partition of the metadata log has one."""
    context.authorize(Operation.DESCRIBE, ResourceType.CLUSTER)
    node_id, endpoint = broker.settings.node_id, broker.endpoints[context.connection.listener]
    response = messages.DescribeQuorumResponse(error_message=None)
    for topic in request.topics:
        partitions = []
        for requested in topic.partitions:
            partition = messages.QuorumPartition(requested.partition_index, error_message=None)
            partitions.append(partition)
            if (topic.topic_name, requested.partition_index) == (CLUSTER_METADATA_TOPIC, 0):
                partition.leader_id, partition.leader_epoch = node_id, _LEADER_EPOCH
                partition.high_watermark = _END_OFFSET
                voter = messages.QuorumReplica(node_id, log_end_offset=_END_OFFSET)
                voter.last_fetch_timestamp = voter.last_caught_up_timestamp = broker.clock.now_ms()
                partition.current_voters = [voter]
            else:
                partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        response.topics.append(messages.QuorumTopicResult(topic.topic_name, partitions))
    listener = messages.QuorumListener(endpoint.listener, endpoint.host, endpoint.port)
    response.nodes = [messages.QuorumNode(node_id, [listener])]
    return response
