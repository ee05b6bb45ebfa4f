"""EndTxn: a transaction is committed or aborted."""

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.transactions.codes import code_for
from varve.wire import ErrorCode
from varve.wire.messages.transactions import EndTxnRequest, EndTxnResponse


async def answer_end(
    broker: Broker, context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse:
    if not broker.authorizer.is_allowed(
        context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    error = await broker.transactions.end(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        is_commit=request.committed,
    )
    return EndTxnResponse(error_code=code_for(error, context.version))
