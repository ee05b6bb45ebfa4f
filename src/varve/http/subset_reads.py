"""Part of the rows of a shape, asked for once.

Invariant  the offset of the answer is not beyond what the rows contain, so that a client that goes
           on from there misses nothing. After a restart no rows are given that are behind what
           was told before. One whose client has left is not begun, and ends soon where it was.
Threads    the loop's alone; rows are read in a pool. Who waits for its threads does so in the loop:
           leaving costs nothing there.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Final

from varve.foundation.errors import InvalidRequest, NotFound
from varve.http import headers
from varve.http.answer import Answer, invalid, unavailable
from varve.http.exchange import Exchange
from varve.http.services import Services
from varve.http.shape_reads import ShapeReads
from varve.http.shape_request import SUBSET_NAMES, ShapeRequest, SubsetQuery
from varve.shapes.filter.subset import Subset, parse_order
from varve.shapes.shape import Shape
from varve.shapes.topic import SubsetResult

_LOOKS: Final = 8
"""Rounds of the loop before a subset is begun: in fewer it sees who asked and left at once. A
thread that reads rows slows the loop down, and so the sight of all others who did."""


class SubsetReads:
    """Answers subset requests."""

    def __init__(self, services: Services, reads: ShapeReads) -> None:
        self._services = services
        self._reads = reads
        self._places = asyncio.Semaphore(services.settings.subset_threads)
        self._count_max = services.settings.subset_threads + services.settings.subsets_waiting_max
        self._count = 0
        self._held_bytes = 0

    async def answer(self, exchange: Exchange, request: ShapeRequest) -> Answer:
        services = self._services
        assert request.subset is not None
        exchange.watch()
        shape = await services.resolver.resolve(request)
        exchange.handle = shape.handle
        await self._reads.wait_for_snapshot(exchange, shape)
        await self._reads.wait_until_read_again(exchange, shape)
        try:
            found = await self._run_for(exchange, shape, request.subset)
        except NotFound:
            raise await services.resolver.refetch(shape) from None
        except InvalidRequest as error:
            named = getattr(error, "parameter", "where")
            raise invalid(
                named if named in SUBSET_NAMES else "where", str(error), is_subset=True
            ) from None
        if shape.is_dropped:
            raise await services.resolver.refetch(shape)
        told = [
            headers.JSON,
            (headers.HANDLE, shape.handle.encode()),
            (headers.OFFSET, str(found.position).encode()),
            headers.NO_SCHEMA,
            (headers.SNAPSHOT, b"true"),
            (headers.HAS_DATA, b"true"),
            headers.NO_CACHE,
        ]
        body = encode_subset(found)
        self._held_bytes += len(body)
        exchange.on_close(lambda: self._let_go(len(body)))
        return Answer(200, told, body)

    def _let_go(self, size: int) -> None:
        self._held_bytes -= size

    async def _run_for(self, exchange: Exchange, shape: Shape, query: SubsetQuery) -> SubsetResult:
        """The rows asked for; raises Gone when the client leaves, refuses when too many wait."""
        async with exchange.attended():
            for _ in range(_LOOKS):
                await asyncio.sleep(0)
            if self._count >= self._count_max:
                told = f"{self._count} subsets are asked for, the limit: come again later"
                raise unavailable(told)
            return await self._run_counted(shape, query)

    async def _run_counted(self, shape: Shape, query: SubsetQuery) -> SubsetResult:
        left = threading.Event()
        self._count += 1
        try:
            async with self._places:
                self._check_held()
                return await self._services.subset.run_in_engine(
                    self._run, shape, query, left.is_set
                )
        finally:
            left.set()
            self._count -= 1

    def _check_held(self) -> None:
        if self._held_bytes >= self._services.settings.subset_held_bytes:
            raise unavailable(
                f"{self._held_bytes} bytes of subsets wait for their clients to take them: come "
                "again later"
            )

    def _run(self, shape: Shape, query: SubsetQuery, is_left: Callable[[], bool]) -> SubsetResult:
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
        return self._services.engine.subset(shape, subset, is_left)

    def _queryable(self, shape: Shape, query: SubsetQuery) -> tuple[str, ...] | None:
        """With an allow-list a query must not tell of columns that the shape leaves out."""
        shown = shape.definition.columns if self._services.access.shapes is not None else None
        if shown is None or query.queryable is None:
            return query.queryable if shown is None else shown
        return tuple(name for name in query.queryable if name in shown)


def _check_order(order_by: str) -> None:
    """Raises a refusal that names the order, not the filter."""
    try:
        parse_order(order_by)
    except InvalidRequest as error:
        raise invalid("order_by", str(error), is_subset=True) from None


def encode_subset(found: SubsetResult) -> bytes:
    """The rows, and which changes they contain already."""
    edge = str(found.tx + 1)
    metadata = {
        "xmin": edge,
        "xmax": edge,
        "xip_list": [],
        "snapshot_mark": found.mark,
        "database_lsn": edge,
    }
    return b'{"metadata":%s,"data":[%s]}' % (
        json.dumps(metadata, separators=(",", ":")).encode(),
        b",".join(found.rows),
    )
