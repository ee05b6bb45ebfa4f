"""DescribeConfigs: the settings of topics, the broker and groups, and where they come from."""

import asyncio
from collections.abc import Sequence

from varve.broker.admin.config_entry import ConfigEntry, ResourceKind
from varve.broker.admin.config_rights import check_config_right
from varve.broker.admin.refusal import Refusal, refusal_of
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.messages.topics import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


async def describe_configs(
    broker: Broker, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    results = []
    for one in request.resources:
        results.append(_describe(broker, context, request, one))
        # Some ask for every topic there is: others have their turn in between.
        await asyncio.sleep(0)
    return DescribeConfigsResponse(results=results)


def _describe(
    broker: Broker,
    context: RequestContext,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    try:
        check_config_right(
            broker,
            context,
            Operation.DESCRIBE_CONFIGS,
            resource.resource_type,
            resource.resource_name,
        )
        entries = _entries(broker, resource)
    except (Refusal, StoreError) as error:
        refusal = refusal_of(error)
        result.error_code, result.error_message = refusal.code, str(refusal)
        return result
    wanted = resource.configuration_keys
    result.configs = [
        _tell(entry, request) for entry in entries if not wanted or entry.name in wanted
    ]
    return result


def _entries(broker: Broker, resource: DescribeConfigsResource) -> Sequence[ConfigEntry]:
    name = resource.resource_name
    match resource.resource_type:
        case ResourceKind.TOPIC:
            if broker.topics.find(name) is None:
                raise Refusal(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name:.260}"
                )
            return broker.admin.topic_configs.entries(broker.store.given_settings(name))
        case ResourceKind.BROKER:
            check_broker_name(broker, name)
            configs = broker.admin.broker_configs
            return configs.entries() if name else configs.altered_entries()
        case ResourceKind.GROUP:
            return broker.admin.broker_configs.group_entries()
        case kind:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"resources of type {kind} have no settings here; ask for a topic (2), the broker "
                "(4) or a group (32)",
            )


def check_broker_name(broker: Broker, name: str) -> None:
    """Raises Refusal unless it stands for this broker, or for the whole cluster."""
    node_id = str(broker.settings.node_id)
    if name not in ("", node_id):
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"there is no broker {name!r:.100}: give {node_id}, or nothing for the cluster",
        )


def _tell(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    result = DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        config_type=entry.type,
        documentation=entry.help if request.include_documentation else None,
    )
    if request.include_synonyms:
        result.synonyms = [
            DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source)
            for one in entry.synonyms
        ]
    return result
