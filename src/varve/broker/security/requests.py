"""Requests for ACLs, SCRAM credentials and client quotas."""

from collections import Counter
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import partial
from typing import TypeVar

from varve.broker.answers import AnswerSize, in_turns
from varve.broker.broker import Broker
from varve.broker.error_responses import reporting
from varve.broker.request import Operation, RequestContext, ResourceType
from varve.broker.security.acls import AclBinding, AclFilter, PatternType, Permission
from varve.broker.security.credentials import SALT_BYTES_MAX, Change, check_iterations, check_user
from varve.broker.security.quotas import Changes, EntityType, QuotaEntity, QuotaKind, check_value
from varve.foundation.errors import InvalidRequest
from varve.foundation.scram import ScramCredential, ScramMechanism, credential_of
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages import security as messages

Request = TypeVar("Request")
Result = TypeVar("Result", messages.AclCreationResult, messages.DeleteAclsFilterResult)
Value = TypeVar("Value")
E = TypeVar("E", ResourceType, PatternType, Operation, Permission)


def _authorize(broker: Broker, context: RequestContext, operation: Operation) -> None:
    """Raises KafkaError unless the client may see or change ACLs."""
    if not broker.security.has_authorizer:
        raise KafkaError(
            ErrorCode.SECURITY_DISABLED,
            "No Authorizer is configured on the broker: set varve.authorizer.enable=true",
        )
    context.authorize(operation, ResourceType.CLUSTER)


async def handle_describe_acls(
    broker: Broker, context: RequestContext, request: messages.DescribeAclsRequest
) -> messages.DescribeAclsResponse:
    _authorize(broker, context, Operation.DESCRIBE)
    bindings = await broker.blocking.run(broker.acls.find, _to_filter(request))
    resources: dict[tuple[ResourceType, str, PatternType], messages.DescribeAclsResource] = {}
    size = AnswerSize(broker, context)
    async for binding in in_turns(bindings):
        key = (binding.type, binding.name, binding.pattern)
        resource = resources.get(key)
        if resource is None:
            resource = resources[key] = messages.DescribeAclsResource(*key)
            size.add(resource)
        acl = messages.AclDescription(
            binding.principal, binding.host, binding.operation, binding.permission
        )
        size.add(acl)
        resource.acls.append(acl)
    return messages.DescribeAclsResponse(error_message=None, resources=list(resources.values()))


async def handle_create_acls(
    broker: Broker, context: RequestContext, request: messages.CreateAclsRequest
) -> messages.CreateAclsResponse:
    """Creates all valid bindings, or where the table cannot be written none."""
    _authorize(broker, context, Operation.ALTER)
    results = [messages.AclCreationResult(error_message=None) for _ in request.creations]
    valid = await _convert_valid(request.creations, results, _to_binding)
    with reporting(*(result for result, _ in valid)):
        await broker.blocking.run(broker.acls.add, [binding for _, binding in valid])
    return messages.CreateAclsResponse(results=results)


async def handle_delete_acls(
    broker: Broker, context: RequestContext, request: messages.DeleteAclsRequest
) -> messages.DeleteAclsResponse:
    """Deletes what the valid filters match, or where the table cannot be written nothing."""
    _authorize(broker, context, Operation.ALTER)
    results = [messages.DeleteAclsFilterResult(error_message=None) for _ in request.filters]
    valid = await _convert_valid(request.filters, results, _to_filter)
    with reporting(*(result for result, _ in valid)):
        remove = partial(broker.acls.remove, bytes_max=broker.settings.response_max_bytes)
        deleted = await broker.blocking.run(remove, [filter for _, filter in valid])
        async for (result, _), bindings in in_turns(zip(valid, deleted, strict=True)):
            result.matching_acls = [_deleted_acl(one) async for one in in_turns(bindings)]
    return messages.DeleteAclsResponse(filter_results=results)


