"""The handler of each API, and the versions that clients may use.

Invariant  no feature is finalized: clients use transactions as they were before KIP-890.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from varve.broker.admin.config_requests import (
    handle_alter_configs,
    handle_describe_configs,
    handle_incremental_alter_configs,
)
from varve.broker.admin.topics import (
    handle_create_partitions,
    handle_create_topics,
    handle_delete_topics,
)
from varve.broker.broker import Broker
from varve.broker.data.fetch import handle_fetch
from varve.broker.data.metadata import (
    handle_describe_cluster,
    handle_describe_log_dirs,
    handle_describe_topic_partitions,
    handle_elect_leaders,
    handle_find_coordinator,
    handle_list_partition_reassignments,
    handle_metadata,
)
from varve.broker.data.offsets import (
    handle_delete_records,
    handle_describe_producers,
    handle_list_offsets,
    handle_offset_for_leader_epoch,
)
from varve.broker.data.produce import handle_produce
from varve.broker.groups.offset_requests import (
    handle_offset_commit,
    handle_offset_delete,
    handle_offset_fetch,
    handle_txn_offset_commit,
)
from varve.broker.groups.requests import (
    handle_consumer_group_describe,
    handle_consumer_group_heartbeat,
    handle_delete_groups,
    handle_describe_groups,
    handle_heartbeat,
    handle_join_group,
    handle_leave_group,
    handle_list_groups,
    handle_sync_group,
)
from varve.broker.request import RequestContext
from varve.broker.security.acl_requests import (
    handle_create_acls,
    handle_delete_acls,
    handle_describe_acls,
)
from varve.broker.security.credential_requests import (
    handle_alter_user_scram_credentials,
    handle_describe_user_scram_credentials,
)
from varve.broker.security.quota_requests import (
    handle_alter_client_quotas,
    handle_describe_client_quotas,
)
from varve.broker.transactions.requests import (
    handle_add_offsets_to_txn,
    handle_add_partitions_to_txn,
    handle_describe_transactions,
    handle_end_txn,
    handle_init_producer_id,
    handle_list_transactions,
)
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
    """The versions of these APIs; also with an error, because the client needs them to go on."""
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
    ApiKey.LIST_OFFSETS: handle_list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: handle_offset_for_leader_epoch,
    ApiKey.DELETE_RECORDS: handle_delete_records,
    ApiKey.DESCRIBE_PRODUCERS: handle_describe_producers,
    ApiKey.METADATA: handle_metadata,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: handle_describe_topic_partitions,
    ApiKey.DESCRIBE_CLUSTER: handle_describe_cluster,
    ApiKey.FIND_COORDINATOR: handle_find_coordinator,
    ApiKey.ELECT_LEADERS: handle_elect_leaders,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: handle_list_partition_reassignments,
    ApiKey.DESCRIBE_LOG_DIRS: handle_describe_log_dirs,
    ApiKey.CREATE_TOPICS: handle_create_topics,
    ApiKey.DELETE_TOPICS: handle_delete_topics,
    ApiKey.CREATE_PARTITIONS: handle_create_partitions,
    ApiKey.DESCRIBE_CONFIGS: handle_describe_configs,
    ApiKey.ALTER_CONFIGS: handle_alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: handle_incremental_alter_configs,
    ApiKey.JOIN_GROUP: handle_join_group,
    ApiKey.SYNC_GROUP: handle_sync_group,
    ApiKey.HEARTBEAT: handle_heartbeat,
    ApiKey.LEAVE_GROUP: handle_leave_group,
    ApiKey.DESCRIBE_GROUPS: handle_describe_groups,
    ApiKey.LIST_GROUPS: handle_list_groups,
    ApiKey.DELETE_GROUPS: handle_delete_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: handle_consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: handle_consumer_group_describe,
    ApiKey.OFFSET_COMMIT: handle_offset_commit,
    ApiKey.OFFSET_FETCH: handle_offset_fetch,
    ApiKey.OFFSET_DELETE: handle_offset_delete,
    ApiKey.TXN_OFFSET_COMMIT: handle_txn_offset_commit,
    ApiKey.INIT_PRODUCER_ID: handle_init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: handle_add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: handle_add_offsets_to_txn,
    ApiKey.END_TXN: handle_end_txn,
    ApiKey.DESCRIBE_TRANSACTIONS: handle_describe_transactions,
    ApiKey.LIST_TRANSACTIONS: handle_list_transactions,
    ApiKey.DESCRIBE_ACLS: handle_describe_acls,
    ApiKey.CREATE_ACLS: handle_create_acls,
    ApiKey.DELETE_ACLS: handle_delete_acls,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: handle_describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: handle_alter_user_scram_credentials,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: handle_describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: handle_alter_client_quotas,
}
"""ApiVersions reports these, and the APIs that the server serves itself."""
