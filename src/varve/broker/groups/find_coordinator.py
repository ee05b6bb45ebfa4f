"""FindCoordinator: who coordinates a group or a transactional id. It is always this broker."""

from enum import IntEnum
from typing import Final

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.groups.failure import group_code_of
from varve.broker.security.rights import Operation, ResourceType
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.messages.cluster import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

_FIRST_WITH_KEYS: Final = 4


class KeyType(IntEnum):
    """By Kafka's numbers."""

    GROUP = 0
    TRANSACTION = 1


async def answer_find_coordinator(
    broker: Broker, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Where groups are kept is made when somebody first asks for one."""
    if context.version >= _FIRST_WITH_KEYS:
        found = [
            await _find(broker, context, request.key_type, key) for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(broker, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(broker: Broker, context: RequestContext, key_type: int, key: str) -> Coordinator:
    error, message = _check(broker, context, key_type, key)
    if error is ErrorCode.NONE and key_type == KeyType.GROUP:
        try:
            await broker.groups.log.ensure_topic()
        except StoreError as failure:
            error, message = group_code_of(failure), str(failure)
    if error is not ErrorCode.NONE:
        return Coordinator(key, -1, "", -1, error, message)
    endpoint = broker.endpoints[context.connection.listener]
    return Coordinator(key, broker.settings.node_id, endpoint.host, endpoint.port)


def _check(
    broker: Broker, context: RequestContext, key_type: int, key: str
) -> tuple[ErrorCode, str]:
    may = broker.authorizer.is_allowed
    match key_type:
        case KeyType.GROUP:
            if may(context, Operation.DESCRIBE, ResourceType.GROUP, key):
                return ErrorCode.NONE, ""
            return ErrorCode.GROUP_AUTHORIZATION_FAILED, f"no right to see group {key}"
        case KeyType.TRANSACTION:
            if may(context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
                return ErrorCode.NONE, ""
            error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return error, f"no right to see transactional id {key}"
        case _:
            return (
                ErrorCode.INVALID_REQUEST,
                f"there are no coordinators of type {key_type}, only of groups (0) and "
                "transactions (1)",
            )
