"""AlterConfigs and IncrementalAlterConfigs: settings of topics, and of all topics by the broker's.

Invariant  the settings of one resource change together or not at all.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from varve.broker.admin.config_entry import ResourceKind
from varve.broker.admin.config_rights import check_config_right
from varve.broker.admin.describe_configs import check_broker_name
from varve.broker.admin.refusal import Refusal, refusal_of
from varve.broker.admin.topic_configs import Changes, ConfigChange, check_no_nulls
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.messages import topics as topics_messages

_Resource = tuple[int, str]
_Plans = list[tuple[_Resource, Callable[[], Changes]]]


async def alter_configs(
    broker: Broker, context: RequestContext, request: topics_messages.AlterConfigsRequest
) -> topics_messages.AlterConfigsResponse:
    """What is not named goes back to its default."""
    plans: _Plans = [
        ((one.resource_type, one.resource_name), partial(_replacing, broker, one))
        for one in request.resources
    ]
    refusals = await _alter_all(broker, context, plans, is_trial=request.validate_only)
    return topics_messages.AlterConfigsResponse(
        responses=[
            topics_messages.AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=kind, resource_name=name
            )
            for (kind, name), (code, message) in refusals.items()
        ]
    )


def _replacing(broker: Broker, resource: topics_messages.AlterConfigsResource) -> Changes:
    configs = {config.name: config.value for config in resource.configs}
    if len(configs) < len(resource.configs):
        raise Refusal(ErrorCode.INVALID_REQUEST, "a setting is given twice; give it once")
    given = check_no_nulls(configs)
    if resource.resource_type == ResourceKind.TOPIC:
        return broker.admin.topic_configs.replacing(resource.resource_name, given)
    return broker.admin.broker_configs.replacing(given)


async def incremental_alter_configs(
    broker: Broker, context: RequestContext, request: topics_messages.IncrementalAlterConfigsRequest
) -> topics_messages.IncrementalAlterConfigsResponse:
    """What is not named stays."""
    plans: _Plans = [
        ((one.resource_type, one.resource_name), partial(_applying, broker, one))
        for one in request.resources
    ]
    refusals = await _alter_all(broker, context, plans, is_trial=request.validate_only)
    return topics_messages.IncrementalAlterConfigsResponse(
        responses=[
            topics_messages.IncrementalAlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=kind, resource_name=name
            )
            for (kind, name), (code, message) in refusals.items()
        ]
    )


def _applying(broker: Broker, resource: topics_messages.IncrementalAlterConfigsResource) -> Changes:
    changes = [
        ConfigChange(config.name, config.config_operation, config.value)
        for config in resource.configs
    ]
    if resource.resource_type == ResourceKind.TOPIC:
        return broker.admin.topic_configs.applying(resource.resource_name, changes)
    return broker.admin.broker_configs.applying(changes)


async def _alter_all(
    broker: Broker, context: RequestContext, plans: _Plans, *, is_trial: bool
) -> dict[_Resource, tuple[ErrorCode, str | None]]:
    """Makes the changes of each resource; gives its error, or NONE."""
    counts = Counter(resource for resource, _ in plans)
    found: dict[_Resource, tuple[ErrorCode, str | None]] = {}
    for resource, make_out in dict(plans).items():
        try:
            if counts[resource] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "a resource is named twice; name it once")
            await _alter(broker, context, resource, make_out, is_trial=is_trial)
            found[resource] = (ErrorCode.NONE, None)
        except (Refusal, StoreError) as error:
            refusal = refusal_of(error)
            found[resource] = (refusal.code, str(refusal))
    return found


async def _alter(
    broker: Broker,
    context: RequestContext,
    resource: _Resource,
    make_out: Callable[[], Changes],
    *,
    is_trial: bool,
) -> None:
    kind, name = resource
    check_config_right(broker, context, Operation.ALTER_CONFIGS, kind, name)
    _check_resource(broker, kind, name)
    touched = [name] if kind == ResourceKind.TOPIC else [one.name for one in broker.topics]
    async with broker.admin.changing([] if is_trial else touched):
        await _change(broker, resource, make_out(), is_trial=is_trial)


def _check_resource(broker: Broker, kind: int, name: str) -> None:
    match kind:
        case ResourceKind.TOPIC:
            if broker.topics.find(name) is None:
                raise Refusal(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name:.260}"
                )
        case ResourceKind.BROKER:
            check_broker_name(broker, name)
        case ResourceKind.GROUP:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"group {name:.260} has no settings of its own: those of all groups are set when "
                "the broker starts",
            )
        case _:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"resources of type {kind} have no settings here; alter those of a topic (2) or "
                "of the broker (4)",
            )


async def _change(broker: Broker, resource: _Resource, changes: Changes, *, is_trial: bool) -> None:
    kind, name = resource
    admin = broker.admin
    if kind == ResourceKind.TOPIC:
        admin.topic_configs.merged(name, changes)
        if changes and not is_trial:
            await admin.change(broker.store.alter_topic, name, changes)
        return
    defaults = admin.broker_configs.as_defaults(changes)
    if defaults and not is_trial:
        await admin.change(broker.store.alter_defaults, defaults)
