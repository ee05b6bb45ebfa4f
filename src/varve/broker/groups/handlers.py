"""The handlers of this part, by API."""

from typing import Final

from varve.broker.broker import Handler
from varve.broker.groups.consumer_describe import answer_consumer_describe
from varve.broker.groups.consumer_heartbeat import answer_consumer_heartbeat
from varve.broker.groups.find_coordinator import answer_find_coordinator
from varve.broker.groups.group_admin import answer_delete, answer_describe, answer_list
from varve.broker.groups.members import answer_heartbeat, answer_join, answer_leave, answer_sync
from varve.broker.groups.offset_commit import answer_offset_commit
from varve.broker.groups.offset_delete import answer_offset_delete
from varve.broker.groups.offset_fetch import answer_offset_fetch
from varve.wire import ApiKey

HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.FIND_COORDINATOR: answer_find_coordinator,
    ApiKey.JOIN_GROUP: answer_join,
    ApiKey.SYNC_GROUP: answer_sync,
    ApiKey.HEARTBEAT: answer_heartbeat,
    ApiKey.LEAVE_GROUP: answer_leave,
    ApiKey.OFFSET_COMMIT: answer_offset_commit,
    ApiKey.OFFSET_FETCH: answer_offset_fetch,
    ApiKey.OFFSET_DELETE: answer_offset_delete,
    ApiKey.DESCRIBE_GROUPS: answer_describe,
    ApiKey.LIST_GROUPS: answer_list,
    ApiKey.DELETE_GROUPS: answer_delete,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: answer_consumer_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: answer_consumer_describe,
}
