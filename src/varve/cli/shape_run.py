"""The life of a server of shapes: open the engine, listen, wait for the end, stop in order.

Crash      the first signal stops in order. A second one ends the process at once, as a crash would:
           the next start goes on where the shapes are durable.
Threads    the loop is the main thread; the engine's workers have their own.
"""

import asyncio
import contextlib
import ctypes
import ipaddress
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from varve.cli.serve_process import allow_files, keep_what_is_there
from varve.cli.serve_signals import take_signals
from varve.cli.shape_feeds import make_feed_factory
from varve.commit_log.names import META_PROPERTIES_FILE
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidSetting, Unavailable
from varve.foundation.settings import parse_settings
from varve.http.server import HttpServer
from varve.http.settings import HttpSettings
from varve.http.shapes.access import Access, read_shapes
from varve.http.shapes.api import ShapeApi
from varve.shapes.engine import LOCK_FILE, ShapeEngine
from varve.shapes.feed.open_feed import TopicOptions
from varve.shapes.kernels import (
    compaction_plan,
    compaction_rewrite,
    json_text,
    log_entries,
    row_messages,
    row_texts,
)
from varve.shapes.registry import FILE_NAME as REGISTRY_FILE
from varve.shapes.settings import CompactionSettings, EngineSettings
from varve.shapes.storage.layout import SCRATCH, TRASH

if TYPE_CHECKING:
    from varve.embedded import Store
    from varve.kafka_client.address import ClusterAddress

logger = logging.getLogger(__name__)

GARBAGE_THRESHOLDS: Final = (200_000, 50, 1000)
"""Garbage is looked for rarely: rows hold no cycles."""
_TRIM_SECONDS: Final = 30
_KERNELS: Final = (
    json_text,
    row_texts,
    row_messages,
    log_entries,
    compaction_plan,
    compaction_rewrite,
)
"""What the first rows would wait for: loaded while the first clients find their way."""
_TABLES: Final = "tables"
_PREFIX_LENGTH: Final = 2
_OWN_NAMES: Final = frozenset({LOCK_FILE, TRASH, SCRATCH, _TABLES, "lost+found"})
"""Of a directory of shapes whose registry is not there, and what file systems put into theirs."""
_HTTP_PREFIX: Final = "shapes.http."
_COMPACTION_PREFIX: Final = "shapes.compaction."


@dataclass(frozen=True, slots=True)
class ShapePlan:
    """Everything a server is told before it starts."""

    host: str
    port: int
    data: Path
    access: Access
    can_delete: bool
    topics: Mapping[str, TopicOptions]
    beside: tuple[Path, ...]
    engine: EngineSettings
    compaction: CompactionSettings
    http: HttpSettings


def make_plan(
    *,
    listen: str,
    data: Path,
    token: str | None,
    admin_token: str | None,
    shapes_file: Path | None,
    can_delete: bool,
    topics: Mapping[str, TopicOptions],
    beside: Sequence[Path],
    given: Mapping[str, str],
) -> ShapePlan:
    """Checks what was given; raises InvalidSetting."""
    host, port = _parse_address(listen)
    for name, one in (("--token", token), ("--admin-token", admin_token)):
        if one == "":
            raise InvalidSetting(f"{name} is empty; is a variable not set?")
    shapes = None if shapes_file is None else read_shapes(shapes_file)
    of_http = {name: given[name] for name in given if name.startswith(_HTTP_PREFIX)}
    of_compaction = {name: given[name] for name in given if name.startswith(_COMPACTION_PREFIX)}
    of_engine = {
        name: given[name]
        for name in given
        if not name.startswith((_HTTP_PREFIX, _COMPACTION_PREFIX))
    }
    return ShapePlan(
        host=host,
        port=port,
        data=data,
        access=Access(token=token, admin_token=admin_token, shapes=shapes),
        can_delete=can_delete,
        topics=topics,
        beside=tuple(beside),
        engine=parse_settings(EngineSettings, of_engine, "--set"),
        compaction=parse_settings(CompactionSettings, of_compaction, "--set"),
        http=parse_settings(HttpSettings, of_http, "--set"),
    )


def _parse_address(listen: str) -> tuple[str, int]:
    host, found, port = listen.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if not found or not host or not is_port:
        raise InvalidSetting(f"--listen {listen!r:.120} is no address; write HOST:PORT")
    return host.strip("[]"), int(port)


