"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs of topics, the broker and groups; and
ListConfigResources.

Invariant  the configs of one resource change together or not at all. A resource is described once,
           however often the request names it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
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

_FIRST_WITH_RESOURCE_TYPES: Final = 1
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
            return broker.group_configs.entries(name)
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
    if resource.resource_type == ResourceKind.GROUP:
        return broker.group_configs.plan_replacement(resource.resource_name, values)
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
    if resource.resource_type == ResourceKind.GROUP:
        return broker.group_configs.plan_operations(resource.resource_name, resource.configs)
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
    name, affected = resource.resource_name, [topic.name for topic in broker.topics]
    check: Callable[[Changes], None]
    apply: Callable[[Changes], object]
    match resource.resource_type:
        case ResourceKind.TOPIC:
            affected = [name]
            check = partial(broker.topic_configs.check_changes, name)
            apply = partial(broker.store.alter_topic, name)
        case ResourceKind.GROUP:
            affected = []
            check = partial(broker.group_configs.check, name)
            apply = partial(broker.group_configs.apply, name)
        case _:
            check, apply = broker.broker_configs.check, broker.broker_configs.apply
    async with broker.changing_topics([] if validate_only else affected):
        changes = plan(broker, resource)
        check(changes)
        if changes and not validate_only:
            await broker.blocking.run(apply, changes)


def _check_alterable(broker: Broker, kind: int, name: str) -> None:
    match kind:
        case ResourceKind.TOPIC:
            broker.topics.get(name=name)
        case ResourceKind.BROKER:
            _check_broker_name(broker, name)
        case ResourceKind.GROUP:
            return
        case _:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"resources of type {kind} have no configs; alter those of a topic (2), of the "
                "broker (4) or of a group (32)",
            )


# ListConfigResources

_LISTED_KINDS: Final = tuple(ResourceKind)


async def handle_list_config_resources(
    broker: Broker, context: RequestContext, request: messages.ListConfigResourcesRequest
) -> messages.ListConfigResourcesResponse:
    """What has configs: topics, this broker, and groups with configs of their own. KIP-1142.

    Version 0 lists client metrics alone, of which there are none.
    """
    context.authorize(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    kinds = frozenset(request.resource_types) or frozenset(_LISTED_KINDS)
    if context.version < _FIRST_WITH_RESOURCE_TYPES:
        kinds = frozenset({ResourceKind.CLIENT_METRICS})
    unknown = kinds.difference(_LISTED_KINDS)
    if unknown:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"resource type {min(unknown)}")
    node = [str(broker.settings.node_id)]
    names: dict[ResourceKind, Iterable[str]] = {
        ResourceKind.TOPIC: (topic.name for topic in broker.topics),
        ResourceKind.BROKER: node,
        ResourceKind.BROKER_LOGGER: node,
        ResourceKind.CLIENT_METRICS: (),
        ResourceKind.GROUP: broker.group_configs.names,
    }
    response = messages.ListConfigResourcesResponse()
    size = AnswerSize(broker, context)
    for kind in sorted(kinds):
        async for name in in_turns(names[ResourceKind(kind)]):
            resource = messages.ConfigResource(name, kind)
            response.config_resources.append(resource)
            size.add(resource)
    return response
