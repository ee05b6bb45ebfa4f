"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs of topics, the broker and groups.

Invariant  the configs of one resource change together or not at all. A resource is described once,
           however often the request names it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from varve.broker.admin.configs import (
    Changes,
    ConfigEntry,
    ResourceKind,
    check_no_nulls,
)
from varve.broker.answers import AnswerSize, in_turns
from varve.broker.broker import Broker
from varve.broker.error_responses import reporting
from varve.broker.request import CLUSTER_NAME, Operation, RequestContext, ResourceType
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages import topics as messages

_AUTHORIZED_TYPES: Final = {
    ResourceKind.TOPIC: ResourceType.TOPIC,
    ResourceKind.GROUP: ResourceType.GROUP,
}


def _authorize(context: RequestContext, operation: Operation, kind: int, name: str) -> None:
    """Raises KafkaError; what is neither a topic nor a group belongs to the cluster."""
    if kind in _AUTHORIZED_TYPES:
        context.authorize(operation, _AUTHORIZED_TYPES[ResourceKind(kind)], name)
    else:
        context.authorize(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _check_broker_name(broker: Broker, name: str) -> None:
    """Raises KafkaError unless it names this broker, or with the empty name the whole cluster."""
    node_id = str(broker.settings.node_id)
    if name not in ("", node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"broker {name!r:.100} does not exist: use {node_id}, or an empty name for the cluster",
        )


# DescribeConfigs


async def handle_describe_configs(
    broker: Broker, context: RequestContext, request: messages.DescribeConfigsRequest
) -> messages.DescribeConfigsResponse:
    response = messages.DescribeConfigsResponse()
    size = AnswerSize(broker, context)
    async for (kind, name), keys in in_turns(_requested_keys(request).items()):
        result = messages.DescribeConfigsResult(
            error_message=None, resource_type=kind, resource_name=name
        )
        response.results.append(result)
        with reporting(result):
            _authorize(context, Operation.DESCRIBE_CONFIGS, kind, name)
            result.configs = [
                # Without what the client did not request.
                replace(
                    entry,
                    documentation=entry.documentation if request.include_documentation else None,
                    synonyms=entry.synonyms if request.include_synonyms else [],
                )
                for entry in _get_entries(broker, kind, name)
                if not keys or entry.name in keys
            ]
        size.add(result)
    return response


def _requested_keys(
    request: messages.DescribeConfigsRequest,
) -> dict[tuple[int, str], frozenset[str]]:
    """Each resource once, with the keys of all its occurrences; none stand for all."""
    requested: dict[tuple[int, str], frozenset[str]] = {}
    for resource in request.resources:
        key = resource.resource_type, resource.resource_name
        keys = frozenset(resource.configuration_keys or ())
        before = requested.get(key, keys)
        requested[key] = before | keys if before and keys else frozenset()
    return requested


def _get_entries(broker: Broker, kind: int, name: str) -> Sequence[ConfigEntry]:
    match kind:
        case ResourceKind.TOPIC:
            broker.topics.get(name=name)
            return broker.topic_configs.entries(broker.store.given_settings(name))
        case ResourceKind.BROKER:
            _check_broker_name(broker, name)
            configs = broker.broker_configs
            return configs.entries() if name else configs.altered_entries()
        case ResourceKind.GROUP:
            return broker.broker_configs.group_entries()
        case _:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"resources of type {kind} have no configs; describe a topic (2), the broker (4) "
                "or a group (32)",
            )


# AlterConfigs and IncrementalAlterConfigs


async def handle_alter_configs(
    broker: Broker, context: RequestContext, request: messages.AlterConfigsRequest
) -> messages.AlterConfigsResponse:
    """A config that is not named is reset to its default."""
    results = await _alter_all(broker, context, request, _plan_replacement)
    return messages.AlterConfigsResponse(responses=results)


def _plan_replacement(broker: Broker, resource: messages.AlterConfigsResource) -> Changes:
    configs = {config.name: config.value for config in resource.configs}
    if len(configs) < len(resource.configs):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a config is named twice; name it once")
    values = check_no_nulls(configs)
    if resource.resource_type == ResourceKind.TOPIC:
        return broker.topic_configs.plan_replacement(resource.resource_name, values)
    return broker.broker_configs.plan_replacement(values)


async def handle_incremental_alter_configs(
    broker: Broker, context: RequestContext, request: messages.IncrementalAlterConfigsRequest
) -> messages.IncrementalAlterConfigsResponse:
    """A config that is not named does not change."""
    results = await _alter_all(broker, context, request, _plan_operations)
    return messages.IncrementalAlterConfigsResponse(responses=results)


def _plan_operations(broker: Broker, resource: messages.IncrementalAlterConfigsResource) -> Changes:
    if resource.resource_type == ResourceKind.TOPIC:
        return broker.topic_configs.plan_operations(resource.resource_name, resource.configs)
    return broker.broker_configs.plan_operations(resource.configs)


async def _alter_all(
    broker: Broker,
    context: RequestContext,
    request: messages.AlterConfigsRequest | messages.IncrementalAlterConfigsRequest,
    plan: Callable[[Broker, Any], Changes],
) -> list[messages.AlterConfigsResourceResponse]:
    """Alters each resource; a resource that is named twice is not altered."""
    resources: list[Any] = [*request.resources]
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    unique = {(resource.resource_type, resource.resource_name): resource for resource in resources}
    results = []
    async for (kind, name), resource in in_turns(unique.items()):
        result = messages.AlterConfigsResourceResponse(ErrorCode.NONE, None, kind, name)
        results.append(result)
        with reporting(result):
            if counts[kind, name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "a resource is named twice; name it once"
                )
            _authorize(context, Operation.ALTER_CONFIGS, kind, name)
            _check_alterable(broker, kind, name)
            await _alter(broker, resource, plan, validate_only=request.validate_only)
    return results


async def _alter(
    broker: Broker, resource: Any, plan: Callable[[Broker, Any], Changes], *, validate_only: bool
) -> None:
    name, is_topic = resource.resource_name, resource.resource_type == ResourceKind.TOPIC
    affected = [name] if is_topic else [topic.name for topic in broker.topics]
    async with broker.changing_topics([] if validate_only else affected):
        changes = plan(broker, resource)
        if is_topic:
            broker.topic_configs.check_changes(name, changes)
            if changes and not validate_only:
                await broker.blocking.run(broker.store.alter_topic, name, changes)
        else:
            defaults = broker.broker_configs.as_defaults(changes)
            if defaults and not validate_only:
                await broker.blocking.run(broker.store.alter_defaults, defaults)


def _check_alterable(broker: Broker, kind: int, name: str) -> None:
    match kind:
        case ResourceKind.TOPIC:
            broker.topics.get(name=name)
        case ResourceKind.BROKER:
            _check_broker_name(broker, name)
        case ResourceKind.GROUP:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"group {name:.260} has no configs of its own: those of all groups are set when "
                "the broker starts",
            )
        case _:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"resources of type {kind} have no configs; alter those of a topic (2) or of the "
                "broker (4)",
            )
