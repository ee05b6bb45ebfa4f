"""ACLs: bindings, filters, the stored table and the authorizer that decides by it.

Layout     `varve-acls.json`: an object for each binding. docs/reference/formats/directory.md
Invariant  a binding that exists is valid. A DENY binding covers its own operation alone; an ALLOW
           binding for READ, WRITE, DELETE or ALTER implies DESCRIBE, as in Kafka. DENY wins over
           ALLOW; without either nothing is allowed, unless the settings say so. Super users may do
           everything.
Crash      see `directory_document`; what was answered is on disk.
Threads    the table changes off the loop, one change at a time under `_lock`; `bindings` is
           replaced as a whole and read without it. The authorizer is used in the loop's thread; its
           cache is dropped with each change of the table.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from varve.broker.request import CLUSTER_NAME, ConnectionContext, Operation, ResourceType
from varve.broker.security.directory_document import DirectoryDocument
from varve.broker.settings import SecuritySettings
from varve.commit_log.health import DirectoryHealth
from varve.disk import FileSystem
from varve.foundation.errors import InvalidRequest

WILDCARD: Final = "*"
ANY_PRINCIPAL: Final = "User:*"
"""The principal of bindings for all users."""

_NAME_BYTES_MAX: Final = 4096


class PatternType(IntEnum):
    """How the name of a resource is compared; ANY and MATCH are for filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """ANY is for filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_IMPLIED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}


def is_covered(requested: Operation, operation: Operation, permission: Permission) -> bool:
    """Whether a binding for `operation` covers the requested operation."""
    if operation in (Operation.ALL, requested):
        return True
    return permission is Permission.ALLOW and operation in _IMPLIED_BY.get(requested, ())


@dataclass(frozen=True, slots=True)
class AclBinding:
    """What a principal, connected from a host, may or may not do to resources."""

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
            raise InvalidRequest("Invalid operation: ANY is for filters only")
        if self.permission is Permission.ANY:
            raise InvalidRequest("Invalid permissionType: ANY is for filters only")
        kind, colon, name = self.principal.partition(":")
        if not (kind and colon and name):
            raise InvalidRequest(
                f"Could not parse principal from {self.principal!r:.120}: it must be a type, a "
                "colon and a name, such as User:alice"
            )
        if not self.host:
            raise InvalidRequest("Invalid host: it must be an address, or * for any")
        if max(len(self.principal), len(self.host), len(self.name)) > _NAME_BYTES_MAX:
            raise InvalidRequest(f"a name in an ACL is longer than {_NAME_BYTES_MAX} characters")

    def matches_principal(self, principal: str, host: str) -> bool:
        """Whether it applies to this principal connected from this host."""
        return self.principal in (ANY_PRINCIPAL, principal) and self.host in (WILDCARD, host)

    def matches_resource(self, type: ResourceType, name: str) -> bool:
        """Whether it applies to this resource."""
        if self.type is not type:
            return False
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (WILDCARD, name)


def _check_resource(type: ResourceType, name: str, pattern: PatternType) -> None:
    if type is ResourceType.ANY:
        raise InvalidRequest("Invalid resourceType: ANY is for filters only")
    if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequest(f"Invalid patternType {pattern.name}: it must be LITERAL or PREFIXED")
    if not name:
        raise InvalidRequest("Resource name should not be empty")
    if type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Matches bindings; ANY and None match everything, MATCH all that apply to a name."""

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
        return self.pattern is PatternType.MATCH and binding.matches_resource(
            binding.type, self.name
        )


ACLS_FILE: Final = "varve-acls.json"
_COMPARISONS_MAX: Final = 1_000_000
"""Of filters with bindings, in one request; they take about a second."""
_BINDING_BYTES: Final = 32
"""What a binding takes in an answer, with its names of any length besides."""


