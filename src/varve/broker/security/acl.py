"""One right, given or denied, and the filters that find some.

Invariant  a binding that exists is valid. A denial covers its own operation alone; a permission to
           read, write, delete or alter lets the owner describe too, as in Kafka.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.foundation.errors import InvalidRequest

WILDCARD: Final = "*"
ANYBODY: Final = "User:*"
"""The principal that stands for all of them."""

_NAME_BYTES_MAX: Final = 4096


class PatternType(IntEnum):
    """How the name of a right is compared; ANY and MATCH stand in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """ANY stands in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_IMPLIED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}


def is_covered(wanted: Operation, operation: Operation, permission: Permission) -> bool:
    """Whether a right to `operation` says something of what is wanted."""
    if operation in (Operation.ALL, wanted):
        return True
    return permission is Permission.ALLOW and operation in _IMPLIED_BY.get(wanted, ())


@dataclass(frozen=True, slots=True)
class AclBinding:
    """What one principal, coming from one host, may or may not do to some resources."""

    type: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __post_init__(self) -> None:
        _check_resource(self.type, self.name, self.pattern)
        if self.operation is Operation.ANY:
            raise InvalidRequest("Invalid operation: ANY stands in filters only")
        if self.permission is Permission.ANY:
            raise InvalidRequest("Invalid permissionType: ANY stands in filters only")
        kind, colon, name = self.principal.partition(":")
        if not (kind and colon and name):
            raise InvalidRequest(
                f"Could not parse principal from {self.principal!r:.120}: it must be a type, a "
                "colon and a name, such as User:alice"
            )
        if not self.host:
            raise InvalidRequest("Invalid host: it must be an address, or * for any")
        if max(len(self.principal), len(self.host), len(self.name)) > _NAME_BYTES_MAX:
            raise InvalidRequest(f"a name of a right is longer than {_NAME_BYTES_MAX} characters")

    def speaks_to(self, principal: str, host: str) -> bool:
        """Whether it says something of this principal coming from this host."""
        return self.principal in (ANYBODY, principal) and self.host in (WILDCARD, host)

    def speaks_of(self, type: ResourceType, name: str) -> bool:
        """Whether it says something of this resource."""
        if self.type is not type:
            return False
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (WILDCARD, name)


def _check_resource(type: ResourceType, name: str, pattern: PatternType) -> None:
    if type is ResourceType.ANY:
        raise InvalidRequest("Invalid resourceType: ANY stands in filters only")
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequest(f"Invalid patternType {pattern.name}: it must be LITERAL or PREFIXED")
    if not name:
        raise InvalidRequest("Resource name should not be empty")
    if type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Finds bindings; ANY and None let everything through, MATCH all that speak of a name."""

    type: ResourceType
    name: str | None
    pattern: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, binding: AclBinding) -> bool:
        return (
            self.type in (ResourceType.ANY, binding.type)
            and self._matches_name(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
        )

    def _matches_name(self, binding: AclBinding) -> bool:
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, binding.pattern):
            return False
        if self.name is None or self.name == binding.name:
            return True
        return self.pattern is PatternType.MATCH and binding.speaks_of(binding.type, self.name)
