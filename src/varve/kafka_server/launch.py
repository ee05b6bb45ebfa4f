"""Runs a server from its configuration, with its pages for monitoring, until a signal.

Invariant  a client of the monitoring endpoint is bounded in size, time and number, and every
           connection is closed after its response. A connection above the limit closes the
           oldest one: clients that send half a request or do not read their response do not
           lock others out.
Crash      the first signal stops in order. A second one ends the process at once, as a crash would:
           what was acknowledged is there at the next start.
Threads    the loop is the main thread; the store's workers have their own.
"""

import asyncio
import json
import logging
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

import varve
from varve.broker.background import LoopTimers
from varve.broker.broker import Broker
from varve.embedded import Store
from varve.embedded.maintenance import StoreHealth
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Unavailable
from varve.foundation.metrics import exposition
from varve.kafka_server.authentication import ListenerSecurities
from varve.kafka_server.config import ServerConfig
from varve.kafka_server.server import Server
from varve.kernels import (
    batch_build,
    batch_scan,
    compressed_frames,
    crc,
    record_columns,
    record_parse,
    transaction_marks,
)
from varve.serving.process import (
    freeze_garbage_collection,
    handle_stop_signals,
    raise_open_file_limit,
    trim_memory,
)

logger = logging.getLogger(__name__)

_HEADER_BYTES_MAX: Final = 8 << 10
_REQUEST_SECONDS: Final = 10.0
_CONNECTION_COUNT_MAX: Final = 64
_PAGES_AT_ONCE: Final = 4
_KERNELS: Final = (
    batch_build, record_columns, record_parse, compressed_frames, crc, transaction_marks,
)  # fmt: skip
"""Loaded early: first records would wait for them, and no file may be free when they come."""
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Page:
    """A response."""

    status: int
    body: str
    type: str = "text/plain; charset=utf-8"

    @classmethod
    def of(cls, is_ok: bool, state: dict[str, Any]) -> "Page":
        """A state as JSON, with status 200 or 503."""
        return cls(200 if is_ok else 503, json.dumps(state) + "\n", "application/json")


MakePage = Callable[[], Awaitable[Page]]


