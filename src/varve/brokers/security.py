"""The ACLs and the SCRAM users of a broker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from varve.brokers.client import BrokerClient, admin_api
from varve.brokers.errors import Denied, Refused, acls_disabled
from varve.foundation.errors import InvalidRequest

CLUSTER_NAME: Final = "kafka-cluster"
OPERATIONS: Final = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
)

_AUTHORIZER_SETTINGS: Final = ("authorizer.class.name", "varve.authorizer.enable")


class AclResource(NamedTuple):
    """What an ACL is on; the type is librdkafka's: TOPIC, GROUP, TRANSACTIONAL_ID or BROKER."""

    type: str
    name: str


class AclRow(NamedTuple):
    principal: str
    permission: str
    operation: str
    resource: str
    name: str
    pattern: str
    host: str


@dataclass(frozen=True, slots=True)
class Acl:
    """An ACL of the broker, and librdkafka's object for it."""

    row: AclRow
    binding: Any


def find_acls(
    client: BrokerClient,
    *,
    principal: str | None = None,
    resource: AclResource | None = None,
    operations: Sequence[str] = (),
) -> list[Acl]:
    """The ACLs that match what is given, in order."""
    api = admin_api()
    selected = {api.AclOperation[name.upper()] for name in operations}
    kind = api.ResourceType.ANY if resource is None else api.ResourceType[resource.type]
    filter = api.AclBindingFilter(
        kind,
        None if resource is None else resource.name,
        api.ResourcePatternType.ANY,
        principal,
        None,
        api.AclOperation.ANY,
        api.AclPermissionType.ANY,
    )
    client.check_may_describe("the ACLs")
    bindings = client.result(client.admin().describe_acls(filter), "the ACLs")
    if not bindings:
        _check_authorizer(client)
    acls = [
        Acl(_to_row(binding), binding)
        for binding in bindings
        if not selected or binding.operation in selected
    ]
    return sorted(acls, key=lambda acl: acl.row)


def _check_authorizer(client: BrokerClient) -> None:
    """Raises Refused if the broker has no authorizer: librdkafka returns an empty list for that.

    A client that may not read the broker's settings has met an authorizer.
    """
    api = admin_api()
    node = client.result(client.admin().describe_cluster(), "the cluster").nodes[0]
    resource = api.ConfigResource(api.ConfigResource.Type.BROKER, str(node.id))
    [future] = client.admin().describe_configs([resource]).values()
    try:
        settings = client.result(future, "the settings of the broker")
    except Denied:
        return
    values = [settings[name].value for name in _AUTHORIZER_SETTINGS if name in settings]
    if values and all(value in (None, "", "false") for value in values):
        raise Refused(acls_disabled(client.address))


def _to_row(binding: Any) -> AclRow:
    kind = binding.restype.name.lower()
    return AclRow(
        binding.principal,
        binding.permission_type.name.lower(),
        binding.operation.name.lower(),
        "cluster" if kind == "broker" else kind,
        binding.name,
        binding.resource_pattern_type.name.lower(),
        binding.host,
    )


def add_acls(
    client: BrokerClient,
    resource: AclResource,
    *,
    principal: str,
    operations: Sequence[str],
    is_prefixed: bool = False,
    host: str = "*",
    is_denial: bool = False,
) -> list[AclRow]:
    """Allow or deny each operation."""
    if ":" not in principal:
        raise InvalidRequest(f"principal {principal!r:.80} has no type; write User:{principal:.80}")
    api = admin_api()
    patterns, permissions = api.ResourcePatternType, api.AclPermissionType
    bindings = [
        api.AclBinding(
            api.ResourceType[resource.type],
            resource.name,
            patterns.PREFIXED if is_prefixed else patterns.LITERAL,
            principal,
            host,
            api.AclOperation[name.upper()],
            permissions.DENY if is_denial else permissions.ALLOW,
        )
        for name in operations
    ]
    for binding, future in client.admin().create_acls(bindings).items():
        client.result(future, f"ACL of {binding.principal} on {resource.name}")
    return [_to_row(binding) for binding in bindings]


def delete_acls(client: BrokerClient, acls: Sequence[Acl]) -> None:
    """Delete exactly these."""
    api = admin_api()
    filters = [
        api.AclBindingFilter(
            acl.binding.restype,
            acl.binding.name,
            acl.binding.resource_pattern_type,
            acl.binding.principal,
            acl.binding.host,
            acl.binding.operation,
            acl.binding.permission_type,
        )
        for acl in acls
    ]
    for future in client.admin().delete_acls(filters).values():
        client.result(future, "the ACLs")


# Users


class ScramUser(NamedTuple):
    user: str
    mechanism: str
    iterations: int


def list_users(client: BrokerClient) -> list[ScramUser]:
    """Users with each of their mechanisms; brokers never reveal passwords."""
    client.check_may_describe("the users")
    future: Any = client.admin().describe_user_scram_credentials()
    users = client.result(future, "the users")
    return [
        ScramUser(name, str(info.mechanism.name).replace("_", "-"), info.iterations)
        for name, user in sorted(users.items())
        for info in user.scram_credential_infos
    ]


def add_user(
    client: BrokerClient, user: str, *, password: str, mechanism: str, iterations: int
) -> None:
    """Add a user, or replace its password."""
    api = admin_api()
    info = api.ScramCredentialInfo(_to_api(mechanism), iterations)
    _alter(client, user, api.UserScramCredentialUpsertion(user, info, password.encode()))


def delete_user(client: BrokerClient, user: str, *, mechanism: str) -> None:
    """Delete a user's credential of one mechanism."""
    _alter(client, user, admin_api().UserScramCredentialDeletion(user, _to_api(mechanism)))


def _alter(client: BrokerClient, user: str, change: Any) -> None:
    [future] = client.admin().alter_user_scram_credentials([change]).values()
    client.result(future, f"user {user}")


def _to_api(mechanism: str) -> Any:
    return admin_api().ScramMechanism[mechanism.replace("-", "_")]
