"""The shape API over HTTP: routes, shared components, and administration of shapes.

Invariant  on the event loop only those methods of the engine are called that neither block nor read
           files: `find`, `find_by_definition`, `newest_tx`, `is_caught_up`, `is_read_again`,
           `health`, `topic_health` and `end_compactions`. Reads, parsing, creations and
           administration, whole tables, and snapshots that are still being written have pools of
           their own, so that none delays another. A request that names no shape, or two, deletes
           none.
Threads    the event loop only.
"""

import asyncio
import heapq
import re
from random import Random
from typing import Any, Final

from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from varve.foundation.clock import Clock
from varve.foundation.metrics import exposition
from varve.http.endpoint import Handler, HttpApi, HttpEndpoint, WorkerPool
from varve.http.exchange import NO_CACHE, NO_STORE, HttpError, HttpExchange, Response, invalid
from varve.http.metrics import HttpMetrics
from varve.http.origins import ANY_ORIGIN, OriginRules
from varve.http.settings import HttpSettings
from varve.http.shapes import headers as electric
from varve.http.shapes.access import Access, ShapeResolver
from varve.http.shapes.openapi import make_document
from varve.http.shapes.parameters import parse_definition_texts, parse_handle, parse_request
from varve.http.shapes.ranges import RangeReader
from varve.http.shapes.read import ShapeReads
from varve.http.shapes.subset import SubsetReads
from varve.http.shapes.waiters import RequestLimiter, Waiters
from varve.shapes.engine import ShapeEngine
from varve.shapes.shape import DropReason, Shape

SHAPE_PATH: Final = "/v1/shape"
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LISTED_MAX: Final = 1000
_SLASHES: Final = re.compile("//+")
_NOT_ALLOWED: Final = (*NO_STORE, (b"allow", b"GET, POST, HEAD, OPTIONS"))


