"""DescribeAcls, CreateAcls, DeleteAcls."""

from typing import Final, TypeVar

from varve.broker.broker import Broker, Handler
from varve.broker.context import RequestContext
from varve.broker.security.acl import AclBinding, AclFilter, PatternType, Permission
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.foundation.errors import InvalidRequest, StoreError
from varve.wire import ApiKey, ErrorCode
from varve.wire.errors import code_for
from varve.wire.messages.security import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

E = TypeVar("E", ResourceType, PatternType, Operation, Permission)

_DISABLED: Final = "No Authorizer is configured on the broker: set varve.authorizer.enable=true"


def _refusal(
    broker: Broker, context: RequestContext, operation: Operation
) -> tuple[ErrorCode, str | None]:
    """Why somebody may not see or change rights; NONE if they may."""
    if not broker.security.has_authorizer:
        return ErrorCode.SECURITY_DISABLED, _DISABLED
    if not broker.authorizer.is_allowed(context, operation, ResourceType.CLUSTER, CLUSTER_NAME):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
    return ErrorCode.NONE, None


def _describe(
    broker: Broker, context: RequestContext, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    code, message = _refusal(broker, context, Operation.DESCRIBE)
    if code is not ErrorCode.NONE:
        return DescribeAclsResponse(error_code=code, error_message=message)
    try:
        found = broker.acls.find(_filter_of(request))
    except InvalidRequest as error:
        return DescribeAclsResponse(error_code=code_for(error), error_message=str(error))
    resources: dict[tuple[ResourceType, str, PatternType], DescribeAclsResource] = {}
    for one in found:
        at = (one.type, one.name, one.pattern)
        if at not in resources:
            resources[at] = DescribeAclsResource(
                resource_type=one.type, resource_name=one.name, pattern_type=one.pattern
            )
        resources[at].acls.append(
            AclDescription(
                principal=one.principal,
                host=one.host,
                operation=one.operation,
                permission_type=one.permission,
            )
        )
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))


async def _create(
    broker: Broker, context: RequestContext, request: CreateAclsRequest
) -> CreateAclsResponse:
    code, message = _refusal(broker, context, Operation.ALTER)
    if code is not ErrorCode.NONE:
        refused = AclCreationResult(error_code=code, error_message=message)
        return CreateAclsResponse(results=[refused for _ in request.creations])
    results: list[AclCreationResult] = []
    bindings: list[AclBinding] = []
    for creation in request.creations:
        try:
            bindings.append(_binding_of(creation))
            results.append(AclCreationResult(error_message=None))
        except InvalidRequest as error:
            results.append(AclCreationResult(error_code=code_for(error), error_message=str(error)))
    try:
        await broker.offload(broker.acls.add, bindings)
    except StoreError as error:
        failed = AclCreationResult(error_code=code_for(error), error_message=str(error))
        results = [failed if one.error_code == ErrorCode.NONE else one for one in results]
    return CreateAclsResponse(results=results)


async def _delete(
    broker: Broker, context: RequestContext, request: DeleteAclsRequest
) -> DeleteAclsResponse:
    code, message = _refusal(broker, context, Operation.ALTER)
    if code is not ErrorCode.NONE:
        refused = DeleteAclsFilterResult(error_code=code, error_message=message)
        return DeleteAclsResponse(filter_results=[refused for _ in request.filters])
    results: list[DeleteAclsFilterResult] = []
    filters: list[tuple[DeleteAclsFilterResult, AclFilter]] = []
    for given in request.filters:
        result = DeleteAclsFilterResult(error_message=None)
        results.append(result)
        try:
            filters.append((result, _filter_of(given)))
        except InvalidRequest as error:
            result.error_code, result.error_message = code_for(error), str(error)
    try:
        found = await broker.offload(broker.acls.remove, [one for _, one in filters])
        for (result, _), bindings in zip(filters, found, strict=True):
            result.matching_acls = [_matching(one) for one in bindings]
    except StoreError as error:
        for result, _ in filters:
            result.error_code, result.error_message = code_for(error), str(error)
    return DeleteAclsResponse(filter_results=results)


def _binding_of(given: AclCreation) -> AclBinding:
    return AclBinding(
        type=_known(ResourceType, given.resource_type, "resourceType"),
        name=given.resource_name,
        pattern=_known(PatternType, given.resource_pattern_type, "patternType"),
        principal=given.principal,
        host=given.host,
        operation=_known(Operation, given.operation, "operation"),
        permission=_known(Permission, given.permission_type, "permissionType"),
    )


def _filter_of(given: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        type=_known(ResourceType, given.resource_type_filter, "resourceType"),
        name=given.resource_name_filter,
        pattern=_known(PatternType, given.pattern_type_filter, "patternType"),
        principal=given.principal_filter,
        host=given.host_filter,
        operation=_known(Operation, given.operation, "operation"),
        permission=_known(Permission, given.permission_type, "permissionType"),
    )


def _known(kind: type[E], value: int, what: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"Invalid {what} {value}: it has no meaning here") from None


def _matching(binding: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=binding.type,
        resource_name=binding.name,
        pattern_type=binding.pattern,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.DESCRIBE_ACLS: _describe,
    ApiKey.CREATE_ACLS: _create,
    ApiKey.DELETE_ACLS: _delete,
}
