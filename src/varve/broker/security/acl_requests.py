"""DescribeAcls, CreateAcls, DeleteAcls."""

from typing import TypeVar

from varve.broker.broker import Broker
from varve.broker.request import Operation, RequestContext, ResourceType
from varve.broker.security.acls import AclBinding, AclFilter, PatternType, Permission
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError, code_for
from varve.wire.messages import security as messages

E = TypeVar("E", ResourceType, PatternType, Operation, Permission)


def _authorize(broker: Broker, context: RequestContext, operation: Operation) -> None:
    """Raises KafkaError unless the client may see or change ACLs."""
    if not broker.security.has_authorizer:
        raise KafkaError(
            ErrorCode.SECURITY_DISABLED,
            "No Authorizer is configured on the broker: set varve.authorizer.enable=true",
        )
    context.authorize(operation, ResourceType.CLUSTER)


def handle_describe_acls(
    broker: Broker, context: RequestContext, request: messages.DescribeAclsRequest
) -> messages.DescribeAclsResponse:
    _authorize(broker, context, Operation.DESCRIBE)
    resources: dict[tuple[ResourceType, str, PatternType], messages.DescribeAclsResource] = {}
    for binding in broker.acls.find(_to_filter(request)):
        key = (binding.type, binding.name, binding.pattern)
        if key not in resources:
            resources[key] = messages.DescribeAclsResource(
                resource_type=binding.type,
                resource_name=binding.name,
                pattern_type=binding.pattern,
            )
        resources[key].acls.append(
            messages.AclDescription(
                principal=binding.principal,
                host=binding.host,
                operation=binding.operation,
                permission_type=binding.permission,
            )
        )
    return messages.DescribeAclsResponse(error_message=None, resources=list(resources.values()))


async def handle_create_acls(
    broker: Broker, context: RequestContext, request: messages.CreateAclsRequest
) -> messages.CreateAclsResponse:
    """Creates all valid bindings, or where the table cannot be written none."""
    _authorize(broker, context, Operation.ALTER)
    results: list[messages.AclCreationResult] = []
    bindings: list[AclBinding] = []
    for creation in request.creations:
        try:
            bindings.append(_to_binding(creation))
            results.append(messages.AclCreationResult(error_message=None))
        except StoreError as error:
            results.append(
                messages.AclCreationResult(error_code=code_for(error), error_message=str(error))
            )
    try:
        await broker.blocking.run(broker.acls.add, bindings)
    except StoreError as error:
        failed = messages.AclCreationResult(error_code=code_for(error), error_message=str(error))
        results = [failed if result.error_code == ErrorCode.NONE else result for result in results]
    return messages.CreateAclsResponse(results=results)


async def handle_delete_acls(
    broker: Broker, context: RequestContext, request: messages.DeleteAclsRequest
) -> messages.DeleteAclsResponse:
    """Deletes what the valid filters match, or where the table cannot be written nothing."""
    _authorize(broker, context, Operation.ALTER)
    results: list[messages.DeleteAclsFilterResult] = []
    filters: list[tuple[messages.DeleteAclsFilterResult, AclFilter]] = []
    for requested in request.filters:
        result = messages.DeleteAclsFilterResult(error_message=None)
        results.append(result)
        try:
            filters.append((result, _to_filter(requested)))
        except StoreError as error:
            result.error_code, result.error_message = code_for(error), str(error)
    try:
        deleted = await broker.blocking.run(broker.acls.remove, [one for _, one in filters])
        for (result, _), bindings in zip(filters, deleted, strict=True):
            result.matching_acls = [_deleted_acl(binding) for binding in bindings]
    except StoreError as error:
        for result, _ in filters:
            result.error_code, result.error_message = code_for(error), str(error)
    return messages.DeleteAclsResponse(filter_results=results)


def _to_binding(creation: messages.AclCreation) -> AclBinding:
    return AclBinding(
        type=_to_enum(ResourceType, creation.resource_type, "resourceType"),
        name=creation.resource_name,
        pattern=_to_enum(PatternType, creation.resource_pattern_type, "patternType"),
        principal=creation.principal,
        host=creation.host,
        operation=_to_enum(Operation, creation.operation, "operation"),
        permission=_to_enum(Permission, creation.permission_type, "permissionType"),
    )


def _to_filter(requested: messages.AclBindingFilter) -> AclFilter:
    return AclFilter(
        type=_to_enum(ResourceType, requested.resource_type_filter, "resourceType"),
        name=requested.resource_name_filter,
        pattern=_to_enum(PatternType, requested.pattern_type_filter, "patternType"),
        principal=requested.principal_filter,
        host=requested.host_filter,
        operation=_to_enum(Operation, requested.operation, "operation"),
        permission=_to_enum(Permission, requested.permission_type, "permissionType"),
    )


def _to_enum(kind: type[E], value: int, field: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Invalid {field} {value}: not a known value"
        ) from None


def _deleted_acl(binding: AclBinding) -> messages.DeleteAclsMatchingAcl:
    return messages.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=binding.type,
        resource_name=binding.name,
        pattern_type=binding.pattern,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )
