"""Runs a server of shapes from its configuration: open the engine, listen, wait, stop.

Crash      the first signal stops in order. A second one ends the process at once, as a crash would:
           the next start continues where the shapes are durable.
Threads    the loop is the main thread; the engine's workers have their own.
"""

import asyncio
import ipaddress
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from varve.commit_log.names import META_PROPERTIES_FILE
from varve.disk import FileSystem, RealFileSystem
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import parse_settings
from varve.http.server import HttpServer
from varve.http.settings import HttpSettings
from varve.http.shapes.access import Access, read_shapes
from varve.http.shapes.api import ShapeApi
from varve.serving.process import (
    freeze_garbage_collection,
    handle_stop_signals,
    raise_open_file_limit,
    trim_memory,
)
from varve.shapes.engine import LOCK_FILE, ShapeEngine
from varve.shapes.kernels import (
    compaction_plan,
    compaction_rewrite,
    json_text,
    log_entries,
    row_messages,
    row_texts,
)
from varve.shapes.opening import TABLES, FeedFactory, TopicOptions, open_engine
from varve.shapes.registry import FILE_NAME as REGISTRY_FILE
from varve.shapes.settings import CompactionSettings, EngineSettings
from varve.shapes.storage.layout import SCRATCH, TRASH

if TYPE_CHECKING:
    from varve.embedded import Store
    from varve.kafka_client.address import ClusterAddress

logger = logging.getLogger(__name__)

GARBAGE_THRESHOLDS: Final = (200_000, 50, 1000)
"""The garbage collector runs rarely: rows hold no cycles."""
_KERNELS: Final = (
    json_text,
    row_texts,
    row_messages,
    log_entries,
    compaction_plan,
    compaction_rewrite,
)
"""Loaded at the start, so that the first rows do not wait for them."""
_PREFIX_LENGTH: Final = 2
_OWN_NAMES: Final = frozenset({LOCK_FILE, TRASH, SCRATCH, TABLES, "lost+found"})
"""Names that a data directory without a registry may hold."""
_HTTP_PREFIX: Final = "shapes.http."
_COMPACTION_PREFIX: Final = "shapes.compaction."


@dataclass(frozen=True, slots=True)
class ShapeServerConfig:
    """The checked options of a server."""

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


def make_config(
    *,
    listen: str,
    data: Path,
    token: str | None,
    admin_token: str | None,
    shapes_file: Path | None,
    can_delete: bool,
    topics: Mapping[str, TopicOptions],
    beside: Sequence[Path],
    settings: Mapping[str, str],
) -> ShapeServerConfig:
    """Raises InvalidSetting."""
    host, port = _parse_address(listen)
    for name, value in (("--token", token), ("--admin-token", admin_token)):
        if value == "":
            raise InvalidSetting(f"{name} is empty; is a variable not set?")
    shapes = None if shapes_file is None else read_shapes(shapes_file)
    parts: dict[str, dict[str, str]] = {_HTTP_PREFIX: {}, _COMPACTION_PREFIX: {}, "": {}}
    for name, value in settings.items():
        prefix = next(prefix for prefix in parts if name.startswith(prefix))
        parts[prefix][name] = value
    return ShapeServerConfig(
        host=host,
        port=port,
        data=data,
        access=Access(token=token, admin_token=admin_token, shapes=shapes),
        can_delete=can_delete,
        topics=topics,
        beside=tuple(beside),
        engine=parse_settings(EngineSettings, parts[""], "--set"),
        compaction=parse_settings(CompactionSettings, parts[_COMPACTION_PREFIX], "--set"),
        http=parse_settings(HttpSettings, parts[_HTTP_PREFIX], "--set"),
    )


def _parse_address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if not colon or not host or not is_port:
        raise InvalidSetting(f"--listen {listen!r:.120} is not an address; write HOST:PORT")
    return host.strip("[]"), int(port)


def check_data_directory(data: Path, log_directories: Sequence[Path]) -> None:
    """Raises InvalidSetting for a data directory within a log directory."""
    for path in log_directories:
        if data.resolve().is_relative_to(path.resolve()):
            raise InvalidSetting(
                f"--data {data} is inside log directory {path}, which may hold only partitions: "
                "name a directory outside of it"
            )