def check_data_directory(data: Path, log_directories: Sequence[Path]) -> None:
    """Raises InvalidSetting for a directory of shapes that lies in one of a store."""
    for path in log_directories:
        if data.resolve().is_relative_to(path.resolve()):
            raise InvalidSetting(
                f"--data {data} lies in log directory {path}, which holds partitions alone: "
                "name a place outside of it"
            )


def make_data_directory(data: Path) -> None:
    """Makes the directory of shapes; raises InvalidSetting where there can be none, or others'."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        _check_names({path.name for path in data.iterdir()}, data)
        (data / LOCK_FILE).touch()
    except OSError as error:
        raise InvalidSetting(
            f"--data {data} is of no use: {error.filename}: {error.strerror}; name a directory "
            "in which this process may write"
        ) from error


def _check_names(names: set[str], data: Path) -> None:
    """Raises InvalidSetting for a directory that something else has put its files into."""
    others = {name for name in names if name not in _OWN_NAMES and len(name) != _PREFIX_LENGTH}
    if (REGISTRY_FILE not in names and others) or META_PROPERTIES_FILE in names:
        raise InvalidSetting(
            f"--data {data} is a directory of something else, it has {min(others)}: name one "
            "that is empty, or is to be made"
        )


def serve(plan: ShapePlan, source: "Store | ClusterAddress", tell: Callable[[str], None]) -> None:
    """Serves until a signal; raises what keeps it from starting."""
    began = time.monotonic()
    allow_files()
    _adopt_log()
    files = RealFileSystem()
    clock = SystemClock()
    feeds = make_feed_factory(
        source,
        plan.topics,
        str(plan.data / _TABLES),
        fs=files,
        clock=clock,
        beside=[str(path) for path in plan.beside],
    )
    feeds.check_access()
    make_data_directory(plan.data)
    engine = ShapeEngine(
        str(plan.data),
        feeds.make,
        fs=files,
        clock=clock,
        random=random.Random(),
        settings=plan.engine,
        compaction=plan.compaction,
    )
    with engine.open(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_run(plan, engine, began, tell))
        finally:
            feeds.stop_waiting()
    feeds.close()
    logger.info("stopped")


def _adopt_log() -> None:
    """What fails in the HTTP library looks like the rest.

    What it warns of, bytes that are no request, is counted: anybody may send them.
    """
    adopted = logging.getLogger("uvicorn")
    adopted.handlers = list(logging.getLogger("varve").handlers)
    adopted.propagate = False
    adopted.setLevel(logging.ERROR)


async def _run(
    plan: ShapePlan, engine: ShapeEngine, began: float, tell: Callable[[str], None]
) -> None:
    api = ShapeApi(
        engine,
        plan.http,
        plan.access,
        can_delete=plan.can_delete,
        clock=SystemClock(),
        random=random.Random(),
    )
    server = HttpServer(api, host=plan.host, port=plan.port)
    end = take_signals(asyncio.get_running_loop())
    await server.start()
    trimming = asyncio.ensure_future(_trim_memory(api))
    try:
        _warn_of_everybody(plan)
        shown = f"[{plan.host}]" if ":" in plan.host else plan.host
        count = len(engine.shapes())
        tell(
            f"varve serves shapes at http://{shown}:{server.port}/v1/shape; "
            f"{count} shape{'' if count == 1 else 's'}; "
            f"started in {time.monotonic() - began:.2f} s"
        )
        for kernels in _KERNELS:
            # Where nobody has compiled them before this takes its time, and a stop comes first.
            if not end.is_set():
                await api.admin_pool.run(kernels.warm)
        keep_what_is_there(GARBAGE_THRESHOLDS)
        await server.serve_until(end)
        logger.info("stopping", extra={"waiting": api.waiters.count})
    finally:
        trimming.cancel()
        await server.stop()


async def _trim_memory(api: ShapeApi) -> None:
    """Gives back what slow clients held: the C library keeps freed pieces between others."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(_TRIM_SECONDS)
        # Where there is much to do another time will.
        with contextlib.suppress(Unavailable):
            await api.admin_pool.run(trim, 0)


def _warn_of_everybody(plan: ShapePlan) -> None:
    try:
        is_local = ipaddress.ip_address(plan.host).is_loopback
    except ValueError:
        is_local = plan.host == "localhost"
    if not is_local and plan.access.token is None:
        logger.warning(
            "everybody who reaches this address may read every topic: give --token, --shapes-file",
            extra={"listen": plan.host},
        )
