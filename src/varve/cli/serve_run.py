"""The life of a served store: open, listen, wait for the end, stop in order.

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
from varve.cli.serve_process import allow_files, keep_what_is_there
from varve.cli.serve_settings import ServePlan
from varve.cli.serve_signals import take_signals
from varve.embedded import Store
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Unavailable
from varve.foundation.metrics import exposition
from varve.kafka_server.authentication import ListenerSecurities
from varve.kafka_server.http_endpoint import METRICS_TYPE, HttpEndpoint, Page
from varve.kafka_server.server import Server
from varve.kernels import batch_build, batch_scan, record_columns

logger = logging.getLogger(__name__)


def serve(plan: ServePlan, tell: Callable[[str], None]) -> None:
    """Serves until a signal; raises what keeps it from starting."""
    began = time.monotonic()
    allow_files()
    with varve.open(list(plan.directories), settings=plan.store) as store:
        for partition, messages in store.recovered.items():
            for message in messages:
                logger.warning("recovered", extra={"partition": partition, "told": message})
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(plan, store, began, tell))
    # Not before the store is closed: whoever reads it may open the directories.
    logger.info("stopped")


async def _run(plan: ServePlan, store: Store, began: float, tell: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    parts: dict[str, Any] = plan.broker
    broker = Broker(
        store,
        clock=SystemClock(),
        timers=LoopTimers(loop),
        random=random.Random(),
        loop=loop,
        boot_id=_find_boot_id(),
        **parts,
    )
    guards = ListenerSecurities(
        plan.server.parsed_listeners(), broker.security, plan.tls, overrides=plan.of_listeners
    )
    server = Server(broker, plan.server, securities=guards)
    endpoint = HttpEndpoint(_pages(server, store))
    end = take_signals(loop)
    loop.add_signal_handler(signal.SIGHUP, lambda: broker.blocking.run(_reload, guards))
    # Before clients connect: their first requests would wait for it.
    await broker.blocking.run(batch_scan.warm)
    await server.start()
    guards.warn_if_no_users(broker.credentials)
    try:
        http = await _start_http(endpoint, plan)
        tell(_started(server, store, http, time.monotonic() - began))
        await broker.blocking.run(_warm_coordinators)
        keep_what_is_there()
        await end.wait()
        logger.info("stopping", extra={"connections": server.connection_count})
    finally:
        await endpoint.stop()
        await server.stop()


def _find_boot_id() -> str | None:
    """What the system calls this start of the machine; None where it does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


async def _start_http(endpoint: HttpEndpoint, plan: ServePlan) -> str:
    if plan.server.http_port < 0:
        return ""
    host, port = plan.server.http_host, plan.server.http_port
    try:
        return f"http://{host}:{await endpoint.start(host, port)}"
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise Unavailable(
            f"cannot listen on http://{host}:{port} for the figures: {reason}; choose another with "
            "--metrics-port or varve.http.host"
        ) from error


def _started(server: Server, store: Store, http: str, seconds: float) -> str:
    endpoints = ", ".join(
        f"{endpoint.listener}://{endpoint.host}:{endpoint.port}"
        for endpoint in server.broker.endpoints.values()
    )
    topics = len(store.topics())
    parts = [
        f"varve serves {endpoints}",
        f"cluster {store.cluster_id}",
        f"{topics} topic{'' if topics == 1 else 's'}",
        *([f"figures at {http}/metrics"] if http else []),
        f"started in {seconds:.2f} s",
    ]
    return "; ".join(parts)


def _warm_coordinators() -> None:
    """Loads what the first records of groups and transactions would wait for."""
    batch_build.warm()
    record_columns.warm()


def _reload(guards: ListenerSecurities) -> None:
    """Reads certificates and users again; what cannot be used stays as it was and is logged."""
    if not guards.reload():
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
        return Page.of(is_healthy, {"healthy": is_healthy, **_troubles(store_health), **refused})

    async def ready() -> Page:
        return Page.of(server.is_ready, {"ready": server.is_ready})

    return {"/metrics": metrics, "/health": health, "/ready": ready}


def _troubles(found: Any) -> dict[str, Any]:
    """What is not well, in sentences."""
    told = {
        "workers": {
            worker.name: str(worker.last_error) for worker in found.workers if not worker.is_healthy
        },
        "cleaning": [str(one.partition) for one in found.cleaning if not one.is_healthy],
        "retention": {str(one): text for one, text in found.retention.items()},
        "unreadable": {str(one): text for one, text in found.unreadable.items()},
        "offline": dict(found.offline),
        "tier": {str(one): text for one, text in found.tier.items()},
        "mirror": found.mirror,
    }
    return {name: value for name, value in told.items() if value}
