"""List, show, compact and delete shapes.

Invariant  a request that names no shape, or two, deletes none.
"""

import heapq
from typing import TYPE_CHECKING, Any, Final

from varve.http import headers
from varve.http.exchange import HttpError, HttpExchange, Response, invalid
from varve.http.shapes.parameters import parse_definition_texts, parse_handle
from varve.shapes.shape import DropReason, Shape

if TYPE_CHECKING:
    from varve.http.shapes.api import ShapeApi

_LISTED_MAX: Final = 1000
_NOT_ALLOWED: Final = (*headers.NO_STORE, (b"allow", b"GET, POST, HEAD, OPTIONS"))


class ShapeAdmin:
    """Responds to requests about shapes, not for their data."""

    def __init__(self, api: "ShapeApi") -> None:
        self._api = api

    async def list(self, exchange: HttpExchange) -> Response:
        """Shapes in the order of their handles, a page at a time."""
        query = exchange.query()
        self._api.access.check_admin(exchange, query)
        after = query.get("after", "")
        table = query.get("table")
        return await self._api.admin_pool.run(self._page, after, table)

    def _page(self, after: str, table: str | None) -> Response:
        matching = [
            shape
            for shape in self._api.engine.shapes()
            if shape.handle > after and (table is None or shape.definition.topic == table)
        ]
        page = heapq.nsmallest(_LISTED_MAX, matching, key=lambda shape: shape.handle)
        document: dict[str, Any] = {"shapes": [describe(shape) for shape in page]}
        if len(matching) > len(page):
            document["after"] = page[-1].handle
        return Response.of_json(200, document, *headers.NO_STORE)

    async def show(self, exchange: HttpExchange) -> Response:
        """One shape, and how far it is."""
        shape = self._get(exchange)
        document = await self._api.admin_pool.run(describe_fully, shape)
        return Response.of_json(200, document, *headers.NO_STORE)

    async def compact(self, exchange: HttpExchange) -> Response:
        """Compacts the log of a shape now."""
        shape = self._get(exchange)
        report = await self._api.admin_pool.run(self._api.engine.compact, shape)
        document = {**report.to_json(), "is_dropped": shape.is_dropped}
        return Response.of_json(200, document, *headers.NO_STORE)

    async def delete(self, exchange: HttpExchange) -> Response:
        """Drops the shape of a handle, of a definition, or of both if they agree."""
        api = self._api
        query = exchange.query()
        api.access.check_admin(exchange, query)
        if not api.can_delete:
            raise HttpError(405, {"message": "shapes may not be deleted here"}, _NOT_ALLOWED)
        handle = parse_handle(query)
        texts, name = parse_definition_texts(query)
        if handle is None and texts is None and name is None:
            raise invalid("handle", "give a handle, or table, where and columns")
        shape = None if handle is None else api.engine.find(handle)
        if texts is not None or name is not None:
            definition = await api.resolver.define(texts, name)
            if handle is None:
                shape = api.engine.find_by_definition(definition)
            elif shape is not None and shape.definition != definition:
                raise invalid("handle", "is that of another shape than table, where and columns")
        if shape is None or shape.is_dropped:
            raise HttpError(404, {"message": "there is no such shape"})
        await api.admin_pool.run(api.engine.drop, shape, DropReason.DELETED)
        return Response(202, [headers.NO_CACHE])

    def _get(self, exchange: HttpExchange) -> Shape:
        self._api.access.check_admin(exchange, exchange.query())
        handle = str(exchange.path_values["handle"])
        shape = self._api.engine.find(handle)
        if shape is None or shape.is_dropped:
            raise HttpError(404, {"message": f"there is no shape {handle!r:.80}"})
        return shape


def describe(shape: Shape) -> dict[str, Any]:
    """A shape as far as it is known without its files."""
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
    """A shape with its latest offset, for which it is opened."""
    return {**describe(shape), "latest": str(shape.latest)}


def _progress(shape: Shape) -> str:
    if shape.failure is not None:
        return "failed"
    if shape.is_snapshot_complete:
        return "complete"
    return "started" if shape.is_snapshot_started else "waiting"
