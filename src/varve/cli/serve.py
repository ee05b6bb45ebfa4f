"""`varve serve`: a broker for Kafka clients."""

import gc
import logging
import os
from pathlib import Path

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.where import DEFAULT_DIRECTORY, check_no_files
from varve.foundation.settings import SettingText


@command(
    "varve serve -d data --listen 0.0.0.0:9092 --advertise broker.example:9092",
    "varve serve --config server.properties --metrics-port 9404",
)
@options.dir_option("A log directory; default log.dirs of the settings, or varve-data.")
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Settings in the form of Kafka's server.properties.",
)
@options.settings("A setting; docs/reference/configuration.md lists them.")
@click.option(
    "-l",
    "--listen",
    multiple=True,
    metavar="[NAME://]HOST:PORT",
    help="Listen here, instead of the setting listeners.",
)
@click.option(
    "--advertise",
    multiple=True,
    metavar="[NAME://]HOST:PORT",
    help="The address for clients, instead of advertised.listeners.",
)
@options.number(
    "--metrics-port",
    min=0,
    max=65_535,
    metavar="PORT",
    help="Serve /metrics, /health and /ready on this port.",
)
@options.logging
def serve(
    dir: tuple[Path, ...],
    config: Path | None,
    settings: dict[str, str],
    listen: tuple[str, ...],
    advertise: tuple[str, ...],
    metrics_port: int | None,
    log_format: str,
    log_level: str,
) -> None:
    """Serve log directories to Kafka clients.

    Options beat variables such as VARVE_LISTENERS (dots become underscores), and those beat the
    file. SIGTERM or Ctrl-C answers requests in flight and stops; a second one stops at once.
    """
    settings = {name: SettingText(value, "--set") for name, value in settings.items()}
    if listen:
        settings["listeners"] = SettingText(",".join(map(_with_protocol, listen)), "--listen")
    if advertise:
        addresses = ",".join(map(_with_protocol, advertise))
        settings["advertised.listeners"] = SettingText(addresses, "--advertise")
    if metrics_port is not None:
        settings["varve.http.port"] = str(metrics_port)
    # Imports create many objects and little garbage; the server enables it again when it listens.
    gc.disable()
    try:
        _serve([str(path) for path in dir], config, settings, log_format, log_level)
    finally:
        gc.enable()


def _with_protocol(address: str) -> str:
    return address if "://" in address else f"PLAINTEXT://{address}"


def _serve(
    directories: list[str],
    file: Path | None,
    from_options: dict[str, str],
    log_format: str,
    log_level: str,
) -> None:
    from varve.kafka_server.config import make_config, read_environment, read_properties_file
    from varve.kafka_server.launch import serve
    from varve.serving.process import LogFormat, LogLevel, set_up_logging

    settings = {} if file is None else read_properties_file(file)
    from_environment, warnings = read_environment(os.environ)
    settings |= from_environment
    settings |= from_options
    check_no_files([Path(path) for path in directories])
    config = make_config(settings, directories, default_directory=str(DEFAULT_DIRECTORY))
    set_up_logging(LogFormat(log_format), LogLevel(log_level))
    for warning in (*warnings, *config.warnings):
        logging.getLogger(__name__).warning(warning)
    serve(config, click.echo)
