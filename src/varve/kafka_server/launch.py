"""Runs a server from its configuration: open the store, listen, wait for a signal, stop.

Crash      the first signal stops in order. A second one ends the process at once, as a crash would:
           what was acknowledged is there at the next start.
Threads    the loop is the main thread; the store's workers have their own.
"""

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from varve.kafka_server.http_endpoint import METRICS_TYPE, HttpEndpoint, Page
from varve.kafka_server.server import Server
from varve.kernels import batch_build, batch_scan, record_columns
from varve.serving.process import (
    freeze_garbage_collection,
    handle_stop_signals,
    raise_open_file_limit,
)

logger = logging.getLogger(__name__)


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
    try:
        http = await _start_http(endpoint, config)
        echo(_startup_line(server, store, http, time.monotonic() - began))
        await broker.blocking.run(_warm_coordinators)
        freeze_garbage_collection()
        await stop.wait()
        logger.info("stopping", extra={"connections": server.connection_count})
    finally:
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


def _warm_coordinators() -> None:
    """Loads what the first records of groups and transactions would wait for."""
    batch_build.warm()
    record_columns.warm()


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
    }
    return {name: value for name, value in problems.items() if value}
