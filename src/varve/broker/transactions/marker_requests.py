"""WriteTxnMarkers: ends transactions in single partitions, for `kafka-transactions abort`.

Invariant  the transaction coordinator is not asked: it keeps its own view of the transaction, as in
           Kafka. A marker in the response is on disk. Offsets that were committed in the
           transaction count, or are forgotten, with the marker in their partition.
"""

from varve.broker.answers import in_turns
from varve.broker.append_scheduler import AppendEntry
from varve.broker.broker import Broker
from varve.broker.error_responses import reporting
from varve.broker.request import Operation, RequestContext, ResourceType
from varve.commit_log.producer_state import AppendOrigin
from varve.records import end_transaction_marker
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError, code_for
from varve.wire.messages import transactions as messages
from varve.wire.messages.state_records import OFFSETS_TOPIC

_Written = tuple[messages.WritableTxnMarker, AppendEntry, messages.WritableTxnMarkerPartitionResult]


async def handle_write_txn_markers(
    broker: Broker, context: RequestContext, request: messages.WriteTxnMarkersRequest
) -> messages.WriteTxnMarkersResponse:
    """Each partition of each marker has its own error."""
    if not context.is_authorized(Operation.ALTER, ResourceType.CLUSTER):
        context.authorize(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    response = messages.WriteTxnMarkersResponse()
    written: list[_Written] = []
    async for marker in in_turns(request.markers):
        response.markers.append(_plan(broker, marker, written))
    if written:
        await broker.appends.submit([entry for _, entry, _ in written])
    logs = dict.fromkeys(entry.log for _, entry, _ in written if entry.error is None)
    failed = await broker.transactions.markers.sync(logs)
    for marker, entry, result in written:
        partition = entry.log.topic_partition
        if entry.error is not None:
            result.error_code = code_for(entry.error)
        elif partition in failed:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        elif partition.topic == OFFSETS_TOPIC:
            broker.groups.offsets.complete_transaction(
                marker.producer_id, marker.transaction_result, partition=partition
            )
    return response


def _plan(
    broker: Broker, marker: messages.WritableTxnMarker, written: list[_Written]
) -> messages.WritableTxnMarkerResult:
    """Adds an entry for each partition that exists to `written`."""
    batch = _build(broker, marker)
    topics = []
    for topic in marker.topics:
        results = []
        for number in topic.partition_indexes:
            result = messages.WritableTxnMarkerPartitionResult(partition_index=number)
            results.append(result)
            with reporting(result):
                if batch is None:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                log = broker.topics.get(name=topic.name).get_log(number)
                written.append((marker, AppendEntry(log, batch, AppendOrigin.COORDINATOR), result))
        topics.append(messages.WritableTxnMarkerTopicResult(topic.name, results))
    return messages.WritableTxnMarkerResult(marker.producer_id, topics)


def _build(broker: Broker, marker: messages.WritableTxnMarker) -> bytes | None:
    """The control batch; None where there is no such producer."""
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        return None
    return end_transaction_marker(
        committed=marker.transaction_result,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=broker.clock.now_ms(),
    )