class HttpEndpoint:
    """Answers GET and HEAD for some paths."""

    def __init__(self, pages: Mapping[str, MakePage]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, None] = {}
        """In the order of their arrival."""
        self._making = asyncio.Semaphore(_PAGES_AT_ONCE)

    async def start(self, host: str, port: int) -> int:
        """Listens and returns the port; raises OSError."""
        server = await asyncio.start_server(self._serve, host, port, limit=_HEADER_BYTES_MAX)
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _CONNECTION_COUNT_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.transport.abort()
        self._connections[writer] = None
        try:
            await asyncio.wait_for(self._exchange(reader, writer), _REQUEST_SECONDS)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            logger.debug("a request for monitoring failed")
        finally:
            self._connections.pop(writer, None)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path = _parse(head)
        page = await self._find_page(method, path)
        body = page.body.encode()
        writer.write(
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\n"
            f"Content-Type: {page.type}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        if method != "HEAD":
            writer.write(body)
        await writer.drain()
        await _drained(writer)

    async def _find_page(self, method: str, path: str) -> Page:
        if not method:
            return Page(400, "not an HTTP request\n")
        if method not in ("GET", "HEAD"):
            return Page(405, "only GET and HEAD\n")
        make = self._pages.get(path)
        if make is None:
            return Page(404, f"known paths: {', '.join(self._pages)}\n")
        try:
            async with self._making:
                return await make()
        except Exception:
            logger.exception("a monitoring page failed", extra={"path": path})
            return Page(503, "internal error; the log has the cause\n")


async def _drained(writer: asyncio.StreamWriter) -> None:
    """Waits until the kernel has taken everything."""
    while writer.transport.get_write_buffer_size():
        await asyncio.sleep(0.01)


def _parse(head: bytes) -> tuple[str, str]:
    """Method and path without its query; empty for an invalid request line."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


def serve(config: ServerConfig, echo: Callable[[str], None]) -> None:
    """Serves until a signal; raises what keeps it from starting."""
    began = time.monotonic()
    raise_open_file_limit()
    with varve.open(list(config.directories), settings=config.store) as store:
        for partition, messages in store.recovered.items():
            for message in messages:
                logger.warning("recovered", extra={"partition": partition, "repair": message})
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(config, store, began, echo))
    # Not before the store is closed: a reader of this line may open the directories.
    logger.info("stopped")


async def _run(
    config: ServerConfig, store: Store, began: float, echo: Callable[[str], None]
) -> None:
    loop = asyncio.get_running_loop()
    parts: dict[str, Any] = config.broker
    broker = Broker(
        store,
        clock=SystemClock(),
        timers=LoopTimers(loop),
        random=random.Random(),
        loop=loop,
        boot_id=_find_boot_id(),
        **parts,
    )
    securities = ListenerSecurities(
        config.server.parsed_listeners(),
        broker.security,
        config.tls,
        overrides=config.listener_settings,
    )
    server = Server(broker, config.server, securities=securities)
    endpoint = HttpEndpoint(_pages(server, store))
    stop = handle_stop_signals(loop)
    loop.add_signal_handler(signal.SIGHUP, lambda: broker.blocking.run(_reload, securities))
    # Before clients connect: their first requests would wait for it.
    await broker.blocking.run(batch_scan.warm)
    await server.start()
    address = next(iter(broker.endpoints.values()))
    for directory in store.directories:
        directory.describe_owner("varve serve", f"{address.host}:{address.port}")
    securities.warn_if_no_users(broker.credentials)
    trimming = loop.create_task(trim_memory(broker.blocking.run))
    try:
        http = await _start_http(endpoint, config)
        echo(_startup_line(server, store, http, time.monotonic() - began))
        await broker.blocking.run(_warm_kernels)
        freeze_garbage_collection()
        await stop.wait()
        logger.info("stopping", extra={"connections": server.connection_count})
    finally:
        trimming.cancel()
        await endpoint.stop()
        await server.stop()


def _find_boot_id() -> str | None:
    """The system's id of this boot of the machine; None where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


async def _start_http(endpoint: HttpEndpoint, config: ServerConfig) -> str:
    if config.server.http_port < 0:
        return ""
    host, port = config.server.http_host, config.server.http_port
    try:
        return f"http://{host}:{await endpoint.start(host, port)}"
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise Unavailable(
            f"cannot listen on http://{host}:{port} for metrics: {reason}; choose another with "
            "--metrics-port or varve.http.host"
        ) from error


def _startup_line(server: Server, store: Store, http: str, seconds: float) -> str:
    endpoints = ", ".join(
        f"{endpoint.listener}://{endpoint.host}:{endpoint.port}"
        for endpoint in server.broker.endpoints.values()
    )
    topics = len(store.topics())
    parts = [
        f"varve serves {endpoints}",
        f"cluster {store.cluster_id}",
        f"{topics} topic{'' if topics == 1 else 's'}",
        *([f"metrics at {http}/metrics"] if http else []),
        f"started in {seconds:.2f} s",
    ]
    return "; ".join(parts)


def _warm_kernels() -> None:
    for kernels in _KERNELS:
        kernels.warm()


def _reload(securities: ListenerSecurities) -> None:
    """Reads certificates and users again; what cannot be used stays as it was and is logged."""
    if not securities.reload():
        logger.info("certificates and users were read again")


def _pages(server: Server, store: Store) -> dict[str, Callable[[], Any]]:
    async def metrics() -> Page:
        broker = server.broker
        text = await broker.blocking.run(exposition, store.metrics, broker.metrics, server.metrics)
        return Page(200, text, METRICS_TYPE)

    async def health() -> Page:
        store_health = await server.broker.blocking.run(store.health)
        recent = {
            "appends": server.broker.failed_appends.find_recent(),
            "reads": server.broker.failed_reads.find_recent(),
            "dedup": server.broker.dedup_topics.failures() or None,
        }
        refused = {name: text for name, text in recent.items() if text is not None}
        is_healthy = store_health.is_healthy and not refused
        return Page.of(is_healthy, {"healthy": is_healthy, **_problems(store_health), **refused})

    async def ready() -> Page:
        return Page.of(server.is_ready, {"ready": server.is_ready})

    return {"/metrics": metrics, "/health": health, "/ready": ready}


def _problems(health: StoreHealth) -> dict[str, Any]:
    problems = {
        "workers": {w.name: str(w.last_error) for w in health.workers if not w.is_healthy},
        "cleaning": [str(log.partition) for log in health.cleaning if not log.is_healthy],
        "retention": {str(partition): text for partition, text in health.retention.items()},
        "unreadable": {str(partition): text for partition, text in health.unreadable.items()},
        "offline": dict(health.offline),
        "tier": {str(partition): text for partition, text in health.tier.items()},
        "mirror": health.mirror,
        "clock": health.clock,
    }
    return {name: value for name, value in problems.items() if value}
