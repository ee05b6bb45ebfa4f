"""Authorizes requests, and resolves them to shapes.

Invariant  without tokens every client has access; with an allow-list no client gets another shape.
           A client that follows another shape than its definition denotes, or one that was dropped,
           gets 409 with the handle to follow, never data.
Threads    the event loop only; filters are parsed and shapes are created in pools, and creating
           one, which may wait for a broker, delays no request for a shape that exists.
"""

import asyncio
import hmac
import json
import tomllib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from varve.foundation.errors import InvalidSetting, NotFound, StoreError
from varve.http.endpoint import WorkerPool
from varve.http.exchange import (
    NO_STORE,
    HttpError,
    HttpExchange,
    invalid,
    to_http_error,
    unavailable,
)
from varve.http.shapes.headers import HANDLE, REFETCH
from varve.http.shapes.parameters import DefinitionTexts, ShapeRequest
from varve.shapes.definition import Definition, InvalidDefinition
from varve.shapes.engine import ShapeEngine
from varve.shapes.shape import Shape

_SECRETS: Final = ("secret", "api_secret")
_TEXTS: Final = ("table", "where", "replica", "log")
_FIELDS: Final = (*_TEXTS, "params", "columns")


@dataclass(frozen=True, slots=True)
class Access:
    """Tokens, and the allow-list of shapes; None allows all."""

    token: str | None = None
    admin_token: str | None = None
    shapes: Mapping[str, Definition] | None = None
    _allowed: frozenset[Definition] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_allowed", frozenset((self.shapes or {}).values()))

    def check(self, exchange: HttpExchange, query: Mapping[str, str]) -> None:
        """Raises HttpError unless the request may read."""
        if self.token is not None:
            _check(exchange, query, self.token, self.admin_token)

    def check_admin(self, exchange: HttpExchange, query: Mapping[str, str]) -> None:
        """Raises HttpError unless the request may list, show, compact and delete."""
        if self.admin_token is not None:
            _check(exchange, query, self.admin_token)
        elif self.token is not None:
            _check(exchange, query, self.token)

    def get_named(self, name: str) -> Definition:
        """The definition of a name in the allow-list; raises HttpError for an unknown name."""
        definition = (self.shapes or {}).get(name)
        if definition is None:
            raise invalid("shape", f"there is no shape {name!r:.80}")
        return definition

    def check_definition(self, definition: Definition) -> None:
        if self.shapes is not None and definition not in self._allowed:
            text = "this shape is not in the allow-list of the server"
            raise HttpError(403, {"message": text})


