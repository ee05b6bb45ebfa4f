"""The handler of each API, and the versions that clients may use.

Invariant  no feature is finalized: clients use transactions as they were before KIP-890.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from varve.broker.admin import config_requests, topics
from varve.broker.broker import Broker
from varve.broker.data import metadata, offsets
from varve.broker.data.fetch import handle_fetch
from varve.broker.data.produce import handle_produce
from varve.broker.groups import offset_requests
from varve.broker.groups import requests as group_requests
from varve.broker.request import RequestContext
from varve.broker.security import requests as security
from varve.broker.transactions import requests as transaction_requests
from varve.wire import APIS, ApiKey, ErrorCode, Message
from varve.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

Handler = Callable[[Broker, RequestContext, Any], Message | Awaitable[Message | None] | None]
"""Answers a request at once or later; None where the request has no response.

The bytes of the request belong to the handler until then. Raises KafkaError where the whole request
fails, and CloseConnection.
"""

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SERVER_APIS: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
"""Served by the server itself."""


def api_versions_response(
    keys: Iterable[ApiKey], error: ErrorCode = ErrorCode.NONE
) -> ApiVersionsResponse:
    """The versions of these APIs; also with an error, because the client needs them to continue."""
    apis = [APIS[key] for key in sorted(keys)]
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[ApiVersion(api.key, api.first_advertised, api.versions.last) for api in apis],
    )


def handle_api_versions(
    broker: Broker, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    served = (*HANDLERS, *_SERVER_APIS)
    software = (request.client_software_name, request.client_software_version)
    if context.version >= 3 and not all(_SOFTWARE.fullmatch(text) for text in software):
        return api_versions_response(served, ErrorCode.INVALID_REQUEST)
    return api_versions_response(served)


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.API_VERSIONS: handle_api_versions,
    ApiKey.PRODUCE: handle_produce,
    ApiKey.FETCH: handle_fetch,
    ApiKey.LIST_OFFSETS: offsets.handle_list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.handle_offset_for_leader_epoch,
    ApiKey.DELETE_RECORDS: offsets.handle_delete_records,
    ApiKey.DESCRIBE_PRODUCERS: offsets.handle_describe_producers,
    ApiKey.METADATA: metadata.handle_metadata,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: metadata.handle_describe_topic_partitions,
    ApiKey.DESCRIBE_CLUSTER: metadata.handle_describe_cluster,
    ApiKey.FIND_COORDINATOR: metadata.handle_find_coordinator,
    ApiKey.ELECT_LEADERS: metadata.handle_elect_leaders,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: metadata.handle_list_partition_reassignments,
    ApiKey.DESCRIBE_LOG_DIRS: metadata.handle_describe_log_dirs,
    ApiKey.CREATE_TOPICS: topics.handle_create_topics,
    ApiKey.DELETE_TOPICS: topics.handle_delete_topics,
    ApiKey.CREATE_PARTITIONS: topics.handle_create_partitions,
    ApiKey.DESCRIBE_CONFIGS: config_requests.handle_describe_configs,
    ApiKey.ALTER_CONFIGS: config_requests.handle_alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: config_requests.handle_incremental_alter_configs,
    ApiKey.JOIN_GROUP: group_requests.handle_join_group,
    ApiKey.SYNC_GROUP: group_requests.handle_sync_group,
    ApiKey.HEARTBEAT: group_requests.handle_heartbeat,
    ApiKey.LEAVE_GROUP: group_requests.handle_leave_group,
    ApiKey.DESCRIBE_GROUPS: group_requests.handle_describe_groups,
    ApiKey.LIST_GROUPS: group_requests.handle_list_groups,
    ApiKey.DELETE_GROUPS: group_requests.handle_delete_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: group_requests.handle_consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: group_requests.handle_consumer_group_describe,
    ApiKey.OFFSET_COMMIT: offset_requests.handle_offset_commit,
    ApiKey.OFFSET_FETCH: offset_requests.handle_offset_fetch,
    ApiKey.OFFSET_DELETE: offset_requests.handle_offset_delete,
    ApiKey.TXN_OFFSET_COMMIT: offset_requests.handle_txn_offset_commit,
    ApiKey.INIT_PRODUCER_ID: transaction_requests.handle_init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: transaction_requests.handle_add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: transaction_requests.handle_add_offsets_to_txn,
    ApiKey.END_TXN: transaction_requests.handle_end_txn,
    ApiKey.DESCRIBE_TRANSACTIONS: transaction_requests.handle_describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transaction_requests.handle_list_transactions,
    ApiKey.DESCRIBE_ACLS: security.handle_describe_acls,
    ApiKey.CREATE_ACLS: security.handle_create_acls,
    ApiKey.DELETE_ACLS: security.handle_delete_acls,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: security.handle_describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: security.handle_alter_user_scram_credentials,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: security.handle_describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: security.handle_alter_client_quotas,
}
"""ApiVersions reports these, and the APIs that the server serves itself."""
