"""How commands come to a store that is there: its directories, its topics, what recovery did."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import varve
from varve.foundation.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from varve.embedded import Store, Topic

DEFAULT_DIRECTORY = Path("varve-data")


def named_directories(paths: Sequence[Path] | None) -> list[Path]:
    """The callback of an option with `path_type=str`: as Path "" would be the current directory."""
    if "" in map(str, paths or ()):
        raise typer.BadParameter("the name of a directory is empty; is a variable not set?")
    return [Path(path) for path in paths or ()]


Directories = Annotated[
    list[Path],
    typer.Option(
        "--dir",
        "-d",
        path_type=str,
        callback=named_directories,
        envvar="VARVE_DIR",
        metavar="PATH",
        help="The store's log directory; repeat it for several.",
    ),
]
Wanted = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC[:PARTITION]", help="One topic, or one of its partitions."),
]
Directory = Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The store's log directory.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


def find_topic(
    store: "Store", name: str, remedy: str = "make it with `varve log create`"
) -> "Topic":
    """A topic by its name; the error names those there are."""
    try:
        return store.topic(name)
    except NotFound:
        known = ", ".join(topic.name for topic in store.topics()) or "none"
        raise NotFound(
            f"there is no topic {name!r:.260}; {remedy} (topics: {known:.200})"
        ) from None


def check_exist(directories: Sequence[Path]) -> None:
    """Raises NotFound where there is no store."""
    for path in directories:
        if not _is_store(path):
            raise NotFound(f"there is no log directory {path}{_tell_other(path)}")


def _tell_other(path: Path) -> str:
    """What stands there in place of a store, and what to do."""
    from varve.commit_log.check import find_partition

    if path.is_dir():
        partition = find_partition(os.path.abspath(path))
        if partition is not None and any(path.glob("*.log")):
            return (
                f": it is the directory of one partition; give the one around it, "
                f"{path.absolute().parent}, and name the partition as "
                f"{partition.topic}:{partition.partition} where a command takes one"
            )
        return ": the directory holds no topics; `varve log create` makes one"
    if path.exists():
        return ": it is a file; give the directory that holds the topics"
    if path == DEFAULT_DIRECTORY:
        return "; give one with --dir or VARVE_DIR, or make a topic with `varve log create`"
    return f"; give one that is there, or make a topic with `varve log create TOPIC --dir {path}`"


def _is_store(path: Path) -> bool:
    """Whether somebody has used the directory for logs: opening it would write to any other."""
    from varve.commit_log.names import META_PROPERTIES_FILE, parse_partition_directory

    if not path.is_dir():
        return False
    if (path / META_PROPERTIES_FILE).exists():
        return True
    names = [entry.name for entry in os.scandir(path) if entry.is_dir()]
    try:
        return bool([parse_partition_directory(name) for name in names])
    except Corrupt:
        return False


def open_existing(directories: Sequence[Path], **options: Any) -> "Store":
    """Opens a store that is there: looking must not make one."""
    check_exist(directories)
    store = varve.open(directories, **options)
    tell_recovery(store)
    return store


def tell_recovery(store: "Store") -> None:
    """What the open had to cut, drop or rebuild, on standard error."""
    for partition, messages in store.recovered.items():
        for message in messages:
            typer.secho(f"recovered {partition}: {message}", fg="yellow", err=True)


def tell_deleting(store: "Store") -> list[str]:
    """The topics whose deletion could not be finished, told on standard error."""
    names = store.deleting()
    for name in names:
        typer.secho(
            f"{name} is out of service and half deleted: `varve log delete {name}` goes on with "
            "it, as does any command that opens the store while its disks and object store answer",
            fg="yellow",
            err=True,
        )
    return names


def tell_failure(name: object, failure: str) -> None:
    """What went wrong with a partition or topic, on standard error, named once."""
    typer.secho(f"{name}: {failure.removeprefix(f'{name}: ')}", fg="red", err=True)


def parse_setting(text: str) -> tuple[str, str]:
    """A setting as it is written on the command line; raises BadParameter for what is none."""
    name, found, value = text.partition("=")
    if not found:
        raise typer.BadParameter(f"{text!r:.120} is no setting; write name=value")
    return name.strip(), value


def parse_wanted(text: str | None) -> tuple[str | None, int | None]:
    """A topic, and its partition if one is named."""
    if text is None:
        return None, None
    topic, found, number = text.partition(":")
    if not found:
        return topic, None
    if not re.fullmatch(r"[0-9]{1,10}", number):
        raise typer.BadParameter(f"{text!r}: {number!r} is no partition; write TOPIC:PARTITION")
    return topic, int(number)
