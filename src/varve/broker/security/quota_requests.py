"""DescribeClientQuotas, AlterClientQuotas."""

from enum import IntEnum

from varve.broker.broker import Broker
from varve.broker.request import Operation, RequestContext, ResourceType
from varve.broker.security.quotas import Changes, EntityType, QuotaEntity, QuotaKind, check_value
from varve.foundation.errors import InvalidRequest, StoreError
from varve.wire.errors import KafkaError, code_for
from varve.wire.messages import security as messages


class MatchType(IntEnum):
    """How a component of an entity is matched."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2
    """Any name, the default included."""


def handle_describe_client_quotas(
    broker: Broker,
    context: RequestContext,
    request: messages.DescribeClientQuotasRequest,
) -> messages.DescribeClientQuotasResponse:
    try:
        context.authorize(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
        filter = _to_filter(request.components)
    except (KafkaError, InvalidRequest) as error:
        return messages.DescribeClientQuotasResponse(
            error_code=code_for(error), error_message=str(error), entries=None
        )
    quotas = broker.quotas.table.find(lambda one: _matches(one, filter, strict=request.strict))
    return messages.DescribeClientQuotasResponse(
        error_message=None,
        entries=[
            messages.DescribedQuotaEntry(
                entity=[messages.EntityData(type.value, name) for type, name in entity.names],
                values=[messages.ValueData(kind.value, value) for kind, value in values.items()],
            )
            for entity, values in quotas.items()
        ],
    )


_QuotaFilter = dict[EntityType, tuple[MatchType, str | None]]


def _to_filter(components: list[messages.ComponentData]) -> _QuotaFilter:
    filter: _QuotaFilter = {}
    for component in components:
        type = _to_type(component.entity_type)
        if type in filter:
            raise InvalidRequest(f"Entity type {type.value} is in the filter twice")
        try:
            match = MatchType(component.match_type)
        except ValueError:
            raise InvalidRequest(f"Unknown match type {component.match_type}") from None
        if (component.match is None) is (match is MatchType.EXACT):
            raise InvalidRequest("A name must be given for an exact match, and only for that")
        filter[type] = (match, component.match)
    return filter


def _to_type(text: str) -> EntityType:
    try:
        return EntityType(text)
    except ValueError:
        raise InvalidRequest(
            f"Entity type {text!r:.40} is not supported; use user or client-id"
        ) from None


def _matches(entity: QuotaEntity, filter: _QuotaFilter, *, strict: bool) -> bool:
    if strict and len(entity.names) != len(filter):
        return False
    for type, (match, expected_name) in filter.items():
        is_part, name = entity.get(type)
        if not is_part or (match is not MatchType.SPECIFIED and name != expected_name):
            return False
    return True


async def handle_alter_client_quotas(
    broker: Broker, context: RequestContext, request: messages.AlterClientQuotasRequest
) -> messages.AlterClientQuotasResponse:
    results = [
        messages.EntryDataResponse(error_message=None, entity=entry.entity)
        for entry in request.entries
    ]
    changes: list[tuple[messages.EntryDataResponse, tuple[QuotaEntity, Changes]]] = []
    for entry, result in zip(request.entries, results, strict=True):
        try:
            context.authorize(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
            changes.append((result, (_to_entity(entry), _to_changes(entry))))
        except (KafkaError, InvalidRequest) as error:
            result.error_code, result.error_message = code_for(error), str(error)
    try:
        if changes and not request.validate_only:
            await broker.blocking.run(broker.quotas.table.alter, [change for _, change in changes])
    except StoreError as error:
        for result, _ in changes:
            result.error_code, result.error_message = code_for(error), str(error)
    return messages.AlterClientQuotasResponse(entries=results)


def _to_entity(entry: messages.AlteredQuotaEntry) -> QuotaEntity:
    return QuotaEntity.of(
        (_to_type(entity.entity_type), entity.entity_name) for entity in entry.entity
    )


def _to_changes(entry: messages.AlteredQuotaEntry) -> Changes:
    changes: dict[QuotaKind, float | None] = {}
    for op in entry.ops:
        try:
            kind = QuotaKind(op.key)
        except ValueError:
            raise InvalidRequest(
                f"Quota {op.key!r:.60} is not supported; use {', '.join(QuotaKind)}"
            ) from None
        if kind in changes:
            raise InvalidRequest(f"Quota {kind.value} is given twice")
        if not op.remove:
            check_value(kind, op.value)
        changes[kind] = None if op.remove else op.value
    return changes
