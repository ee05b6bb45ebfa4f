"""DescribeUserScramCredentials, AlterUserScramCredentials."""

from collections import Counter
from collections.abc import Iterable

from varve.broker.broker import Broker
from varve.broker.request import Operation, RequestContext, ResourceType
from varve.broker.security.credentials import SALT_BYTES_MAX, Change, check_iterations, check_user
from varve.foundation.errors import InvalidRequest, StoreError
from varve.foundation.scram import ScramMechanism, credential_of
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError, code_for
from varve.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

_Alteration = ScramCredentialDeletion | ScramCredentialUpsertion


def handle_describe_user_scram_credentials(
    broker: Broker, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    context.authorize(Operation.DESCRIBE, ResourceType.CLUSTER)
    # As in Kafka, an empty list stands for all users, like null.
    requested = Counter(user.name for user in request.users or ())
    if not requested:
        requested = Counter(list(broker.credentials.users))
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_describe_user(broker, user, count) for user, count in requested.items()],
    )


def _describe_user(broker: Broker, user: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message="Cannot describe SCRAM credentials for the same user twice in a single "
            f"request: {user}",
        )
    credentials = broker.credentials.users.get(user)
    if credentials is None:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=f"Attempt to describe a user credential that does not exist: {user}",
        )
    return DescribeUserScramCredentialsResult(
        user=user,
        error_message=None,
        credential_infos=[
            CredentialInfo(mechanism=mechanism, iterations=one.iterations)
            for mechanism, one in sorted(credentials.items())
        ],
    )


async def handle_alter_user_scram_credentials(
    broker: Broker, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    alterations: list[_Alteration] = [*request.deletions, *request.upsertions]
    results = {
        alteration.name: AlterUserScramCredentialsResult(user=alteration.name, error_message=None)
        for alteration in alterations
    }
    response = AlterUserScramCredentialsResponse(results=list(results.values()))
    try:
        context.authorize(Operation.ALTER, ResourceType.CLUSTER)
    except KafkaError as error:
        for result in results.values():
            result.error_code, result.error_message = error.code, str(error)
        return response
    changes = _plan_changes(broker, alterations, results)
    try:
        if changes:
            await broker.blocking.run(broker.credentials.alter, changes)
    except StoreError as error:
        for user, _, _ in changes:
            results[user].error_code, results[user].error_message = code_for(error), str(error)
    return response


def _plan_changes(
    broker: Broker,
    alterations: Iterable[_Alteration],
    results: dict[str, AlterUserScramCredentialsResult],
) -> list[Change]:
    """The valid changes; a user with an invalid one is not changed at all."""
    changes: dict[tuple[str, int], Change] = {}
    for alteration in alterations:
        try:
            if (alteration.name, alteration.mechanism) in changes:
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            changes[alteration.name, alteration.mechanism] = _to_change(broker, alteration)
        except KafkaError as error:
            result = results[alteration.name]
            result.error_code, result.error_message = error.code, str(error)
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
        if isinstance(alteration, ScramCredentialUpsertion):
            check_iterations(alteration.iterations)
    except InvalidRequest as error:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from error
    if isinstance(alteration, ScramCredentialDeletion):
        if broker.credentials.find(alteration.name, mechanism) is None:
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        return alteration.name, mechanism, None
    salt, salted = bytes(alteration.salt), bytes(alteration.salted_password)
    # As in Kafka, a salted password may have a length that the mechanism never produces.
    if not (1 <= len(salt) <= SALT_BYTES_MAX and 1 <= len(salted) <= SALT_BYTES_MAX):
        raise KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"a salt of {len(salt)} bytes and a salted password of {len(salted)}; each has 1 to "
            f"{SALT_BYTES_MAX}",
        )
    credential = credential_of(mechanism, salted, salt=salt, iterations=alteration.iterations)
    return alteration.name, mechanism, credential
