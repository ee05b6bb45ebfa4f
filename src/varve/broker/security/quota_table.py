"""Which rates clients may have, by user and client id, kept in every log directory.

Layout     `varve-quotas.json`: entities and their values. docs/formats/directory.md
Invariant  an entity names a user, a client id, or both; None stands for those without a quota of
           their own. Only what is enforced is kept.
Crash      see `table_file`.
Threads    changed off the loop, one change at a time under `_lock`; `quotas` is replaced as a whole
           and read without it.
"""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from varve.broker.security.table_file import TableDirectory, TableFile, corrupt
from varve.disk import FileSystem
from varve.foundation.errors import InvalidRequest

QUOTAS_FILE: Final = "varve-quotas.json"
ENTITY_COUNT_MAX: Final = 100_000
_NAME_LENGTH_MAX: Final = 4_096


class QuotaKind(StrEnum):
    """What is measured."""

    PRODUCE = "producer_byte_rate"
    CONSUME = "consumer_byte_rate"
    REQUEST = "request_percentage"

    @property
    def is_whole(self) -> bool:
        return self is not QuotaKind.REQUEST


class EntityType(StrEnum):
    """By what clients are told apart."""

    USER = "user"
    CLIENT_ID = "client-id"


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """Clients that a quota is for, by type; a name of None is the default."""

    names: tuple[tuple[EntityType, str | None], ...]

    @classmethod
    def of(cls, names: Iterable[tuple[EntityType, str | None]]) -> "QuotaEntity":
        """Raises InvalidRequest for a type twice or none at all."""
        found = tuple(sorted(names, key=lambda one: one[0]))
        types = [type for type, _ in found]
        if not types:
            raise InvalidRequest("Invalid empty client quota entity")
        if len(set(types)) < len(types):
            raise InvalidRequest(f"Invalid client quota entity, {types[0]} stands there twice")
        for _, name in found:
            if name is not None and not 0 < len(name) <= _NAME_LENGTH_MAX:
                raise InvalidRequest(
                    f"Invalid client quota entity, a name of {len(name)} characters; it has 1 to "
                    f"{_NAME_LENGTH_MAX}"
                )
        return cls(found)

    def get(self, type: EntityType) -> tuple[bool, str | None]:
        """Whether the type is part of it, and the name."""
        for one, name in self.names:
            if one is type:
                return True, name
        return False, None


Quotas = Mapping[QuotaEntity, Mapping[QuotaKind, float]]
Changes = Mapping[QuotaKind, float | None]
"""New values; None takes one away."""


def check_value(kind: QuotaKind, value: float) -> None:
    """Raises InvalidRequest for what is no rate."""
    if not (math.isfinite(value) and value > 0):
        raise InvalidRequest(f"Quota {kind.value} must be greater than 0, not {value}")
    if kind.is_whole and value != math.floor(value):
        raise InvalidRequest(f"Quota {kind.value} must be a whole number, not {value}")


class QuotaTable:
    """All quotas. `load` before use."""

    def __init__(self, fs: FileSystem, directories: Sequence[TableDirectory]) -> None:
        self._file = TableFile(fs, directories, QUOTAS_FILE)
        self._lock = threading.Lock()
        self.quotas: Quotas = {}

    def load(self) -> None:
        """Reads the quotas; raises Corrupt for what it cannot understand."""
        with self._lock:
            content = self._file.read()
            try:
                self.quotas = dict(_decode(item) for item in content.get("quotas", []))
            except (ValueError, TypeError, KeyError, AttributeError, InvalidRequest) as error:
                raise corrupt(self._file.where, error) from error

    def alter(self, changes: Iterable[tuple[QuotaEntity, Changes]]) -> None:
        """Sets and removes values, all or none."""
        with self._lock:
            quotas = {entity: dict(values) for entity, values in self.quotas.items()}
            for entity, values in changes:
                kept = quotas.setdefault(entity, {})
                for kind, value in values.items():
                    if value is None:
                        kept.pop(kind, None)
                    else:
                        check_value(kind, value)
                        kept[kind] = value
            quotas = {entity: values for entity, values in quotas.items() if values}
            if len(quotas) > ENTITY_COUNT_MAX:
                raise InvalidRequest(
                    f"there would be quotas of {len(quotas)} entities, the limit is "
                    f"{ENTITY_COUNT_MAX}; use defaults"
                )
            if quotas != self.quotas:
                self._file.write({"quotas": [_encode(*item) for item in quotas.items()]})
                self.quotas = quotas

    def find(self, is_wanted: Callable[[QuotaEntity], bool]) -> Quotas:
        return {entity: values for entity, values in self.quotas.items() if is_wanted(entity)}


def _encode(entity: QuotaEntity, values: Mapping[QuotaKind, float]) -> dict[str, Any]:
    return {
        "entity": {type.value: name for type, name in entity.names},
        "values": {kind.value: values[kind] for kind in sorted(values)},
    }


def _decode(item: Mapping[str, Any]) -> tuple[QuotaEntity, Mapping[QuotaKind, float]]:
    names = [(EntityType(type), name) for type, name in item["entity"].items()]
    if not all(name is None or isinstance(name, str) for _, name in names):
        raise TypeError("an entity's name is no text")
    values = {QuotaKind(key): float(value) for key, value in item["values"].items()}
    for kind, value in values.items():
        check_value(kind, value)
    return QuotaEntity.of(names), values
