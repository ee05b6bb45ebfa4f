"""List, show, compact and delete shapes.

Invariant  a request that names no shape, or two, deletes none.
"""

from typing import Any, Final

from varve.http import headers
from varve.http.answer import Answer, Refusal, invalid
from varve.http.exchange import Exchange
from varve.http.services import Services
from varve.http.shape_request import parse_definition_texts, parse_handle
from varve.shapes.shape import DropReason, Shape

_LISTED_MAX: Final = 1000
_NOT_ALLOWED: Final = (*headers.NO_STORE, (b"allow", b"GET, POST, HEAD, OPTIONS"))


class ShapeAdmin:
    """Answers what is asked about shapes rather than for their data."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def list(self, exchange: Exchange) -> Answer:
        """Shapes in the order of their handles, a page at a time."""
        query = exchange.query()
        self._services.access.check_admin(exchange, query)
        after = query.get("after", "")
        table = query.get("table")
        return await self._services.slow.run_in_engine(self._page, after, table)

    def _page(self, after: str, table: str | None) -> Answer:
        found = sorted(
            (
                one
                for one in self._services.engine.shapes()
                if one.handle > after and (table is None or one.definition.topic == table)
            ),
            key=lambda one: one.handle,
        )
        page = found[:_LISTED_MAX]
        told: dict[str, Any] = {"shapes": [describe(one) for one in page]}
        if len(found) > len(page):
            told["after"] = page[-1].handle
        return Answer.of_json(200, told, *headers.NO_STORE)

    async def show(self, exchange: Exchange) -> Answer:
        """One shape, and how far it is."""
        shape = self._get(exchange)
        told = await self._services.slow.run_in_engine(describe_fully, shape)
        return Answer.of_json(200, told, *headers.NO_STORE)

    async def compact(self, exchange: Exchange) -> Answer:
        """Compacts the log of a shape now."""
        shape = self._get(exchange)
        report = await self._services.slow.run_in_engine(self._services.engine.compact, shape)
        told = {**report.to_json(), "is_dropped": shape.is_dropped}
        return Answer.of_json(200, told, *headers.NO_STORE)

    async def delete(self, exchange: Exchange) -> Answer:
        """Drops the shape of a handle, of a definition, or of both if they agree."""
        services = self._services
        query = exchange.query()
        services.access.check_admin(exchange, query)
        if not services.can_delete:
            raise Refusal(405, {"message": "shapes may not be deleted here"}, _NOT_ALLOWED)
        handle = parse_handle(query)
        texts, name = parse_definition_texts(query)
        if handle is None and texts is None and name is None:
            raise invalid("handle", "give a handle, or table, where and columns")
        shape = None if handle is None else services.engine.find(handle)
        if texts is not None or name is not None:
            definition = await services.resolver.define(texts, name)
            if handle is None:
                shape = services.engine.find_by_definition(definition)
            elif shape is not None and shape.definition != definition:
                raise invalid("handle", "is that of another shape than table, where and columns")
        if shape is None or shape.is_dropped:
            raise Refusal(404, {"message": "there is no such shape"})
        await services.slow.run_in_engine(services.engine.drop, shape, DropReason.DELETED)
        return Answer(202, [headers.NO_CACHE])

    def _get(self, exchange: Exchange) -> Shape:
        self._services.access.check_admin(exchange, exchange.query())
        handle = str(exchange.path_values["handle"])
        shape = self._services.engine.find(handle)
        if shape is None or shape.is_dropped:
            raise Refusal(404, {"message": f"there is no shape {handle!r:.80}"})
        return shape


def describe(shape: Shape) -> dict[str, Any]:
    """What is known of a shape without its files."""
    definition = shape.definition
    return {
        "handle": shape.handle,
        "table": definition.topic,
        "where": None if definition.where is None else definition.where.sql,
        "columns": None if definition.columns is None else list(definition.columns),
        "replica": str(definition.replica),
        "log": str(definition.log),
        "snapshot": _progress(shape),
        "created_ms": shape.created_ms,
    }


def describe_fully(shape: Shape) -> dict[str, Any]:
    """What is known of a shape when it is opened for it."""
    return {**describe(shape), "latest": str(shape.latest)}


def _progress(shape: Shape) -> str:
    if shape.failure is not None:
        return "failed"
    if shape.is_snapshot_complete:
        return "complete"
    return "started" if shape.is_snapshot_started else "waiting"