async def _convert_valid(
    requests: Iterable[Request], results: Iterable[Result], convert: Callable[[Request], Value]
) -> list[tuple[Result, Value]]:
    """The valid requests, converted, each with its result; the other results report the error."""
    valid = []
    async for request, result in in_turns(zip(requests, results, strict=True)):
        with reporting(result):
            valid.append((result, convert(request)))
    return valid


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
    if value not in set(kind):
        message = f"Invalid {field} {value}: not a known value"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    return kind(value)


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


_Alteration = messages.ScramCredentialDeletion | messages.ScramCredentialUpsertion


async def handle_describe_user_scram_credentials(
    broker: Broker, context: RequestContext, request: messages.DescribeUserScramCredentialsRequest
) -> messages.DescribeUserScramCredentialsResponse:
    context.authorize(Operation.DESCRIBE, ResourceType.CLUSTER)
    # As in Kafka, an empty list stands for all users, like null.
    requested = Counter(user.name for user in request.users or ())
    if not requested:
        requested = Counter(list(broker.credentials.users))
    results = []
    async for user, count in in_turns(requested.items()):
        result = messages.DescribeUserScramCredentialsResult(user=user, error_message=None)
        results.append(result)
        with reporting(result):
            result.credential_infos = _describe_user(broker, user, count)
    return messages.DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _describe_user(broker: Broker, user: str, count: int) -> list[messages.CredentialInfo]:
    if count > 1:
        raise KafkaError(
            ErrorCode.DUPLICATE_RESOURCE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: "
            f"{user}",
        )
    credentials = broker.credentials.users.get(user)
    if credentials is None:
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {user}",
        )
    return [
        messages.CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        for mechanism, credential in sorted(credentials.items())
    ]


async def handle_alter_user_scram_credentials(
    broker: Broker, context: RequestContext, request: messages.AlterUserScramCredentialsRequest
) -> messages.AlterUserScramCredentialsResponse:
    alterations: list[_Alteration] = [*request.deletions, *request.upsertions]
    results = {
        alteration.name: messages.AlterUserScramCredentialsResult(
            user=alteration.name, error_message=None
        )
        for alteration in alterations
    }
    response = messages.AlterUserScramCredentialsResponse(results=list(results.values()))
    with reporting(*results.values()):
        context.authorize(Operation.ALTER, ResourceType.CLUSTER)
        changes = await _plan_changes(broker, alterations, results)
        with reporting(*(results[user] for user, _, _ in changes)):
            if changes:
                await broker.blocking.run(broker.credentials.alter, changes)
    return response


async def _plan_changes(
    broker: Broker,
    alterations: Iterable[_Alteration],
    results: dict[str, messages.AlterUserScramCredentialsResult],
) -> list[Change]:
    """The valid changes; a user with an invalid one is not changed at all."""
    changes: dict[tuple[str, int], Change] = {}
    async for alteration in in_turns(alterations):
        with reporting(results[alteration.name]):
            if (alteration.name, alteration.mechanism) in changes:
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            changes[alteration.name, alteration.mechanism] = _to_change(broker, alteration)
    return [
        change for change in changes.values() if results[change[0]].error_code == ErrorCode.NONE
    ]


def _to_change(broker: Broker, alteration: _Alteration) -> Change:
    try:
        mechanism = ScramMechanism(alteration.mechanism)
    except ValueError:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"Unknown SCRAM mechanism {alteration.mechanism}"
        ) from None
    try:
        check_user(alteration.name)
        if isinstance(alteration, messages.ScramCredentialUpsertion):
            return alteration.name, mechanism, _to_credential(mechanism, alteration)
    except InvalidRequest as error:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from error
    if broker.credentials.find(alteration.name, mechanism) is None:
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        )
    return alteration.name, mechanism, None


