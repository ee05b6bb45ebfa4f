"""DescribeUserScramCredentials, AlterUserScramCredentials."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from varve.broker.broker import Broker, Handler
from varve.broker.context import RequestContext
from varve.broker.security.credentials import Change, check_iterations, check_user
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.broker.security.scram import SALT_BYTES_MAX, Mechanism, credential_of
from varve.foundation.errors import InvalidRequest, StoreError
from varve.wire import ApiKey, ErrorCode
from varve.wire.errors import code_for
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

_DENIED: Final = "Cluster authorization failed."
_Asked = ScramCredentialDeletion | ScramCredentialUpsertion


class _Refused(Exception):
    """A change that is not made."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def _may(broker: Broker, context: RequestContext, operation: Operation) -> bool:
    return broker.authorizer.is_allowed(context, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _describe(
    broker: Broker, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    if not _may(broker, context, Operation.DESCRIBE):
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=_DENIED
        )
    # As in Kafka an empty list asks for everybody, like none at all.
    asked = Counter(one.name for one in request.users or ())
    if not asked:
        asked = Counter(list(broker.credentials.users))
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_describe_user(broker, user, count) for user, count in asked.items()],
    )


def _describe_user(broker: Broker, user: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message="Cannot describe SCRAM credentials for the same user twice in a single "
            f"request: {user}",
        )
    found = broker.credentials.users.get(user)
    if found is None:
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
            for mechanism, one in sorted(found.items())
        ],
    )


async def _alter(
    broker: Broker, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    asked: list[_Asked] = [*request.deletions, *request.upsertions]
    results = {
        one.name: AlterUserScramCredentialsResult(user=one.name, error_message=None)
        for one in asked
    }
    response = AlterUserScramCredentialsResponse(results=list(results.values()))
    if not _may(broker, context, Operation.ALTER):
        for result in results.values():
            result.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            result.error_message = _DENIED
        return response
    changes = _plan(broker, asked, results)
    try:
        if changes:
            await broker.offload(broker.credentials.alter, changes)
    except StoreError as error:
        for user, _, _ in changes:
            results[user].error_code = code_for(error)
            results[user].error_message = str(error)
    return response


def _plan(
    broker: Broker,
    asked: Iterable[_Asked],
    results: dict[str, AlterUserScramCredentialsResult],
) -> list[Change]:
    """The changes that can be made; a user of whom one cannot keeps all as they are."""
    changes: dict[tuple[str, int], Change] = {}
    for one in asked:
        try:
            if (one.name, one.mechanism) in changes:
                raise _Refused(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            changes[one.name, one.mechanism] = _change_of(broker, one)
        except _Refused as error:
            results[one.name].error_code = error.code
            results[one.name].error_message = str(error)
    return [one for one in changes.values() if results[one[0]].error_code == ErrorCode.NONE]


def _change_of(broker: Broker, one: _Asked) -> Change:
    try:
        mechanism = Mechanism(one.mechanism)
    except ValueError:
        raise _Refused(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"Unknown SCRAM mechanism {one.mechanism}"
        ) from None
    try:
        check_user(one.name)
        if isinstance(one, ScramCredentialUpsertion):
            check_iterations(one.iterations)
    except InvalidRequest as error:
        raise _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error)) from error
    if isinstance(one, ScramCredentialDeletion):
        if broker.credentials.find(one.name, mechanism) is None:
            raise _Refused(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        return one.name, mechanism, None
    salt, salted = bytes(one.salt), bytes(one.salted_password)
    # As in Kafka, a salted password may have a length that the mechanism never makes.
    if not (1 <= len(salt) <= SALT_BYTES_MAX and 1 <= len(salted) <= SALT_BYTES_MAX):
        raise _Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"a salt of {len(salt)} bytes and a salted password of {len(salted)}; each has 1 to "
            f"{SALT_BYTES_MAX}",
        )
    credential = credential_of(mechanism, salted, salt=salt, iterations=one.iterations)
    return one.name, mechanism, credential


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter,
}