def _check(exchange: HttpExchange, query: Mapping[str, str], *tokens: str | None) -> None:
    sent = [query[name] for name in _SECRETS if name in query]
    scheme, _, bearer = (exchange.header(b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer":
        sent.append(bearer.strip())
    for secret in sent:
        for token in tokens:
            if token is not None and hmac.compare_digest(secret.encode(), token.encode()):
                return
    fault = "is wrong" if sent else "is missing"
    text = f"Unauthorized: the token {fault}; send it as `Authorization: Bearer TOKEN`"
    raise HttpError(401, {"message": text}, (*NO_STORE, (b"www-authenticate", b"Bearer")))


def read_shapes(path: Path) -> dict[str, Definition]:
    """The allow-list of a file, JSON or TOML: an object `shapes` of definitions by name."""
    shapes = _read_document(path).get("shapes")
    if not isinstance(shapes, dict):
        raise InvalidSetting(f"{path} has no object `shapes` with a definition for each name")
    return {
        str(name): _named_definition(path, str(name), fields) for name, fields in shapes.items()
    }


def _read_document(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    try:
        document = json.loads(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    except ValueError as error:
        form = "JSON" if path.suffix == ".json" else "TOML"
        raise InvalidSetting(f"{path} is not {form}: {error}") from error
    if not isinstance(document, dict):
        raise InvalidSetting(f"{path} is not an object; write the shapes under the name `shapes`")
    return document


def _named_definition(path: Path, name: str, fields: Any) -> Definition:
    where = f"shape {name!r:.80} in {path}"
    if not isinstance(fields, dict) or not isinstance(fields.get("table"), str):
        raise InvalidSetting(f"{where} names no table")
    _check_fields(where, fields)
    columns = fields.get("columns")
    texts = DefinitionTexts(
        table=fields["table"],
        where=fields.get("where"),
        params=tuple(enumerate(map(str, fields.get("params", ())), 1)),
        columns=",".join(map(str, columns)) if isinstance(columns, list) else columns,
        replica=fields.get("replica", "default"),
        log=fields.get("log", "full"),
    )
    try:
        return texts.define()
    except InvalidDefinition as error:
        raise InvalidSetting(f"{where}: {error}") from error


def _check_fields(where: str, fields: Mapping[str, Any]) -> None:
    unknown = sorted(set(fields) - set(_FIELDS))
    if unknown:
        raise InvalidSetting(
            f"{where} has unknown {', '.join(unknown)}: known are {', '.join(_FIELDS)}"
        )
    for name in _TEXTS:
        if not isinstance(fields.get(name), str | None):
            raise InvalidSetting(f"{where}: {name} is not a text")
    if not isinstance(fields.get("params", []), list):
        raise InvalidSetting(f'{where}: params are a list such as ["x"], the value of $1 first')
    if not isinstance(fields.get("columns"), list | str | None):
        raise InvalidSetting(f'{where}: columns are a list such as ["id"]')


MUST_REFETCH: Final = b'[{"headers":{"control":"must-refetch"}}]'
_DROPPING_RETRY_S: Final = 1
KEPT_CHARACTERS_MAX: Final = 2 << 20
"""Characters of cached definitions; a parsed character takes up to 30 bytes."""
_KEPT_CHARACTERS_EACH: Final = 50
"""Overhead of a cached definition, as characters."""


def must_refetch(handle: str) -> HttpError:
    """409: the client follows a shape that was replaced; this is the handle to follow."""
    return HttpError(409, MUST_REFETCH, (REFETCH, (HANDLE, handle.encode())))


class ShapeResolver:
    """Finds and creates shapes; caches parsed definitions, because parsing a filter is slow."""

    def __init__(
        self,
        engine: ShapeEngine,
        access: Access,
        parse_pool: WorkerPool,
        admin_pool: WorkerPool,
        wait_ms: int,
    ) -> None:
        self._engine = engine
        self._access = access
        self._parse_pool = parse_pool
        self._admin_pool = admin_pool
        self._wait_ms = wait_ms
        self._cache: OrderedDict[DefinitionTexts, Definition] = OrderedDict()
        self._cached_characters = 0

    async def define(self, texts: DefinitionTexts | None, name: str | None) -> Definition:
        """The definition of a request; raises HttpError if it is not allowed."""
        if name is not None:
            named = self._access.get_named(name)
            if texts is not None and await self._parse(texts) != named:
                raise invalid("shape", "names another shape than table, where and columns do")
            return named
        assert texts is not None
        definition = await self._parse(texts)
        self._access.check_definition(definition)
        return definition

    async def resolve(self, request: ShapeRequest) -> Shape:
        """The shape of a request; raises 409 if the client follows another one."""
        definition = await self.define(request.texts, request.shape_name)
        if request.handle is not None and not request.is_initial:
            followed = self._engine.find(request.handle)
            if (
                followed is not None
                and not followed.is_dropped
                and followed.definition == definition
            ):
                return followed
        shape = await self._find_or_create(definition)
        is_requested = request.is_initial or request.handle in (None, shape.handle)
        if not is_requested:
            raise must_refetch(shape.handle)
        return shape

    async def resolve_for_rows(self, request: ShapeRequest) -> Shape:
        """The shape that a request defines, also if the client follows an earlier one."""
        return await self._find_or_create(await self.define(request.texts, request.shape_name))

    async def refetch(self, shape: Shape) -> HttpError:
        """The response for a client of a dropped shape: 409 with the handle to follow.

        503 if no other shape can be created now, 400 if the topic has been missing for a while.
        """
        try:
            other = await self._find_or_create(shape.definition)
        except HttpError as error:
            return error
        except StoreError as error:
            return to_http_error(error)
        if other.handle == shape.handle:
            return unavailable("the shape is being dropped: try again", retry_s=_DROPPING_RETRY_S)
        return must_refetch(other.handle)

    async def _find_or_create(self, definition: Definition) -> Shape:
        shape = self._engine.find_by_definition(definition)
        if shape is not None and not shape.is_dropped:
            return shape
        try:
            async with asyncio.timeout(self._wait_ms / 1000):
                return await self._admin_pool.run(self._engine.find_or_create, definition)
        except TimeoutError:
            # It is still being created, and exists when the client tries again.
            raise unavailable("the shape is not created yet: try again later") from None
        except NotFound as error:
            # The message of the error, which clients must not see, names the cluster.
            raise invalid("table", f"there is no topic {definition.topic!r:.260}") from error

    async def _parse(self, texts: DefinitionTexts) -> Definition:
        definition = self._cache.get(texts)
        if definition is None:
            definition = await self._parse_pool.run(texts.define)
            self._add_to_cache(texts, definition)
        return definition

    def _add_to_cache(self, texts: DefinitionTexts, definition: Definition) -> None:
        if texts not in self._cache:
            self._cache[texts] = definition
            self._cached_characters += _count_characters(texts)
        while self._cached_characters > KEPT_CHARACTERS_MAX:
            evicted, _ = self._cache.popitem(last=False)
            self._cached_characters -= _count_characters(evicted)


def _count_characters(texts: DefinitionTexts) -> int:
    params = sum(len(value) for _, value in texts.params)
    definition = len(texts.table) + len(texts.where or "") + len(texts.columns or "")
    return _KEPT_CHARACTERS_EACH + definition + params
