"""Who may ask, and for which shapes.

Invariant  without tokens everybody may; with an allow-list nobody gets any other shape.
"""

import hmac
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from varve.foundation.errors import InvalidSetting
from varve.http.answer import forbidden, invalid, unauthorized
from varve.http.exchange import Exchange
from varve.http.shape_request import DefinitionTexts
from varve.shapes.definition import Definition, InvalidDefinition, define

_SECRETS: Final = ("secret", "api_secret")
_TEXTS: Final = ("table", "where", "replica", "log")
_FIELDS: Final = (*_TEXTS, "params", "columns")


@dataclass(frozen=True, slots=True)
class Access:
    """Tokens, and the shapes that may be asked for; None for all."""

    token: str | None = None
    admin_token: str | None = None
    shapes: Mapping[str, Definition] | None = None
    _allowed: frozenset[Definition] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_allowed", frozenset((self.shapes or {}).values()))

    def check(self, exchange: Exchange, query: Mapping[str, str]) -> None:
        """Raises a refusal unless the request may read."""
        if self.token is not None:
            _check(exchange, query, self.token, self.admin_token)

    def check_admin(self, exchange: Exchange, query: Mapping[str, str]) -> None:
        """Raises a refusal unless the request may list, show, compact and delete."""
        if self.admin_token is not None:
            _check(exchange, query, self.admin_token)
        elif self.token is not None:
            _check(exchange, query, self.token)

    def get_named(self, name: str) -> Definition:
        """The definition behind a name of the allow-list; raises a refusal where there is none."""
        found = (self.shapes or {}).get(name)
        if found is None:
            raise invalid("shape", f"there is no shape of the name {name!r:.80}")
        return found

    def check_definition(self, definition: Definition) -> None:
        if self.shapes is not None and definition not in self._allowed:
            raise forbidden("this shape is not among those that may be asked for")


def _check(exchange: Exchange, query: Mapping[str, str], *tokens: str | None) -> None:
    sent = [query[name] for name in _SECRETS if name in query]
    scheme, _, bearer = (exchange.header(b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer":
        sent.append(bearer.strip())
    for given in sent:
        for token in tokens:
            if token is not None and hmac.compare_digest(given.encode(), token.encode()):
                return
    told = "is wrong" if sent else "is missing"
    raise unauthorized(f"Unauthorized: the token {told}; send it as `Authorization: Bearer TOKEN`")


def parse_definition(texts: DefinitionTexts) -> Definition:
    """The definition that a request's texts denote; raises InvalidDefinition."""
    return define(
        texts.table,
        where=texts.where,
        params=dict(texts.params),
        columns=texts.columns,
        replica=texts.replica,
        log=texts.log,
    )


def read_shapes(path: Path) -> dict[str, Definition]:
    """The allow-list of a file, JSON or TOML: an object `shapes` of definitions by name."""
    found = _read_document(path).get("shapes")
    if not isinstance(found, dict):
        raise InvalidSetting(f"{path} has no object `shapes` with a definition for each name")
    return {str(name): _named_definition(path, str(name), told) for name, told in found.items()}


def _read_document(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    try:
        found = json.loads(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    except ValueError as error:
        form = "JSON" if path.suffix == ".json" else "TOML"
        raise InvalidSetting(f"{path} is no {form}: {error}") from error
    if not isinstance(found, dict):
        raise InvalidSetting(f"{path} holds no object")
    return found


def _named_definition(path: Path, name: str, told: Any) -> Definition:
    where = f"shape {name!r:.80} in {path}"
    if not isinstance(told, dict) or not isinstance(told.get("table"), str):
        raise InvalidSetting(f"{where} names no table")
    _check_fields(where, told)
    columns = told.get("columns")
    texts = DefinitionTexts(
        table=told["table"],
        where=told.get("where"),
        params=tuple(enumerate(map(str, told.get("params", ())), 1)),
        columns=",".join(map(str, columns)) if isinstance(columns, list) else columns,
        replica=told.get("replica", "default"),
        log=told.get("log", "full"),
    )
    try:
        return parse_definition(texts)
    except InvalidDefinition as error:
        raise InvalidSetting(f"{where}: {error}") from error


def _check_fields(where: str, told: Mapping[str, Any]) -> None:
    unknown = sorted(set(told) - set(_FIELDS))
    if unknown:
        known = ", ".join(_FIELDS)
        raise InvalidSetting(f"{where} has unknown {', '.join(unknown)}: known are {known}")
    for name in _TEXTS:
        if not isinstance(told.get(name), str | None):
            raise InvalidSetting(f"{where}: {name} is no text")
    if not isinstance(told.get("params", []), list):
        raise InvalidSetting(f'{where}: params are a list such as ["x"], the value of $1 first')
    if not isinstance(told.get("columns"), list | str | None):
        raise InvalidSetting(f'{where}: columns are a list such as ["id"]')