def make_data_directory(data: Path) -> None:
    """Creates the data directory; raises InvalidSetting if it cannot be used."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        _check_names({path.name for path in data.iterdir()}, data)
        (data / LOCK_FILE).touch()
    except OSError as error:
        raise InvalidSetting(
            f"--data {data} cannot be used: {error.filename}: {error.strerror}; name a directory "
            "in which this process may write"
        ) from error


def _check_names(names: set[str], data: Path) -> None:
    """Raises InvalidSetting for a directory that holds files of another program."""
    others = {name for name in names if name not in _OWN_NAMES and len(name) != _PREFIX_LENGTH}
    if (REGISTRY_FILE not in names and others) or META_PROPERTIES_FILE in names:
        raise InvalidSetting(
            f"--data {data} belongs to another program, it has {min(others)}: name a directory "
            "that is empty or does not exist"
        )


def serve(
    config: ShapeServerConfig, source: "Store | ClusterAddress", echo: Callable[[str], None]
) -> None:
    """Serves until a signal; raises the error that prevents a start."""
    began = time.monotonic()
    raise_open_file_limit()
    _adopt_uvicorn_log()
    feeds = make_feed_factory(
        source,
        config.topics,
        str(config.data / TABLES),
        fs=RealFileSystem(),
        clock=SystemClock(),
        beside=[str(path) for path in config.beside],
    )
    feeds.check_access()
    make_data_directory(config.data)
    opened = open_engine(str(config.data), feeds, config.engine, config.compaction)
    with opened as engine, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(config, engine, began, echo))
    logger.info("stopped")


def make_feed_factory(
    source: "Store | ClusterAddress",
    topics: Mapping[str, TopicOptions],
    directory: str,
    *,
    fs: FileSystem,
    clock: Clock,
    beside: Sequence[str] = (),
) -> FeedFactory:
    """`beside` are the log directories of the broker, where they are on this machine."""
    if not beside and all(options.snapshot is None for options in topics.values()):
        return FeedFactory(source, topics, directory, fs=fs, clock=clock)
    # Imported before there are threads: feeds that import pyarrow at once block each other.
    from varve.http.shapes.initial_rows import BrokerFileRows, open_snapshot_rows

    return FeedFactory(
        source,
        topics,
        directory,
        fs=fs,
        clock=clock,
        open_snapshot=partial(open_snapshot_rows, clock=clock),
        open_files=partial(BrokerFileRows, directories=beside) if beside else None,
    )


def _adopt_uvicorn_log() -> None:
    """Sends errors of the HTTP library to the log of varve.

    Its warnings, of bytes that are not a request, are counted instead: anybody may send them.
    """
    adopted = logging.getLogger("uvicorn")
    adopted.handlers = list(logging.getLogger("varve").handlers)
    adopted.propagate = False
    adopted.setLevel(logging.ERROR)


async def _run(
    config: ShapeServerConfig, engine: ShapeEngine, began: float, echo: Callable[[str], None]
) -> None:
    api = ShapeApi(
        engine,
        config.http,
        config.access,
        can_delete=config.can_delete,
        clock=SystemClock(),
        random=random.Random(),
    )
    server = HttpServer(api, host=config.host, port=config.port)
    stop = handle_stop_signals(asyncio.get_running_loop())
    await server.start()
    trimming = asyncio.ensure_future(trim_memory(api.admin_pool.run))
    try:
        _warn_if_open_to_all(config)
        shown = f"[{config.host}]" if ":" in config.host else config.host
        count = len(engine.shapes())
        echo(
            f"varve serves shapes at http://{shown}:{server.port}/v1/shape; "
            f"{count} shape{'' if count == 1 else 's'}; "
            f"started in {time.monotonic() - began:.2f} s"
        )
        for kernels in _KERNELS:
            # Kernels that were never compiled take long, and a stop comes first.
            if not stop.is_set():
                await api.admin_pool.run(kernels.warm)
        freeze_garbage_collection(GARBAGE_THRESHOLDS)
        await server.serve_until(stop)
        logger.info("stopping", extra={"waiting": api.waiters.count})
    finally:
        trimming.cancel()
        await server.stop()


def _warn_if_open_to_all(config: ShapeServerConfig) -> None:
    try:
        is_local = ipaddress.ip_address(config.host).is_loopback
    except ValueError:
        is_local = config.host == "localhost"
    if not is_local and config.access.token is None:
        logger.warning(
            "every client that reaches this address may read every topic: give --token or "
            "--definitions",
            extra={"listen": config.host},
        )
