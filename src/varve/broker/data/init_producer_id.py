"""InitProducerId: who a producer is, and that nobody else is it any more."""

from typing import Final

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.errors import code_for
from varve.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

_FIRST_WITH_FENCED: Final = 4


async def answer_init_producer_id(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """A transactional id has its producer id and epoch from the coordinator."""
    transactional_id = request.transactional_id
    if transactional_id is None:
        return await _give_producer_id(broker, context)
    if not broker.authorizer.is_allowed(
        context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    result = await broker.transactions.init_producer(
        transactional_id,
        request.transaction_timeout_ms,
        request.producer_id,
        request.producer_epoch,
    )
    if result.error is ErrorCode.PRODUCER_FENCED and context.version < _FIRST_WITH_FENCED:
        return _refused(ErrorCode.INVALID_PRODUCER_EPOCH)
    return InitProducerIdResponse(
        error_code=result.error,
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )


async def _give_producer_id(broker: Broker, context: RequestContext) -> InitProducerIdResponse:
    """A new id at epoch 0, for whoever may write anywhere."""
    may_write = broker.authorizer.is_allowed(
        context, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME
    ) or broker.authorizer.is_allowed_somewhere(context, Operation.WRITE, ResourceType.TOPIC)
    if not may_write:
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next_id())
    except StoreError as error:
        return _refused(code_for(error))


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