class AclTable:
    """All bindings. `load` before use."""

    def __init__(
        self,
        fs: FileSystem,
        directories: Sequence[DirectoryHealth],
        settings: SecuritySettings | None = None,
    ) -> None:
        self._count_max = (settings or SecuritySettings()).acl_count_max
        self._file = DirectoryDocument(fs, directories, ACLS_FILE)
        self._lock = threading.Lock()
        self.bindings: tuple[AclBinding, ...] = ()

    def load(self) -> None:
        """Reads the bindings; raises Corrupt for what it cannot decode."""
        with self._lock:
            self.bindings = self._file.read_as(_decode_all)

    def add(self, bindings: Iterable[AclBinding]) -> None:
        """Adds bindings, all or none; existing ones stay."""
        with self._lock:
            grown = tuple(dict.fromkeys((*self.bindings, *bindings)))
            if len(grown) > max(self._count_max, len(self.bindings)):
                raise InvalidRequest(
                    f"there would be {len(grown)} ACLs, more than varve.acls.max.count = "
                    f"{self._count_max}; use prefixes and wildcards, or raise the setting"
                )
            self._write_locked(grown)

    def remove(self, filters: Sequence[AclFilter], *, bytes_max: int) -> list[list[AclBinding]]:
        """Removes the bindings that the filters match, all or none; those of each filter.

        Raises InvalidRequest where that takes too long, or where an answer with all of them takes
        more than `bytes_max`.
        """
        with self._lock:
            matching = self._find_each(filters, bytes_max)
            removed = {binding for bindings in matching for binding in bindings}
            kept = (binding for binding in self.bindings if binding not in removed)
            self._write_locked(tuple(kept))
            return matching

    def _find_each(self, filters: Sequence[AclFilter], bytes_max: int) -> list[list[AclBinding]]:
        """Compares each filter once, by the name of the resource where it has one."""
        by_name: dict[str, list[AclBinding]] = {}
        for binding in self.bindings:
            by_name.setdefault(binding.name, []).append(binding)
        found: dict[AclFilter, list[AclBinding]] = {}
        sizes: dict[AclFilter, int] = {}
        comparisons = size = 0
        for filter in filters:
            if filter not in found:
                candidates: Sequence[AclBinding] = self.bindings
                if filter.name is not None and filter.pattern is not PatternType.MATCH:
                    candidates = by_name.get(filter.name, ())
                comparisons += len(candidates)
                if comparisons > _COMPARISONS_MAX:
                    raise InvalidRequest(
                        f"the filters are compared with ACLs more than {_COMPARISONS_MAX} times: "
                        "send fewer at a time, or filters that name their resource"
                    )
                found[filter] = [one for one in candidates if filter.matches(one)]
                sizes[filter] = sum(map(_answer_bytes, found[filter]))
            size += sizes[filter]
            if size > bytes_max:
                raise InvalidRequest(
                    f"an answer with the ACLs that match takes more than {bytes_max} bytes: send "
                    "fewer filters at a time, or raise varve.response.max.bytes"
                )
        return [found[filter] for filter in filters]

    def find(self, filter: AclFilter) -> list[AclBinding]:
        return [binding for binding in self.bindings if filter.matches(binding)]

    def _write_locked(self, bindings: tuple[AclBinding, ...]) -> None:
        if bindings != self.bindings:
            self._file.write({"acls": [_encode(binding) for binding in bindings]})
            self.bindings = bindings


def _answer_bytes(binding: AclBinding) -> int:
    return _BINDING_BYTES + len(binding.name) + len(binding.principal) + len(binding.host)


def _encode(binding: AclBinding) -> dict[str, str]:
    """By the names of its fields; enums by their names."""
    values = {name: getattr(binding, name) for name in AclBinding.__match_args__}
    return {
        name: value.name if isinstance(value, IntEnum) else value for name, value in values.items()
    }


def _decode_all(content: Mapping[str, Any]) -> tuple[AclBinding, ...]:
    return tuple(dict.fromkeys(_decode(item) for item in content.get("acls", [])))