class ShapeApi(HttpApi):
    """The shapes of an engine over HTTP; created in the event loop that uses it."""

    exposed_headers = electric.EXPOSED
    unavailable_headers = ((electric.KNOWN_ERROR, b"true"),)

    def __init__(
        self,
        engine: ShapeEngine,
        settings: HttpSettings,
        access: Access,
        *,
        can_delete: bool,
        clock: Clock,
        random: Random,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.access = access
        self.can_delete = can_delete
        self.clock = clock
        self.random = random
        self.metrics = HttpMetrics()
        self.origins = OriginRules(
            settings.allowed_origins if access.token is None else (ANY_ORIGIN,)
        )
        self.limiter = RequestLimiter(settings)
        self.read_pool = WorkerPool("shape-read", settings.read_threads)
        self.parse_pool = WorkerPool("shape-parse", settings.parse_threads)
        self.admin_pool = WorkerPool("shape-admin", settings.admin_threads)
        self.snapshot_pool = WorkerPool("shape-snapshot", settings.snapshot_threads)
        self.subset_pool = WorkerPool("shape-subset", settings.subset_threads)
        self.reader = RangeReader(self.read_pool, self.snapshot_pool, settings.shared_bytes)
        self.resolver = ShapeResolver(
            engine, access, self.parse_pool, self.admin_pool, settings.snapshot_wait_ms
        )
        self.waiters = Waiters(asyncio.get_running_loop())
        self._unsubscribe = engine.subscribe(self.waiters.wake_later)
        self._reads = ShapeReads(self)
        self._subsets = SubsetReads(self, self._reads)
        self._document = Response.of_json(200, make_document(), *NO_STORE)
        self._shape, self._router = self._make_endpoints(ShapeAdmin(self))

    def _make_endpoints(self, admin: "ShapeAdmin") -> tuple[HttpEndpoint, Router]:
        shape = self._endpoint("shape", GET=self.get, POST=self.post, DELETE=admin.delete)
        routes = [
            Route("/v1/shapes", self._endpoint("shapes", GET=admin.list)),
            Route("/v1/shapes/{handle}", self._endpoint("shapes", GET=admin.show)),
            Route("/v1/shapes/{handle}/compact", self._endpoint("compact", POST=admin.compact)),
            Route("/v1/health", self._endpoint("health", GET=self.get_health)),
            Route("/metrics", self._endpoint("metrics", GET=self.get_metrics)),
            Route("/openapi.json", self._endpoint("openapi", GET=self.get_document)),
            Route("/", self._endpoint("root", GET=_get_root)),
        ]
        unknown = self._endpoint("unknown", GET=_not_found, POST=_not_found, DELETE=_not_found)
        return shape, Router(routes, default=unknown, redirect_slashes=False)

    def _endpoint(self, name: str, **handlers: Handler) -> HttpEndpoint:
        return HttpEndpoint(name, self, handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Nearly all requests have this path, and routing takes a tenth of the time of a response.
        if scope["path"] != SHAPE_PATH:
            # A base address that ends with a slash, joined with a path, gives two.
            path = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
            scope = {**scope, "path": path}
        endpoint = self._shape if scope["path"] == SHAPE_PATH else self._router
        await endpoint(scope, receive, send)

    def begin_stop(self) -> None:
        """Waiting requests are answered at once, and compactions end early."""
        self.waiters.stop()
        self.engine.end_compactions()

    def close(self) -> None:
        self._unsubscribe()
        for pool in (
            self.read_pool,
            self.parse_pool,
            self.admin_pool,
            self.snapshot_pool,
            self.subset_pool,
        ):
            pool.close()

    # Data of shapes

    async def get(self, exchange: HttpExchange) -> Response:
        return await self._respond(exchange, None)

    async def post(self, exchange: HttpExchange) -> Response:
        self.access.check(exchange, exchange.query())
        body = await exchange.read_body(self.settings.body_bytes_max, self.settings.idle_ms)
        return await self._respond(exchange, body)

    async def _respond(self, exchange: HttpExchange, body: bytes | None) -> Response:
        query = exchange.query()
        self.access.check(exchange, query)
        request = parse_request(query, body)
        handle = parse_handle(query)
        is_initial = handle is None or self.engine.find(handle) is None
        admission = self.limiter.admit(is_initial=is_initial)
        exchange.on_close(admission.leave)
        if request.subset is not None:
            response = await self._subsets.respond(exchange, request)
        else:
            response = await self._reads.respond(exchange, request)
        admission.mark_existing()
        return response

    # About the server

    async def get_health(self, exchange: HttpExchange) -> Response:
        status = self.engine.health()
        return Response.of_json(200 if status == "active" else 202, {"status": status}, *NO_STORE)

    async def get_metrics(self, exchange: HttpExchange) -> Response:
        self.access.check_admin(exchange, exchange.query())
        self.metrics.set_state(self.limiter.counts, waiting=self.waiters.count)
        self.metrics.add_counts(self.limiter.refused, shared=self.reader.shared_count)
        text = await self.read_pool.run(exposition, self.engine.metrics, self.metrics)
        return Response.of_text(200, METRICS_TYPE, text)

    async def get_document(self, exchange: HttpExchange) -> Response:
        document = self._document
        return Response(document.status, list(document.headers), document.body)


async def _get_root(exchange: HttpExchange) -> Response:
    return Response(200, [*NO_STORE])


async def _not_found(exchange: HttpExchange) -> Response:
    raise HttpError(404, {"message": f"there is nothing at {exchange.scope['path']:.200}"})


class ShapeAdmin:
    """Responds to requests about shapes, not for their data."""

    def __init__(self, api: ShapeApi) -> None:
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
        return Response.of_json(200, document, *NO_STORE)

    async def show(self, exchange: HttpExchange) -> Response:
        """One shape, and how far it is."""
        shape = self._get(exchange)
        document = await self._api.admin_pool.run(describe_fully, shape)
        return Response.of_json(200, document, *NO_STORE)

    async def compact(self, exchange: HttpExchange) -> Response:
        """Compacts the log of a shape now."""
        shape = self._get(exchange)
        report = await self._api.admin_pool.run(self._api.engine.compact, shape)
        document = {**report.to_json(), "is_dropped": shape.is_dropped}
        return Response.of_json(200, document, *NO_STORE)

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
        return Response(202, [NO_CACHE])

    def _get(self, exchange: HttpExchange) -> Shape:
        self._api.access.check_admin(exchange, exchange.query())
        handle = str(exchange.path_values["handle"])
        shape = self._api.engine.find(handle)
        if shape is None or shape.is_dropped:
            raise HttpError(404, {"message": f"there is no shape {handle!r:.80}"})
        return shape


def describe(shape: Shape) -> dict[str, Any]:
    """Describes a shape without reading its files."""
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
    """Describes a shape with its latest offset, which opens its files."""
    return {**describe(shape), "latest": str(shape.latest)}


def _progress(shape: Shape) -> str:
    if shape.failure is not None:
        return "failed"
    if shape.is_snapshot_complete:
        return "complete"
    return "started" if shape.is_snapshot_started else "waiting"
