"""From a request to its shape.

Invariant  a client that follows another shape than its definition gives, or one that is gone, gets
           409 with the handle to follow, never data.
Threads    the loop's alone; filters are parsed and shapes made in pools, and who makes one, which
           may wait for a broker, holds up nobody whose shape is there.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from varve.foundation.errors import NotFound, StoreError
from varve.http.access import Access, parse_definition
from varve.http.answer import Refusal, invalid, must_refetch, refusal_of, unavailable
from varve.http.engine_pool import EnginePool
from varve.http.shape_request import DefinitionTexts, ShapeRequest
from varve.shapes.definition import Definition
from varve.shapes.engine import ShapeEngine
from varve.shapes.shape import Shape

_GOING_RETRY_S: Final = 1
KEPT_CHARACTERS_MAX: Final = 2 << 20
"""Texts of definitions that are kept; parsed, a character is up to 30 bytes."""
_KEPT_CHARACTERS_EACH: Final = 50


class Resolver:
    """Finds and makes shapes; keeps parsed definitions, for parsing a filter takes a while."""

    def __init__(
        self, engine: ShapeEngine, access: Access, quick: EnginePool, slow: EnginePool, wait_ms: int
    ) -> None:
        self._engine = engine
        self._access = access
        self._quick = quick
        self._slow = slow
        self._wait_ms = wait_ms
        self._kept: OrderedDict[DefinitionTexts, Definition] = OrderedDict()
        self._kept_characters = 0

    async def define(self, texts: DefinitionTexts | None, name: str | None) -> Definition:
        """The definition of a request; refuses what is not allowed."""
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
        """The shape whose data answers the request; raises 409 where it is another one."""
        definition = await self.define(request.texts, request.shape_name)
        if request.handle is not None and not request.is_initial:
            known = self._engine.find(request.handle)
            if known is not None and not known.is_dropped and known.definition == definition:
                return known
        shape = await self._find_or_create(definition)
        is_asked_for = request.is_initial or request.handle in (None, shape.handle)
        if not is_asked_for:
            raise must_refetch(shape.handle)
        return shape

    async def refetch(self, shape: Shape) -> Refusal:
        """What a client of a dropped shape gets: 409 with the handle to follow, made if need be.

        503 where there cannot be another one now, 400 where the topic has been gone for a while.
        """
        try:
            other = await self._find_or_create(shape.definition)
        except Refusal as refusal:
            return refusal
        except StoreError as error:
            return refusal_of(error)
        if other.handle == shape.handle:
            return unavailable("the shape is about to go: come again", retry_s=_GOING_RETRY_S)
        return must_refetch(other.handle)

    async def _find_or_create(self, definition: Definition) -> Shape:
        found = self._engine.find_by_definition(definition)
        if found is not None and not found.is_dropped:
            return found
        try:
            async with asyncio.timeout(self._wait_ms / 1000):
                return await self._slow.run_in_engine(self._engine.find_or_create, definition)
        except TimeoutError:
            # One that was begun goes on, and is there when the client comes again.
            raise unavailable("the shape is not made yet: come again later") from None
        except NotFound as error:
            # Where it was looked for is nothing that clients are told.
            raise invalid("table", f"there is no topic {definition.topic!r:.260}") from error

    async def _parse(self, texts: DefinitionTexts) -> Definition:
        kept = self._kept.get(texts)
        if kept is None:
            kept = await self._quick.run_in_engine(parse_definition, texts)
            self._keep(texts, kept)
        return kept

    def _keep(self, texts: DefinitionTexts, definition: Definition) -> None:
        if texts not in self._kept:
            self._kept[texts] = definition
            self._kept_characters += _count_characters(texts)
        while self._kept_characters > KEPT_CHARACTERS_MAX:
            gone, _ = self._kept.popitem(last=False)
            self._kept_characters -= _count_characters(gone)


def _count_characters(texts: DefinitionTexts) -> int:
    params = sum(len(value) for _, value in texts.params)
    told = len(texts.table) + len(texts.where or "") + len(texts.columns or "")
    return _KEPT_CHARACTERS_EACH + told + params
