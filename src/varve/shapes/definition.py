"""The definition of a shape: a topic, a filter, columns, and how changes are sent.

Invariant  two definitions are equal exactly if they denote the same shape; `comparable` is that
           identity as text, and the registry stores it. It has the filter in its normal form,
           with the values of its parameters.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final, TypeVar

from varve.foundation.errors import Corrupt, InvalidRequest
from varve.shapes.filter.parser import check_size, parse_columns
from varve.shapes.filter.where import Where

Choice = TypeVar("Choice", bound=StrEnum)

_TABLE: Final = re.compile(
    r'(?:(?:public|"public")\.)?(?:"(?P<quoted>[^"]{1,249})"|(?P<plain>[^"]{1,249}))'
)


class Replica(StrEnum):
    """What an update holds: key and changed columns, or the whole row and the old values."""

    DEFAULT = "default"
    FULL = "full"


class LogMode(StrEnum):
    """Whether the shape begins with a snapshot of the rows, or only has later changes."""

    FULL = "full"
    CHANGES_ONLY = "changes_only"


class InvalidDefinition(InvalidRequest):
    """A parameter of a definition is wrong; `parameter` names it."""

    def __init__(self, message: str, parameter: str = "table") -> None:
        super().__init__(message)
        self.parameter = parameter


@dataclass(frozen=True, eq=False)
class Definition:
    """One shape's definition. Created by `define`, or by `parse_definition` from the registry."""

    topic: str
    where: Where | None
    columns: tuple[str, ...] | None
    """The columns requested; None for all. Key columns are always sent."""
    replica: Replica
    log: LogMode

    @cached_property
    def comparable(self) -> str:
        """The identity of the shape as JSON text."""
        return json.dumps(
            {
                "columns": None if self.columns is None else sorted(self.columns),
                "log": self.log,
                "replica": self.replica,
                "topic": self.topic,
                "where": None if self.where is None else self.where.sql,
            },
            sort_keys=True,
        )

    @cached_property
    def hash_number(self) -> int:
        """Eight decimal digits of a hash of the identity, with which a handle starts."""
        digest = hashlib.blake2b(self.comparable.encode(), digest_size=8).digest()
        return int.from_bytes(digest) % 90_000_000 + 10_000_000

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Definition) and self.comparable == other.comparable

    def __hash__(self) -> int:
        return hash(self.comparable)


def define(
    table: str,
    *,
    where: str | None = None,
    params: Mapping[int, str] | None = None,
    columns: str | None = None,
    replica: str = "default",
    log: str = "full",
) -> Definition:
    """The definition that a request's parameters give; raises InvalidDefinition."""
    return Definition(
        topic=parse_table(table),
        where=_parse_where(where, params or {}),
        columns=_parse_columns(columns),
        replica=_parse_choice(Replica, "replica", replica),
        log=_parse_choice(LogMode, "log", log),
    )


def parse_definition(comparable: str) -> Definition:
    """The definition of an identity that the registry stores; raises Corrupt."""
    try:
        document = json.loads(comparable)
        columns = document["columns"]
        return Definition(
            topic=str(document["topic"]),
            where=None if document["where"] is None else Where.parse(document["where"], {}),
            columns=None if columns is None else tuple(map(str, columns)),
            replica=Replica(document["replica"]),
            log=LogMode(document["log"]),
        )
    except (ValueError, KeyError, TypeError, InvalidRequest) as error:
        raise Corrupt(f"definition {comparable:.200} of a shape cannot be read: {error}") from error


def parse_table(table: str) -> str:
    """The topic that a table's name means: `topic`, `public.topic`, either part quoted.

    A topic's name may contain dots; only the prefix `public.` is a schema.
    """
    match = _TABLE.fullmatch(table)
    if match is None:
        raise InvalidDefinition(
            f"table {table!r:.80} names no topic; write topic, public.topic or "
            '"topic", with 1 to 249 characters'
        )
    name: str = match["quoted"] or match["plain"]
    return name


def _parse_where(where: str | None, params: Mapping[int, str]) -> Where | None:
    if where is None or not where.strip():
        if params:
            raise InvalidDefinition("params are given without a where to use them", "params")
        return None
    try:
        parsed = Where.parse(where, params)
        # The registry holds this text, and reads it when the engine opens again.
        check_size(parsed.sql)
        return parsed
    except InvalidRequest as error:
        parameter = getattr(error, "parameter", "where")
        raise InvalidDefinition(str(error), parameter) from error


def _parse_columns(columns: str | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    try:
        return parse_columns(columns)
    except InvalidRequest as error:
        raise InvalidDefinition(str(error), "columns") from error


def _parse_choice(kind: type[Choice], parameter: str, text: str) -> Choice:
    try:
        return kind(text)
    except ValueError:
        raise InvalidDefinition(
            f"{parameter} {text!r:.40} must be one of {', '.join(kind)}", parameter
        ) from None
