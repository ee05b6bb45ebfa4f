"""What all commands of `varve job` take: where the cold tier is, and which Spark does the work."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from varve.cli.store_access import parse_setting
from varve.cli.tier_access import find_url, split_settings
from varve.disk import RealFileSystem
from varve.embedded.tier_location import read_location
from varve.foundation.errors import InvalidRequest

if TYPE_CHECKING:
    from varve.jobs.tier.bucket import Bucket

_SHIP_VARIABLE: Final = "VARVE_SPARK_SHIP"

LogDirectory = Annotated[
    str | None,
    typer.Option(
        "--dir",
        "-d",
        envvar="VARVE_DIR",
        metavar="PATH",
        help="The log directory whose cold tier is meant, in place of --store.",
    ),
]
LogDirectories = Annotated[
    list[Path],
    typer.Option(
        "--dir",
        "-d",
        envvar="VARVE_DIR",
        metavar="PATH",
        help="A log directory of the topic, and the cold tier that it uses; repeatable for a store "
        "on several disks. No server may have it open.",
    ),
]
ReadDirectories = Annotated[
    list[Path],
    typer.Option(
        "--dir",
        "-d",
        envvar="VARVE_DIR",
        metavar="PATH",
        help="A log directory of the topic, read beside the cold tier that it uses; repeatable for "
        "a store on several disks. A server may have it open.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        envvar="VARVE_SPARK_MASTER",
        metavar="URL",
        help="The Spark cluster, such as spark://host:7077 or yarn, or a server of Spark Connect, "
        "sc://host:15002; left out it is this machine, local[*].",
    ),
]
Conf = Annotated[
    list[str],
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="A setting of Spark's, such as spark.driver.memory=4g; repeatable. varve.ship=PATH "
        "gives executors an archive of `varve job ship`, as VARVE_SPARK_SHIP does.",
    ),
]
ReportPath = Annotated[
    str | None,
    typer.Option(
        "--report",
        metavar="PATH",
        help="Write what the job did to this file as JSON: its result, its steps and stages with "
        "rows, bytes and time; `varve job report` shows it.",
    ),
]


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Which Spark, and what it is told."""

    master: str | None
    conf: dict[str, str]


def spark_options(master: str | None, conf: list[str]) -> SparkOptions:
    """As they were given; raises BadParameter for what is no setting."""
    given = dict(parse_setting(text) for text in conf)
    shipped = os.environ.get(_SHIP_VARIABLE)
    if shipped and not (master or "").startswith("sc://"):  # there the server has been told
        given.setdefault("varve.ship", shipped)
    return SparkOptions(master, given)


def find_address(
    url: str, settings: list[str], directory: str | None, cluster: str | None
) -> "Bucket":
    """Where the cold tier is, as a job takes it; raises InvalidRequest where nothing tells."""
    from varve.jobs.tier.bucket import Bucket

    setting = split_settings(settings)[0]
    return Bucket(_absolute(find_url(url, directory)), tuple(setting.items()), cluster)


def full_paths(directories: Sequence[Path]) -> tuple[str, ...]:
    """Log directories as executors find them, each once."""
    return tuple(dict.fromkeys(os.path.abspath(path) for path in directories))


def find_tier(
    url: str, settings: list[str], directories: Sequence[str], cluster: str | None
) -> "Bucket | None":
    """The cold tier that is given or that a directory uses; None where the directories have none.

    Raises InvalidRequest where nothing is given, or a directory that does not exist.
    """
    for directory in directories:
        if not os.path.isdir(directory):
            raise InvalidRequest(f"log directory {directory} does not exist")
    fs = RealFileSystem()
    telling = next((one for one in directories if read_location(fs, one) is not None), None)
    if directories and not url and telling is None:
        return None
    return find_address(url, settings, telling, cluster)


def _absolute(url: str) -> str:
    """Executors need not stand where this process does."""
    scheme, found, path = url.partition(":")
    if scheme == "file" and found and not path.startswith("/"):
        return f"file:{os.path.abspath(path)}"
    return url
