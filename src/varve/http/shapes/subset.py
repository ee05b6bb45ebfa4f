"""Subset requests: one response with the rows of a shape that match a query.

Invariant  a client that continues from the offset of the response misses nothing: it is that of
           the request, from which the client has every change; without one, the state of the rows
           is not older. So is the handle: the next read of a client whose shape was replaced gets
           409. After a restart no rows are sent that are older than those that clients got before.
           A request whose client disconnected is not started, or ends early.
Threads    the event loop only; rows are read in a pool. Requests wait for its threads in the loop,
           where a disconnected client costs nothing.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import InvalidRequest, NotFound
from varve.http.exchange import (
    JSON,
    NO_CACHE,
    HttpError,
    HttpExchange,
    Response,
    invalid,
    unavailable,
)
from varve.http.shapes import headers as electric
from varve.http.shapes.parameters import SUBSET_FIELDS, ShapeRequest, SubsetQuery
from varve.http.shapes.read import ShapeReads
from varve.shapes.filter.subset import Subset, parse_order
from varve.shapes.shape import Shape
from varve.shapes.storage.layout import HANDLE_TEXT
from varve.shapes.topic import SubsetResult

if TYPE_CHECKING:
    from varve.http.shapes.api import ShapeApi

_DISCONNECT_ROUNDS: Final = 8
"""Iterations of the event loop before a subset is read, to detect a client that has disconnected.
A thread that reads rows slows the loop down, and with it the detection of other disconnects."""
_REPLACED_RETRY_S: Final = 1


class SubsetReads:
    """Responds to subset requests."""

    def __init__(self, api: "ShapeApi", reads: ShapeReads) -> None:
        self._api = api
        self._reads = reads
        self._slots = asyncio.Semaphore(api.settings.subset_threads)
        self._count_max = api.settings.subset_threads + api.settings.subsets_waiting_max
        self._count = 0
        self._held_bytes = 0

    async def respond(self, exchange: HttpExchange, request: ShapeRequest) -> Response:
        """The requested rows; clients that follow a shape keep their place in it."""
        try:
            return await self._respond(exchange, request)
        except HttpError as error:
            if error.status != 409 or request.is_initial:
                raise
            # The client would continue at its offset in the other shape, without a refetch.
            raise unavailable(
                "the shape was replaced: try again", retry_s=_REPLACED_RETRY_S
            ) from error

    async def _respond(self, exchange: HttpExchange, request: ShapeRequest) -> Response:
        api = self._api
        assert request.subset is not None
        exchange.watch()
        shape = await api.resolver.resolve_for_rows(request)
        exchange.error_headers.append((electric.HANDLE, shape.handle.encode()))
        await self._reads.wait_for_snapshot(exchange, shape)
        await self._reads.wait_until_read_again(exchange, shape)
        try:
            result = await self._run_for(exchange, shape, request.subset)
        except NotFound:
            raise await api.resolver.refetch(shape) from None
        except InvalidRequest as error:
            parameter = getattr(error, "parameter", "where")
            raise invalid(
                parameter if parameter in SUBSET_FIELDS else "where", str(error), within="subset"
            ) from None
        if shape.is_dropped:
            raise await api.resolver.refetch(shape)
        is_followed = not request.is_initial and HANDLE_TEXT.fullmatch(request.handle or "")
        handle = request.handle if is_followed and request.handle else shape.handle
        offset = result.position if request.is_initial else request.offset
        fields = [
            JSON,
            (electric.HANDLE, handle.encode()),
            (electric.OFFSET, str(offset).encode()),
            electric.NO_SCHEMA,
            (electric.SNAPSHOT, b"true"),
            (electric.HAS_DATA, b"true"),
            NO_CACHE,
        ]
        body = encode_subset(result)
        self._held_bytes += len(body)
        exchange.on_close(lambda: self._release_bytes(len(body)))
        return Response(200, fields, body)

    def _release_bytes(self, size: int) -> None:
        self._held_bytes -= size

    async def _run_for(
        self, exchange: HttpExchange, shape: Shape, query: SubsetQuery
    ) -> SubsetResult:
        """The requested rows; raises ClientDisconnected, or 503 when too many requests wait."""
        async with exchange.cancel_on_disconnect():
            for _ in range(_DISCONNECT_ROUNDS):
                await asyncio.sleep(0)
            if self._count >= self._count_max:
                raise unavailable(
                    f"{self._count} subset requests are in progress, the limit: try again later"
                )
            return await self._run_counted(shape, query)

    async def _run_counted(self, shape: Shape, query: SubsetQuery) -> SubsetResult:
        cancelled = threading.Event()
        self._count += 1
        try:
            async with self._slots:
                self._check_held()
                return await self._api.subset_pool.run(self._run, shape, query, cancelled.is_set)
        finally:
            cancelled.set()
            self._count -= 1

    def _check_held(self) -> None:
        if self._held_bytes >= self._api.settings.subset_held_bytes:
            raise unavailable(
                f"{self._held_bytes} bytes of subsets wait for their clients to read them: try "
                "again later"
            )

    def _run(
        self, shape: Shape, query: SubsetQuery, is_cancelled: Callable[[], bool]
    ) -> SubsetResult:
        if query.order_by is not None:
            _check_order(query.order_by)
        subset = Subset.parse(
            where=query.where,
            params=query.params or {},
            order_by=query.order_by,
            limit=query.limit,
            offset=query.offset,
            queryable=self._queryable(shape, query),
        )
        return self._api.engine.subset(shape, subset, is_cancelled)

    def _queryable(self, shape: Shape, query: SubsetQuery) -> tuple[str, ...] | None:
        """With an allow-list a query must not reveal columns that the shape leaves out."""
        shown = shape.definition.columns if self._api.access.shapes is not None else None
        if shown is None or query.queryable is None:
            return query.queryable if shown is None else shown
        return tuple(name for name in query.queryable if name in shown)


def _check_order(order_by: str) -> None:
    """Raises an error that names the order, not the filter."""
    try:
        parse_order(order_by)
    except InvalidRequest as error:
        raise invalid("order_by", str(error), within="subset") from None


def encode_subset(result: SubsetResult) -> bytes:
    """The rows, and which changes they already contain."""
    edge = str(result.tx + 1)
    metadata = {
        "xmin": edge,
        "xmax": edge,
        "xip_list": [],
        "snapshot_mark": result.mark,
        "database_lsn": edge,
    }
    return b'{"metadata":%s,"data":[%s]}' % (
        json.dumps(metadata, separators=(",", ":")).encode(),
        b",".join(result.rows),
    )
