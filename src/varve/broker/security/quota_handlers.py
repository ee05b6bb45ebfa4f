"""DescribeClientQuotas, AlterClientQuotas."""

from enum import IntEnum
from typing import Final

from varve.broker.broker import Broker, Handler
from varve.broker.context import RequestContext
from varve.broker.security.quota_table import (
    Changes,
    EntityType,
    QuotaEntity,
    QuotaKind,
    check_value,
)
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.foundation.errors import InvalidRequest, StoreError
from varve.wire import ApiKey, ErrorCode
from varve.wire.errors import code_for
from varve.wire.messages import security as security_messages

_DENIED: Final = "Cluster authorization failed."


class MatchType(IntEnum):
    """How a part of an entity is looked for."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2
    """Whatever its name, the default included."""


def _may(broker: Broker, context: RequestContext, operation: Operation) -> bool:
    return broker.authorizer.is_allowed(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _describe(
    broker: Broker,
    context: RequestContext,
    request: security_messages.DescribeClientQuotasRequest,
) -> security_messages.DescribeClientQuotasResponse:
    if not _may(broker, context, Operation.DESCRIBE_CONFIGS):
        return _no_quotas(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _DENIED)
    try:
        wanted = _wanted(request.components)
    except InvalidRequest as error:
        return _no_quotas(code_for(error), str(error))
    found = broker.quotas.table.find(lambda one: _matches(one, wanted, strict=request.strict))
    return security_messages.DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            security_messages.DescribedQuotaEntry(
                entity=[
                    security_messages.DescribedQuotaEntity(type.value, name)
                    for type, name in entity.names
                ],
                values=[
                    security_messages.ValueData(kind.value, value) for kind, value in values.items()
                ],
            )
            for entity, values in found.items()
        ],
    )


def _no_quotas(code: ErrorCode, message: str) -> security_messages.DescribeClientQuotasResponse:
    return security_messages.DescribeClientQuotasResponse(
        error_code=code, error_message=message, entries=None
    )


_Wanted = dict[EntityType, tuple[MatchType, str | None]]


def _wanted(components: list[security_messages.ComponentData]) -> _Wanted:
    wanted: _Wanted = {}
    for one in components:
        type = _type_of(one.entity_type)
        if type in wanted:
            raise InvalidRequest(f"Entity type {type.value} stands in the filter twice")
        try:
            match = MatchType(one.match_type)
        except ValueError:
            raise InvalidRequest(f"Unknown match type {one.match_type}") from None
        if (one.match is None) is (match is MatchType.EXACT):
            raise InvalidRequest(f"A name must be told where, and only where, it is to be {match}")
        wanted[type] = (match, one.match)
    return wanted


def _type_of(text: str) -> EntityType:
    try:
        return EntityType(text)
    except ValueError:
        raise InvalidRequest(
            f"Entity type {text!r:.40} has no quotas here; there are user and client-id"
        ) from None


def _matches(entity: QuotaEntity, wanted: _Wanted, *, strict: bool) -> bool:
    if strict and len(entity.names) != len(wanted):
        return False
    for type, (match, wanted_name) in wanted.items():
        is_part, name = entity.get(type)
        if not is_part or (match is not MatchType.SPECIFIED and name != wanted_name):
            return False
    return True


async def _alter(
    broker: Broker, context: RequestContext, request: security_messages.AlterClientQuotasRequest
) -> security_messages.AlterClientQuotasResponse:
    results = [
        security_messages.EntryDataResponse(error_message=None, entity=entry.entity)
        for entry in request.entries
    ]
    may = _may(broker, context, Operation.ALTER_CONFIGS)
    changes: list[tuple[security_messages.EntryDataResponse, tuple[QuotaEntity, Changes]]] = []
    for entry, result in zip(request.entries, results, strict=True):
        if not may:
            result.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            result.error_message = _DENIED
            continue
        try:
            changes.append((result, (_entity_of(entry), _changes_of(entry))))
        except InvalidRequest as error:
            result.error_code, result.error_message = code_for(error), str(error)
    try:
        if changes and not request.validate_only:
            await broker.offload(broker.quotas.table.alter, [change for _, change in changes])
    except StoreError as error:
        for result, _ in changes:
            result.error_code, result.error_message = code_for(error), str(error)
    return security_messages.AlterClientQuotasResponse(entries=results)


def _entity_of(entry: security_messages.AlteredQuotaEntry) -> QuotaEntity:
    return QuotaEntity.of((_type_of(one.entity_type), one.entity_name) for one in entry.entity)


def _changes_of(entry: security_messages.AlteredQuotaEntry) -> Changes:
    changes: dict[QuotaKind, float | None] = {}
    for op in entry.ops:
        try:
            kind = QuotaKind(op.key)
        except ValueError:
            raise InvalidRequest(
                f"Quota {op.key!r:.60} is not enforced here and so not kept; there are "
                f"{', '.join(QuotaKind)}"
            ) from None
        if kind in changes:
            raise InvalidRequest(f"Quota {kind.value} stands there twice")
        if not op.remove:
            check_value(kind, op.value)
        changes[kind] = None if op.remove else op.value
    return changes


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _describe,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter,
}
