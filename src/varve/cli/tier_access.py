"""How the commands of the cold tier come to an object store and to what it holds."""

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from varve.cli.store_access import parse_setting
from varve.commit_log import LogSettings
from varve.disk import FileSystem, RealFileSystem
from varve.embedded.store_settings import MIRROR_STORE_PREFIX, TIER_STORE_PREFIX
from varve.embedded.tier_location import DEFAULT_METADATA, TierLocation, read_location
from varve.embedded.topic_table import TOPICS_FILE, decode_topics, find_lost_settings
from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import GivenValue, parse_settings

if TYPE_CHECKING:
    from varve.object_store import ObjectStore, PriceTable
    from varve.tiering.manifest.paths import RemotePath
    from varve.tiering.manifest.store import ObjectManifestStore

_MIRROR: Final = "mirror."
"""Before the name of a setting that is the mirror's."""

TierUrl = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="VARVE_TIER_URL",
        metavar="URL",
        help="The object store: file:/path, s3://bucket/prefix, gs://... or az://...; left out it "
        "is the one that the log directory uses, at first DIRECTORY.cold.",
    ),
]
StoreSettings = Annotated[
    list[str],
    typer.Option(
        "--store-setting",
        envvar="VARVE_TIER_SETTINGS",
        metavar="NAME=VALUE",
        help="A setting of the object store, such as endpoint=http://localhost:9000; repeatable. "
        "One of the store that mirrors it begins with mirror., as in mirror.region=eu-west-1. The "
        "variable VARVE_TIER_SETTINGS has several separated by spaces.",
    ),
]
MirrorUrl = Annotated[
    str,
    typer.Option(
        "--mirror",
        envvar="VARVE_TIER_MIRROR_URL",
        metavar="URL",
        help="The object store that mirrors the first; left out it is the one that the log "
        "directory uses, at first none.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="ID", help="The cluster; may be left out where there is only one."
    ),
]


def tier_settings(url: str, settings: list[str], mirror_url: str = "") -> dict[str, GivenValue]:
    """The settings of a store that tell where its cold tier is."""
    urls = {"varve.tier.url": url, "varve.tier.mirror.url": mirror_url}
    given: dict[str, GivenValue] = {name: value for name, value in urls.items() if value}
    for prefix, part in zip(
        (TIER_STORE_PREFIX, MIRROR_STORE_PREFIX), split_settings(settings), strict=True
    ):
        given |= {f"{prefix}{name}": value for name, value in part.items()}
    return given


def split_settings(settings: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """What is given for the object store, and for the one that mirrors it."""
    first: dict[str, str] = {}
    second: dict[str, str] = {}
    for text in settings:
        name, value = parse_setting(text)
        if name.startswith(_MIRROR):
            second[name.removeprefix(_MIRROR)] = value
        else:
            first[name] = value
    return first, second


def find_url(url: str, directory: str | None) -> str:
    """The store that is given, or that a log directory remembers; raises InvalidRequest."""
    if url:
        return url
    if directory is not None:
        fs = RealFileSystem()
        if not fs.exists(directory):
            raise InvalidRequest(
                f"log directory {directory} does not exist: correct the path, or give --store"
            )
        place = read_location(fs, directory)
        if place is not None:
            check_manifests_beside(place, directory)
            return place.url
        raise InvalidRequest(
            f"{directory} does not tell which object store its cold tier is in: give --store"
        )
    raise InvalidRequest("give the object store with --store, or the log directory with --dir")


def check_manifests_beside(place: TierLocation, directory: str) -> None:
    """Raises InvalidRequest where the store alone does not tell what is in it."""
    if place.metadata != DEFAULT_METADATA:
        raise InvalidRequest(
            f"the cold tier of {directory} keeps its manifests as "
            f"varve.tier.metadata={place.metadata} says, not beside the objects: this command "
            "reads the object store alone, and cannot tell what the objects are"
        )


def find_tiered(fs: FileSystem, directory: str) -> set[str]:
    """The topics of a log directory that are in the cold tier, without opening it."""
    path = f"{directory}/{TOPICS_FILE}"
    table = decode_topics(fs.read(path), path).topics if fs.exists(path) else {}
    enabled = {
        name
        for name, entry in table.items()
        if parse_settings(LogSettings, entry.settings, f"topic {name}").remote_storage_enable
    }
    return enabled | find_lost_settings(fs, [directory], table)


def is_place_open(directories: Sequence[Path]) -> bool:
    """Whether topics wait for a first copy, and the place of the cold tier is still to be named.

    Nothing is to be copied meanwhile: what is copied first decides where the tier is.
    """
    fs = RealFileSystem()
    paths = [str(path) for path in directories if path.is_dir()]
    if any(read_location(fs, path) is not None for path in paths):
        return False
    return any(find_tiered(fs, path) for path in paths)


def open_tier(url: str, settings: list[str]) -> "ObjectStore":
    """The store behind a URL, with failed requests repeated; a missing directory is not made."""
    from varve.object_store import RetryingObjectStore, open_object_store

    objects = open_object_store(url, split_settings(settings)[0], must_exist=True)
    return RetryingObjectStore(objects)


def open_manifests(objects: "ObjectStore", home: "RemotePath") -> "ObjectManifestStore":
    from varve.tiering.manifest.store import ObjectManifestStore

    return ObjectManifestStore(objects, home, random=random.Random(), wait=wait_ms)


def wait_ms(milliseconds: float) -> None:
    threading.Event().wait(milliseconds / 1000)


def show_cost(stored_bytes: int, prices: "PriceTable") -> str:
    """What so many bytes cost in a month."""
    cost = prices.stored_cost_per_month(stored_bytes)
    return f"{prices.currency} {'<0.01' if 0 < cost < 0.01 else f'{cost:,.2f}'}"
