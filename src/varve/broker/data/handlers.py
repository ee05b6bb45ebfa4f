"""The handlers of this part, by API."""

from typing import Final

from varve.broker.broker import Handler
from varve.broker.data.delete_records import answer_delete_records
from varve.broker.data.describe_cluster import answer_describe_cluster
from varve.broker.data.describe_producers import answer_describe_producers
from varve.broker.data.describe_topics import answer_describe_topics
from varve.broker.data.fetch import answer_fetch
from varve.broker.data.init_producer_id import answer_init_producer_id
from varve.broker.data.list_offsets import answer_list_offsets
from varve.broker.data.metadata import answer_metadata
from varve.broker.data.offset_for_leader_epoch import answer_offset_for_leader_epoch
from varve.broker.data.produce import answer_produce
from varve.wire import ApiKey

HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.PRODUCE: answer_produce,
    ApiKey.FETCH: answer_fetch,
    ApiKey.LIST_OFFSETS: answer_list_offsets,
    ApiKey.METADATA: answer_metadata,
    ApiKey.DELETE_RECORDS: answer_delete_records,
    ApiKey.INIT_PRODUCER_ID: answer_init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: answer_offset_for_leader_epoch,
    ApiKey.DESCRIBE_CLUSTER: answer_describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: answer_describe_producers,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: answer_describe_topics,
}