def _decode(item: Mapping[str, Any]) -> AclBinding:
    return AclBinding(
        type=ResourceType[item["type"]],
        name=_text(item["name"]),
        pattern=PatternType[item["pattern"]],
        principal=_text(item["principal"]),
        host=_text(item["host"]),
        operation=Operation[item["operation"]],
        permission=Permission[item["permission"]],
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a string")
    return value


logger = logging.getLogger(__name__)

_ANSWER_COUNT_MAX: Final = 16_384
_OWNER_COUNT_MAX: Final = 1_024

_TYPE_COUNT_MAX: Final = 128


class _AccessCheck(NamedTuple):
    principal: str
    host: str
    operation: Operation
    type: ResourceType
    name: str


class _PrincipalAcls:
    """Bindings by resource, such as those of one principal at one host."""

    __slots__ = ("literal", "prefix_lengths", "prefixed")

    def __init__(self, bindings: Iterable[AclBinding]) -> None:
        self.literal: dict[tuple[ResourceType, str], list[AclBinding]] = {}
        self.prefixed: dict[tuple[ResourceType, str], list[AclBinding]] = {}
        lengths: dict[ResourceType, set[int]] = {}
        for binding in bindings:
            if binding.pattern is PatternType.LITERAL:
                self.literal.setdefault((binding.type, binding.name), []).append(binding)
            else:
                self.prefixed.setdefault((binding.type, binding.name), []).append(binding)
                lengths.setdefault(binding.type, set()).add(len(binding.name))
        self.prefix_lengths = {type: sorted(sizes) for type, sizes in lengths.items()}

    def matching(self, type: ResourceType, name: str) -> Iterable[AclBinding]:
        yield from self.literal.get((type, name), ())
        if name != WILDCARD:
            yield from self.literal.get((type, WILDCARD), ())
        for length in self.prefix_lengths.get(type, ()):
            if length > len(name):
                break
            yield from self.prefixed.get((type, name[:length]), ())


class _Cache:
    """Decisions for one state of the table."""

    __slots__ = ("all", "answers", "bindings", "owners")

    def __init__(self, bindings: tuple[AclBinding, ...]) -> None:
        self.bindings = bindings
        self.all: _PrincipalAcls | None = None
        """All bindings by resource; made when it is needed."""
        self.answers: dict[tuple[str, str, str, int, str], bool] = {}
        self.owners: dict[tuple[str, str], _PrincipalAcls] = {}


class AclAuthorizer:
    """Decides by the bindings of the table."""

    def __init__(self, table: AclTable, settings: SecuritySettings) -> None:
        self._table = table
        self._super_users = frozenset(settings.super_user_names)
        self._is_open = settings.allow_everyone_if_no_acl_found
        self._cache = _Cache(table.bindings)

    def is_allowed(
        self, connection: ConnectionContext, operation: Operation, type: ResourceType, name: str
    ) -> bool:
        principal, host = connection.principal, connection.client_host
        # Plain values: enums and dataclasses are hashed by Python code.
        key = (principal.kind, principal.name, host, operation * _TYPE_COUNT_MAX + type, name)
        cache = self._current()
        answer = cache.answers.get(key)
        if answer is None:
            answer = self._decide(cache, _AccessCheck(str(principal), host, operation, type, name))
            if len(cache.answers) >= _ANSWER_COUNT_MAX:
                cache.answers.clear()
            cache.answers[key] = answer
        return answer

    def is_allowed_somewhere(
        self, connection: ConnectionContext, operation: Operation, type: ResourceType
    ) -> bool:
        """On one resource at least: Kafka's rule, by which an allowed name counts unless a denial
        covers it as a whole.
        """
        principal, host = str(connection.principal), connection.client_host
        if principal in self._super_users:
            return True
        own = self._acls_of(self._current(), principal, host)
        acl_bindings = [
            binding
            for table in (own.literal, own.prefixed)
            for bindings in table.values()
            for binding in bindings
            if binding.type is type and is_covered(operation, binding.operation, binding.permission)
        ]
        denials = [binding for binding in acl_bindings if binding.permission is Permission.DENY]
        if any(
            binding.name == WILDCARD and binding.pattern is PatternType.LITERAL
            for binding in denials
        ):
            return False
        return self._is_open or any(
            binding.permission is Permission.ALLOW and not _is_denied(binding, denials)
            for binding in acl_bindings
        )

    def _current(self) -> _Cache:
        cache = self._cache
        if cache.bindings is not self._table.bindings:
            cache = self._cache = _Cache(self._table.bindings)
        return cache

    def _decide(self, cache: _Cache, check: _AccessCheck) -> bool:
        principal, host, operation, type, name = check
        if principal in self._super_users:
            return True
        is_granted = False
        for binding in self._acls_of(cache, principal, host).matching(type, name):
            if not is_covered(operation, binding.operation, binding.permission):
                continue
            if binding.permission is Permission.DENY:
                _log_denied(check)
                return False
            is_granted = True
        if is_granted:
            return True
        if self._is_open:
            if cache.all is None:
                cache.all = _PrincipalAcls(cache.bindings)
            if next(iter(cache.all.matching(type, name)), None) is None:
                return True
        _log_denied(check)
        return False

    def _acls_of(self, cache: _Cache, principal: str, host: str) -> _PrincipalAcls:
        acls = cache.owners.get((principal, host))
        if acls is None:
            if len(cache.owners) >= _OWNER_COUNT_MAX:
                cache.owners.clear()
            acls = _PrincipalAcls(
                binding for binding in cache.bindings if binding.matches_principal(principal, host)
            )
            cache.owners[principal, host] = acls
        return acls


def _is_denied(allowed: AclBinding, denials: list[AclBinding]) -> bool:
    """Whether a DENY binding covers all that an ALLOW binding matches."""
    if allowed.pattern is PatternType.LITERAL and allowed.name == WILDCARD:
        return False
    for binding in denials:
        if binding.pattern is PatternType.PREFIXED:
            if allowed.name.startswith(binding.name):
                return True
        elif allowed.pattern is PatternType.LITERAL and allowed.name == binding.name:
            return True
    return False


def _log_denied(check: _AccessCheck) -> None:
    principal, host, operation, type, name = check
    logger.info(
        "denied",
        extra={
            "principal": principal,
            "client_host": host,
            "operation": operation.name,
            "resource": f"{type.name}:{name}",
        },
    )
