"""The rights of a cluster, kept in every log directory.

Layout     `varve-acls.json`: an object for each right. docs/formats/directory.md
Invariant  rights are a set, in the order they came; what was answered is on the disk.
Crash      see `table_file`.
Threads    changed off the loop, one change at a time under `_lock`; `bindings` is replaced as a
           whole and read without it.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from varve.broker.security.acl import AclBinding, AclFilter, PatternType, Permission
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.security.table_file import TableDirectory, TableFile, corrupt
from varve.disk import FileSystem
from varve.foundation.errors import InvalidRequest

ACLS_FILE: Final = "varve-acls.json"
BINDING_COUNT_MAX: Final = 100_000


class AclTable:
    """All rights. `load` before use."""

    def __init__(self, fs: FileSystem, directories: Sequence[TableDirectory]) -> None:
        self._file = TableFile(fs, directories, ACLS_FILE)
        self._lock = threading.Lock()
        self.bindings: tuple[AclBinding, ...] = ()

    def load(self) -> None:
        """Reads the rights; raises Corrupt for what it cannot understand."""
        with self._lock:
            content = self._file.read()
            try:
                bindings = [_decode(item) for item in content.get("acls", [])]
            except (ValueError, TypeError, KeyError, AttributeError, InvalidRequest) as error:
                raise corrupt(self._file.where, error) from error
            self.bindings = tuple(dict.fromkeys(bindings))

    def add(self, bindings: Iterable[AclBinding]) -> None:
        """Gives rights, all or none; those that are there already stay."""
        with self._lock:
            grown = tuple(dict.fromkeys((*self.bindings, *bindings)))
            if len(grown) > BINDING_COUNT_MAX:
                raise InvalidRequest(
                    f"there would be {len(grown)} rights, the limit is {BINDING_COUNT_MAX}; use "
                    "prefixes and wildcards"
                )
            self._write_locked(grown)

    def remove(self, filters: Sequence[AclFilter]) -> list[list[AclBinding]]:
        """Takes the rights away that the filters find, all or none; what each filter found."""
        with self._lock:
            found = [[one for one in self.bindings if by.matches(one)] for by in filters]
            gone = {one for some in found for one in some}
            self._write_locked(tuple(one for one in self.bindings if one not in gone))
            return found

    def find(self, by: AclFilter) -> list[AclBinding]:
        return [one for one in self.bindings if by.matches(one)]

    def _write_locked(self, bindings: tuple[AclBinding, ...]) -> None:
        if bindings != self.bindings:
            self._file.write({"acls": [_encode(one) for one in bindings]})
            self.bindings = bindings


def _encode(binding: AclBinding) -> dict[str, str]:
    return {
        "type": binding.type.name,
        "name": binding.name,
        "pattern": binding.pattern.name,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation.name,
        "permission": binding.permission.name,
    }


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
        raise TypeError(f"{value!r:.40} is no text")
    return value
