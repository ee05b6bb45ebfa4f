"""`varve serve`: a broker for any client of Kafka."""

import gc
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from varve.cli.store_access import DEFAULT_DIRECTORY, named_directories, parse_setting
from varve.serving.log_output import LogFormat, LogLevel

Directories = Annotated[
    list[Path] | None,
    typer.Argument(
        path_type=str,
        callback=named_directories,
        metavar="[DIR]...",
        envvar="VARVE_DIR",
        help="Log directories; without any log.dirs counts, or else varve-data.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="Settings as in Kafka's server.properties."
    ),
]
Given = Annotated[
    list[str],
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="A setting; may be repeated."),
]
Listen = Annotated[
    list[str],
    typer.Option(
        "--listen",
        "-l",
        metavar="[NAME://]HOST:PORT",
        help="Where to listen, instead of listeners; may be repeated.",
    ),
]
Advertise = Annotated[
    list[str],
    typer.Option(
        "--advertise",
        metavar="[NAME://]HOST:PORT",
        help="What clients are told to connect to, instead of advertised.listeners.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        help="Serve /metrics, /health and /ready there, over HTTP.",
        show_default=False,
    ),
]


def command(
    directories: Directories = None,
    config: Config = None,
    given: Given = [],  # noqa: B006, typer reads it once
    listen: Listen = [],  # noqa: B006
    advertise: Advertise = [],  # noqa: B006
    metrics_port: MetricsPort = None,
    log_format: Annotated[LogFormat, typer.Option(help="How the log looks.")] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged.")] = LogLevel.INFO,
) -> None:
    """Serve log directories to clients of Kafka.

    Settings come from the file, then from variables such as VARVE_LISTENERS (dots are underscores),
    then from options; the last one counts. Names are Kafka's: docs/configuration.md. A stop by
    SIGTERM or Ctrl-C answers what was asked; a second one ends the process at once.

    \b
    Examples:
      varve serve data
      varve serve --config server.properties --metrics-port 9404
      varve serve data --listen 0.0.0.0:9092 --advertise broker.example:9092
    """
    # Imports make many objects and little garbage; the server switches it on again when it listens.
    gc.disable()
    try:
        _serve(
            [str(path) for path in directories or []],
            config,
            _from_options(given, listen, advertise, metrics_port),
            log_format,
            log_level,
        )
    finally:
        gc.enable()


def _serve(
    directories: list[str],
    file: Path | None,
    options: dict[str, str],
    log_format: LogFormat,
    log_level: LogLevel,
) -> None:
    from varve.kafka_server.config import make_config, read_environment, read_properties_file
    from varve.kafka_server.launch import serve
    from varve.serving.log_output import set_up_logging

    settings = {} if file is None else read_properties_file(file)
    from_environment, warnings = read_environment(os.environ)
    settings |= from_environment
    settings |= options
    config = make_config(settings, directories, default_directory=str(DEFAULT_DIRECTORY))
    set_up_logging(log_format, log_level)
    for warning in (*warnings, *config.warnings):
        logging.getLogger(__name__).warning(warning)
    serve(config, typer.echo)


def _from_options(
    given: list[str], listen: list[str], advertise: list[str], metrics_port: int | None
) -> dict[str, str]:
    settings = dict(map(parse_setting, given))
    if listen:
        settings["listeners"] = ",".join(map(_named, listen))
    if advertise:
        settings["advertised.listeners"] = ",".join(map(_named, advertise))
    if metrics_port is not None:
        settings["varve.http.port"] = str(metrics_port)
    return settings


def _named(address: str) -> str:
    return address if "://" in address else f"PLAINTEXT://{address}"
