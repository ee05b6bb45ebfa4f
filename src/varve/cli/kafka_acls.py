"""The work of `varve acl`: rights as rows, and bindings of the library's made from words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from varve.cli.kafka_client import KafkaClient, admin_api
from varve.cli.kafka_errors import Denied, Refused

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_CLUSTER: Final = "kafka-cluster"
_AUTHORIZER_SETTINGS: Final = ("authorizer.class.name", "varve.authorizer.enable")


class Resource(NamedTuple):
    """What a right is on; `type` is the library's name of it."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class FoundAcl:
    """A right that there is: the library's binding, and the row that is shown."""

    binding: Any
    row: list[object]


def choose_resource(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    *,
    is_needed: bool,
) -> Resource | None:
    """The one that is named; raises BadParameter for two, and for none where one is needed."""
    resources = [
        Resource(type, name)
        for type, name in (
            ("TOPIC", topic),
            ("GROUP", group),
            ("TRANSACTIONAL_ID", transactional_id),
            ("BROKER", _CLUSTER if cluster else None),
        )
        if name is not None
    ]
    if len(resources) > 1:
        raise typer.BadParameter("name one of --topic, --group, --transactional-id and --cluster")
    if not resources and is_needed:
        raise typer.BadParameter(
            "name what it is on: --topic, --group, --transactional-id or --cluster"
        )
    return resources[0] if resources else None


def acl_rows(
    client: KafkaClient, admin: "AdminClient", principal: str | None, resource: Resource | None
) -> list[list[object]]:
    """The rights that fit, a row each."""
    return [acl.row for acl in find_acls(client, admin, principal, resource, [])]


def find_acls(
    client: KafkaClient,
    admin: "AdminClient",
    principal: str | None,
    resource: Resource | None,
    operations: Sequence[str],
) -> list[FoundAcl]:
    """The rights that there are and fit what is given; without an operation, all of them."""
    api = admin_api()
    wanted = {_operation(api, name) for name in operations}
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
    client.check_may_describe("the rights")
    found = client.result(admin.describe_acls(filter), "the rights")
    if not found:
        _check_in_force(client, admin)
    rows = [FoundAcl(one, _row(one)) for one in found if not wanted or one.operation in wanted]
    return sorted(rows, key=lambda one: [str(cell) for cell in one.row])


def _check_in_force(client: KafkaClient, admin: "AdminClient") -> None:
    """Raises Refused where the broker keeps no rights: the library takes that for an empty list.

    Who may not see the settings of the broker has met its rights.
    """
    api = admin_api()
    node = client.result(admin.describe_cluster(), "the cluster").nodes[0]
    resource = api.ConfigResource(api.ConfigResource.Type.BROKER, str(node.id))
    [asked] = admin.describe_configs([resource]).values()
    try:
        told = client.result(asked, "the settings of the broker")
    except Denied:
        return
    values = [told[name].value for name in _AUTHORIZER_SETTINGS if name in told]
    if values and all(value in (None, "", "false") for value in values):
        raise Refused(
            f"the broker at {client.address} keeps no rights (SECURITY_DISABLED): everybody may do "
            "everything; start it with varve.authorizer.enable=true"
        )


def _row(one: Any) -> list[object]:
    kind = one.restype.name.lower()
    return [
        one.principal,
        one.permission_type.name.lower(),
        one.operation.name.lower(),
        "cluster" if kind == "broker" else kind,
        one.name,
        one.resource_pattern_type.name.lower(),
        one.host,
    ]


def _operation(api: Any, name: str) -> Any:
    known = [one.name.lower() for one in api.AclOperation if one.name not in ("UNKNOWN", "ANY")]
    if name.lower() not in known:
        raise typer.BadParameter(f"{name!r} is no operation; there are {', '.join(known)}")
    return api.AclOperation[name.upper()]


def add_acls(
    client: KafkaClient,
    *,
    principal: str,
    operations: Sequence[str],
    resource: Resource | None,
    is_prefixed: bool,
    host: str,
    is_denial: bool,
) -> list[list[object]]:
    """Grants or denies each operation; gives the rows of what is there now."""
    assert resource is not None
    if ":" not in principal:
        raise typer.BadParameter(f"--principal {principal!r} has no type; write User:{principal}")
    api = admin_api()
    patterns = api.ResourcePatternType
    permissions = api.AclPermissionType
    bindings = [
        api.AclBinding(
            api.ResourceType[resource.type],
            resource.name,
            patterns.PREFIXED if is_prefixed else patterns.LITERAL,
            principal,
            host,
            _operation(api, name),
            permissions.DENY if is_denial else permissions.ALLOW,
        )
        for name in operations
    ]
    for binding, asked in client.admin().create_acls(bindings).items():
        client.result(asked, f"right of {binding.principal} on {resource.name}")
    return [_row(one) for one in bindings]


def remove_acls(client: KafkaClient, admin: "AdminClient", acls: Sequence[FoundAcl]) -> None:
    """Withdraws exactly these."""
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
    for asked in admin.delete_acls(filters).values():
        client.result(asked, "the rights")
