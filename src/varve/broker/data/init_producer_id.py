"""InitProducerId for producers that are idempotent and nothing else.

Those with a transactional id belong to the part that coordinates transactions.
"""

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.errors import code_of
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def answer_init_producer_id(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Where nobody coordinates transactions, those who want one are told to look further."""
    if request.transactional_id is not None:
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return await give_producer_id(broker, context)


async def give_producer_id(broker: Broker, context: RequestContext) -> InitProducerIdResponse:
    """A new id at epoch 0, for whoever may write anywhere."""
    may_write = broker.authorizer.is_allowed(
        context, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME
    ) or broker.authorizer.is_allowed_somewhere(context, Operation.WRITE, ResourceType.TOPIC)
    if not may_write:
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next_id())
    except StoreError as error:
        return _refused(code_of(error))


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