def _to_credential(
    mechanism: ScramMechanism, upsertion: messages.ScramCredentialUpsertion
) -> ScramCredential:
    check_iterations(upsertion.iterations)
    salt, salted = bytes(upsertion.salt), bytes(upsertion.salted_password)
    # As in Kafka, a salted password may have a length that the mechanism never produces.
    if not (1 <= len(salt) <= SALT_BYTES_MAX and 1 <= len(salted) <= SALT_BYTES_MAX):
        raise InvalidRequest(
            f"a salt of {len(salt)} bytes and a salted password of {len(salted)}; each has 1 to "
            f"{SALT_BYTES_MAX}"
        )
    return credential_of(mechanism, salted, salt=salt, iterations=upsertion.iterations)


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
    response = messages.DescribeClientQuotasResponse(error_message=None, entries=None)
    with reporting(response):
        context.authorize(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
        filter = _to_quota_filter(request.components)
        response.entries = [
            messages.DescribedQuotaEntry(
                entity=[messages.EntityData(type.value, name) for type, name in entity.names],
                values=[messages.ValueData(kind.value, value) for kind, value in values.items()],
            )
            for entity, values in broker.quotas.table.quotas.items()
            if _matches_entity(entity, filter, strict=request.strict)
        ]
    return response


_QuotaFilter = dict[EntityType, tuple[MatchType, str | None]]


def _to_quota_filter(components: list[messages.ComponentData]) -> _QuotaFilter:
    filter: _QuotaFilter = {}
    for component in components:
        type = _to_entity_type(component.entity_type)
        if type in filter:
            raise InvalidRequest(f"Entity type {type.value} is in the filter twice")
        if component.match_type not in set(MatchType):
            raise InvalidRequest(f"Unknown match type {component.match_type}")
        match = MatchType(component.match_type)
        if (component.match is None) is (match is MatchType.EXACT):
            raise InvalidRequest("An exact match needs a name, and no other match has one")
        filter[type] = (match, component.match)
    return filter


def _to_entity_type(text: str) -> EntityType:
    if text not in set(EntityType):
        raise InvalidRequest(f"Entity type {text!r:.40} is not supported; use user or client-id")
    return EntityType(text)


def _matches_entity(entity: QuotaEntity, filter: _QuotaFilter, *, strict: bool) -> bool:
    names = dict(entity.names)
    if strict and len(names) != len(filter):
        return False
    return all(
        type in names and (match is MatchType.SPECIFIED or names[type] == expected_name)
        for type, (match, expected_name) in filter.items()
    )


async def handle_alter_client_quotas(
    broker: Broker, context: RequestContext, request: messages.AlterClientQuotasRequest
) -> messages.AlterClientQuotasResponse:
    results = [
        messages.EntryDataResponse(error_message=None, entity=entry.entity)
        for entry in request.entries
    ]
    changes: list[tuple[messages.EntryDataResponse, tuple[QuotaEntity, Changes]]] = []
    async for entry, result in in_turns(zip(request.entries, results, strict=True)):
        with reporting(result):
            context.authorize(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
            entity = QuotaEntity.from_names(
                (_to_entity_type(part.entity_type), part.entity_name) for part in entry.entity
            )
            changes.append((result, (entity, _to_changes(entry))))
    with reporting(*(result for result, _ in changes)):
        if changes and not request.validate_only:
            await broker.blocking.run(broker.quotas.table.alter, [change for _, change in changes])
    return messages.AlterClientQuotasResponse(entries=results)


def _to_changes(entry: messages.AlteredQuotaEntry) -> Changes:
    changes: dict[QuotaKind, float | None] = {}
    for op in entry.ops:
        if op.key not in set(QuotaKind):
            raise InvalidRequest(
                f"Quota {op.key!r:.60} is not supported; use {', '.join(QuotaKind)}"
            )
        kind = QuotaKind(op.key)
        if kind in changes:
            raise InvalidRequest(f"Quota {kind.value} is given twice")
        if not op.remove:
            check_value(kind, op.value)
        changes[kind] = None if op.remove else op.value
    return changes
