"""Answers from the table of rights, quickly: who asks often is remembered.

Invariant  a denial that speaks of the one who asks wins over every permission; without either
           nothing is allowed, unless the settings say so. Super users may do everything.
Threads    asked in the loop's thread. A change of the table takes the memory away as a whole, so
           that an answer is never older than the change.
"""

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from varve.broker.context import RequestContext
from varve.broker.security.acl import WILDCARD, AclBinding, PatternType, Permission, is_covered
from varve.broker.security.acl_table import AclTable
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.security.settings import SecuritySettings

logger = logging.getLogger(__name__)

_ANSWER_COUNT_MAX: Final = 16_384
_OWNER_COUNT_MAX: Final = 1_024

_TYPE_COUNT_MAX: Final = 128


class _Question(NamedTuple):
    principal: str
    host: str
    operation: Operation
    type: ResourceType
    name: str


class _OwnRights:
    """The bindings that speak to one principal at one host, by what they speak of."""

    __slots__ = ("literal", "prefix_lengths", "prefixed")

    def __init__(self, bindings: Iterable[AclBinding]) -> None:
        self.literal: dict[tuple[ResourceType, str], list[AclBinding]] = {}
        self.prefixed: dict[tuple[ResourceType, str], list[AclBinding]] = {}
        lengths: dict[ResourceType, set[int]] = {}
        for one in bindings:
            if one.pattern is PatternType.LITERAL:
                self.literal.setdefault((one.type, one.name), []).append(one)
            else:
                self.prefixed.setdefault((one.type, one.name), []).append(one)
                lengths.setdefault(one.type, set()).add(len(one.name))
        self.prefix_lengths = {type: sorted(found) for type, found in lengths.items()}

    def of(self, type: ResourceType, name: str) -> Iterable[AclBinding]:
        yield from self.literal.get((type, name), ())
        if name != WILDCARD:
            yield from self.literal.get((type, WILDCARD), ())
        for length in self.prefix_lengths.get(type, ()):
            if length > len(name):
                break
            yield from self.prefixed.get((type, name[:length]), ())


class _Memory:
    """What was found out about one state of the table."""

    __slots__ = ("answers", "bindings", "owners")

    def __init__(self, bindings: tuple[AclBinding, ...]) -> None:
        self.bindings = bindings
        self.answers: dict[tuple[str, str, str, int, str], bool] = {}
        self.owners: dict[tuple[str, str], _OwnRights] = {}


class AclAuthorizer:
    """Denies what nobody allowed."""

    def __init__(self, table: AclTable, settings: SecuritySettings) -> None:
        self._table = table
        self._super_users = frozenset(settings.super_user_names)
        self._is_open = settings.allow_everyone_if_no_acl_found
        self._memory = _Memory(table.bindings)

    def is_allowed(
        self, context: RequestContext, operation: Operation, type: ResourceType, name: str
    ) -> bool:
        connection = context.connection
        principal, host = connection.principal, connection.client_host
        # Plain values: enums and dataclasses are hashed by Python code.
        key = (principal.kind, principal.name, host, operation * _TYPE_COUNT_MAX + type, name)
        memory = self._current()
        answer = memory.answers.get(key)
        if answer is None:
            answer = self._find_out(memory, _Question(str(principal), host, operation, type, name))
            if len(memory.answers) >= _ANSWER_COUNT_MAX:
                memory.answers.clear()
            memory.answers[key] = answer
        return answer

    def is_allowed_somewhere(
        self, context: RequestContext, operation: Operation, type: ResourceType
    ) -> bool:
        """On one resource at least: Kafka's rule, by which an allowed name counts unless a denial
        covers it as a whole.
        """
        principal, host = str(context.principal), context.connection.client_host
        if principal in self._super_users:
            return True
        own = self._own_rights(self._current(), principal, host)
        found = [
            one
            for table in (own.literal, own.prefixed)
            for bindings in table.values()
            for one in bindings
            if one.type is type and is_covered(operation, one.operation, one.permission)
        ]
        denials = [one for one in found if one.permission is Permission.DENY]
        if any(one.name == WILDCARD and one.pattern is PatternType.LITERAL for one in denials):
            return False
        return self._is_open or any(
            one.permission is Permission.ALLOW and not _is_denied(one, denials) for one in found
        )

    def _current(self) -> _Memory:
        memory = self._memory
        if memory.bindings is not self._table.bindings:
            memory = self._memory = _Memory(self._table.bindings)
        return memory

    def _find_out(self, memory: _Memory, question: _Question) -> bool:
        principal, host, operation, type, name = question
        if principal in self._super_users:
            return True
        is_given = False
        for one in self._own_rights(memory, principal, host).of(type, name):
            if not is_covered(operation, one.operation, one.permission):
                continue
            if one.permission is Permission.DENY:
                _tell_denied(question)
                return False
            is_given = True
        if is_given:
            return True
        if self._is_open and not any(one.speaks_of(type, name) for one in memory.bindings):
            return True
        _tell_denied(question)
        return False

    def _own_rights(self, memory: _Memory, principal: str, host: str) -> _OwnRights:
        found = memory.owners.get((principal, host))
        if found is None:
            if len(memory.owners) >= _OWNER_COUNT_MAX:
                memory.owners.clear()
            found = _OwnRights(one for one in memory.bindings if one.speaks_to(principal, host))
            memory.owners[principal, host] = found
        return found


def _is_denied(given: AclBinding, denials: list[AclBinding]) -> bool:
    """Whether a denial covers all that a permission speaks of."""
    if given.pattern is PatternType.LITERAL and given.name == WILDCARD:
        return False
    for one in denials:
        if one.pattern is PatternType.PREFIXED:
            if given.name.startswith(one.name):
                return True
        elif given.pattern is PatternType.LITERAL and given.name == one.name:
            return True
    return False


def _tell_denied(question: _Question) -> None:
    principal, host, operation, type, name = question
    logger.info(
        "denied",
        extra={
            "principal": principal,
            "client_host": host,
            "operation": operation.name,
            "resource": f"{type.name}:{name}",
        },
    )
