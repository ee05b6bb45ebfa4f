"""Where the topics of a command are: log directories, a broker, or an object store.

Invariant  a value on the command line beats an environment variable, and that beats a file. Reading
           never creates a directory or a store.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from varve.foundation.errors import Corrupt, InvalidRequest, InvalidSetting, NotFound

if TYPE_CHECKING:
    from varve.brokers.client import BrokerClient
    from varve.cli.options import TopicPartitionName
    from varve.cli.output import Output
    from varve.commit_log import TopicPartition
    from varve.embedded import Store, Topic
    from varve.embedded.tier_location import TierLocation
    from varve.kafka_client.address import ClusterAddress
    from varve.object_store import ObjectStore

DEFAULT_DIRECTORY: Final = Path("varve-data")
DEFAULT_BOOTSTRAP: Final = "localhost:9092"

_ADDRESS: Final = re.compile(
    r"(?:(?:SASL_)?(?:PLAINTEXT|SSL)://)?(?:\[[^]]+\]|[^:/\s]+)(?::(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE,
)
"""An address as librdkafka takes it: HOST:PORT, after a security protocol or alone."""

_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class Where:
    """Where the topics of a command are: log directories, or else the broker of these settings."""

    directories: tuple[Path, ...]
    client_settings: dict[str, str] = field(default_factory=dict)
    store_settings: dict[str, str] = field(default_factory=dict)

    @property
    def is_broker(self) -> bool:
        return not self.directories

    def client(self) -> "BrokerClient":
        """A client of the broker; nothing is sent yet."""
        from varve.brokers.client import BOOTSTRAP_SETTING, BrokerClient

        settings = dict(self.client_settings)
        return BrokerClient(settings.pop(BOOTSTRAP_SETTING), settings)

    def open_store(self, *, settings: Mapping[str, Any] | None = None, **options: Any) -> "Store":
        """The store of the directories, which must exist."""
        settings = {**self.tier_settings(), **(settings or {})}
        return open_existing(self.directories, settings=settings, **options)

    @contextlib.contextmanager
    def open_topics(self, *, maintain: bool = True) -> "Iterator[Store | ClusterAddress]":
        """The opened store, or the address of the broker, as `varve.topics` takes them."""
        if self.is_broker:
            yield self.cluster_address()
            return
        with self.open_store(maintain=maintain) as store:
            yield store

    def cluster_address(self) -> "ClusterAddress":
        """The broker for varve's own client, which knows fewer settings than librdkafka."""
        from varve.kafka_client.address import SERVER_NAMES

        unknown = sorted(self.client_settings.keys() - {*SERVER_NAMES, "sasl.mechanisms"})
        if unknown:
            raise InvalidSetting(
                f"client setting {', '.join(unknown)} is not supported here; supported are "
                f"{', '.join(SERVER_NAMES)}"
            )
        return self.client().cluster_address()

    def tier_settings(self) -> dict[str, Any]:
        """The settings of the object store and of its mirror, as a store takes them."""
        from varve.embedded.store_settings import (
            MIRROR_STORE_PREFIX,
            TIER_STORE_PREFIX,
            split_store_settings,
        )

        first, mirror = split_store_settings(self.store_settings)
        return {
            **{f"{TIER_STORE_PREFIX}{name}": value for name, value in first.items()},
            **{f"{MIRROR_STORE_PREFIX}{name}": value for name, value in mirror.items()},
        }

    def first_store_settings(self) -> dict[str, str]:
        """The settings of the object store, without those of its mirror."""
        from varve.embedded.store_settings import split_store_settings

        return split_store_settings(self.store_settings)[0]

    def paths(self) -> list[str]:
        """Absolute paths of the directories, which must be directories."""
        for directory in self.directories:
            if not directory.is_dir():
                raise NotFound(
                    f"there is no log directory {directory}; name an existing one with --dir"
                )
        # A relative path may lack the name of the directory or of its parent.
        return [os.path.abspath(directory) for directory in self.directories]

    def tier_location(self) -> "TierLocation | None":
        """The remote tier that the directories remember."""
        from varve.disk import RealFileSystem
        from varve.embedded.tier_location import recall_location

        return recall_location(RealFileSystem(), list(map(os.fspath, self.directories)))


@dataclass(frozen=True, slots=True)
class TierWhere(Where):
    """Log directories whose remote tier is meant, or an object store alone."""

    store_url: str = ""
    mirror_url: str = ""
    cluster: str | None = None

    def __post_init__(self) -> None:
        from varve.object_store.opening import check_url

        for url in filter(None, (self.store_url, self.mirror_url)):
            check_url(url)

    def tier_settings(self) -> dict[str, Any]:
        from varve.object_store.opening import normal_url

        urls = {"varve.tier.url": self.store_url, "varve.tier.mirror.url": self.mirror_url}
        named = {name: normal_url(url) for name, url in urls.items() if url}
        return {**named, **super(TierWhere, self).tier_settings()}

    def find_store_url(self) -> str:
        """The URL that is given, or the one that the directories remember.

        Raises InvalidRequest without one, or when the objects are not described in the store.
        """
        from varve.embedded.tier_location import check_object_manifests

        if self.store_url:
            return self.store_url
        location = self.tier_location() if self.directories else None
        if location is not None:
            check_object_manifests(location, str(self.directories[0]))
            return location.url
        if self.directories:
            raise InvalidRequest(
                f"{self.directories[0]} has no remote tier yet; name its object store with --store"
            )
        raise InvalidRequest("name the object store with --store, or a log directory with --dir")

    def open_objects(self) -> "ObjectStore":
        """The object store, with retries; a directory that does not exist is not created."""
        from varve.object_store import RetryingObjectStore, open_object_store

        url, settings = self.find_store_url(), self.first_store_settings()
        return RetryingObjectStore(open_object_store(url, settings, must_exist=True))


# Opening a store


def find_topic(store: "Store", name: str, remedy: str = "") -> "Topic":
    """A topic by its name; raises NotFound, which lists the topics."""
    from varve.foundation.topic_records import list_topics

    try:
        return store.topic(name)
    except NotFound:
        names = [topic.name for topic in store.topics()]
        known = list_topics(name, names) if names else " (`varve topic create` creates a topic)"
        hint = f"; {remedy}" if remedy else ""
        raise NotFound(f"there is no topic {name!r:.260}{hint}{known}") from None


def select_partitions(
    store: "Store", chosen: "TopicPartitionName | None"
) -> "list[TopicPartition]":
    """The partitions that a command is for; raises NotFound, which lists the topics."""
    topic, partition = chosen or (None, None)
    if topic is not None:
        find_topic(store, topic)
    return store.partitions(topic, partition)


def check_exist(directories: Sequence[Path]) -> None:
    """Raises NotFound where there is no store."""
    for path in directories:
        if not _is_store(path):
            raise NotFound(_explain_missing(path))


def check_no_files(directories: Sequence[Path]) -> None:
    """Raises InvalidRequest for a path that is a file and no directory."""
    for path in directories:
        if path.exists() and not path.is_dir():
            raise InvalidRequest(f"{path} is a file; name a log directory with --dir")


def _explain_missing(path: Path) -> str:
    """What is there instead of a store, and what to do."""
    from varve.commit_log.check import find_partition

    if path.is_dir():
        partition = find_partition(os.path.abspath(path))
        if partition is not None and any(path.glob("*.log")):
            return (
                f"{path} is not a log directory: it is the directory of one partition; name "
                "its parent, "
                f"{path.absolute().parent}, and the partition as "
                f"{partition.topic}:{partition.partition}"
            )
        return (
            f"{path} is not a log directory: it holds no topics; name another, or create a topic "
            f"with `varve topic create TOPIC --dir {path}`"
        )
    if path.exists():
        return f"{path} is not a log directory: it is a file; name the directory of the topics"
    missing = f"there is no log directory {path}"
    if path == DEFAULT_DIRECTORY:
        return (
            f"{missing}; name one with --dir or VARVE_DIR, or create a topic with `varve "
            "topic create`"
        )
    return (
        f"{missing}; name one that exists, or create a topic with "
        f"`varve topic create TOPIC --dir {path}`"
    )


def _is_store(path: Path) -> bool:
    """Whether the directory has been used for logs: opening writes to any other one."""
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
    """Open a store that exists: reading must not create one."""
    import varve

    check_exist(directories)
    store = varve.open(directories, **options)
    warn_of_recovery(store)
    return store


def note_unnamed_tier(output: "Output", where: Where, topic: "Topic") -> None:
    """Says of a topic that waits for its first copy how to name the object store."""
    from varve.disk import RealFileSystem
    from varve.embedded.tier_location import awaits_location

    if topic.settings.copies_to_tier and awaits_location(RealFileSystem(), where.directories):
        output.note(
            f"{topic.name} is not copied to object storage yet: `varve tier copy "
            f"-d {where.directories[0]} --store URL` sets its location"
        )


def warn_of_recovery(store: "Store") -> None:
    """What the open had to cut, drop or rebuild, on standard error."""
    for partition, messages in store.recovered.items():
        for message in messages:
            click.secho(f"recovered {partition}: {message}", fg="yellow", err=True)


def warn_of_deletions(store: "Store") -> list[str]:
    """The topics whose deletion could not be finished; each is reported on standard error."""
    names = store.deleting()
    for name in names:
        click.secho(
            f"{name} is partly deleted and out of service: `varve topic delete {name}` finishes "
            "it, as does opening the store while its disks and object store respond",
            fg="yellow",
            err=True,
        )
    return names


# Values of the options


def _default_directories(directories: tuple[Path, ...]) -> tuple[Path, ...]:
    if directories:
        return directories
    if DEFAULT_DIRECTORY.is_dir():
        return (DEFAULT_DIRECTORY,)
    raise click.UsageError(
        f"name a log directory with --dir or VARVE_DIR; the default, ./{DEFAULT_DIRECTORY}, does "
        "not exist"
    )


def build_directory(dir: tuple[Path, ...], store_settings: dict[str, str]) -> Where:
    return Where(_default_directories(dir), store_settings=store_settings)


def build_unless_paths(dir: tuple[Path, ...], store_settings: dict[str, str]) -> Where:
    """Paths on the command line replace directories that --dir does not name there."""
    has_paths = bool(click.get_current_context().params["paths"])
    if has_paths and not is_explicit("dir"):
        return Where((), store_settings=store_settings)
    return build_directory(dir, store_settings)


def build_tier(
    dir: tuple[Path, ...],
    store_url: str,
    store_settings: dict[str, str],
    mirror_url: str = "",
    cluster: str | None = None,
) -> TierWhere:
    directories = _default_directories(dir)
    return TierWhere(
        directories,
        store_settings=store_settings,
        store_url=choose_store_url(directories, store_url),
        mirror_url=mirror_url,
        cluster=cluster,
    )


def choose_store_url(directories: tuple[Path, ...], store_url: str) -> str:
    """An explicit --store beats the store of the directories, and that beats a variable."""
    is_chosen = not store_url or is_explicit("store_url")
    return store_url if is_chosen or Where(directories).tier_location() is None else ""


def build_bucket(
    dir: tuple[Path, ...],
    store_url: str,
    store_settings: dict[str, str],
    cluster: str | None,
) -> TierWhere:
    is_url_explicit = is_explicit("store_url")
    if is_url_explicit and is_explicit("dir"):
        raise click.UsageError("--store names an object store, --dir the one of a log directory")
    if not dir and not store_url:
        dir = _default_directories(dir)
    directories = () if is_url_explicit else dir
    store_url = choose_store_url(directories, store_url)
    return TierWhere(
        directories, store_settings=store_settings, store_url=store_url, cluster=cluster
    )


def build_where(
    bootstrap: str | None,
    client_settings: dict[str, str],
    command_config: Path | None,
    dir: tuple[Path, ...] = (),
    store_settings: dict[str, str] | None = None,
) -> Where:
    is_broker_explicit = any(map(is_explicit, ("bootstrap", "client_settings", "command_config")))
    is_dir_explicit = bool(dir) and is_explicit("dir")
    if is_dir_explicit and is_broker_explicit:
        raise click.UsageError(
            "--dir names log directories; --bootstrap, -X and --command-config name a broker: "
            "leave one of them out"
        )
    if dir and bootstrap and not is_dir_explicit and not is_broker_explicit:
        raise click.UsageError(
            "VARVE_DIR and VARVE_BOOTSTRAP are both set; choose with --dir or --bootstrap"
        )
    if dir and not is_broker_explicit:
        return Where(dir, store_settings=store_settings or {})
    return Where((), _client_settings_by_rank(bootstrap, client_settings, command_config))


def is_explicit(name: str) -> bool:
    """Whether an option is on the command line, not in a variable."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _check_address(address: str) -> None:
    """Raises UsageError unless it is HOST or HOST:PORT, once or several times."""
    for part in address.split(","):
        found = _ADDRESS.fullmatch(part.strip())
        if found is None or int(found["port"] or 0) > _PORT_MAX:
            raise click.UsageError(
                f"{address!r:.120} is not the address of a broker: write HOST:PORT"
            )


def _client_settings_by_rank(
    bootstrap: str | None, settings: dict[str, str], config_file: Path | None
) -> dict[str, str]:
    """All client settings; the command line beats the environment, and that the file.

    The address in this order: -b, -X, a file that --command-config names, VARVE_BOOTSTRAP, the
    file that VARVE_COMMAND_CONFIG names.
    """
    from varve.brokers.client import BOOTSTRAP_SETTING, canonical_settings, read_client_file

    in_file = canonical_settings(read_client_file(config_file)) if config_file else {}
    in_options = canonical_settings(settings)
    from_option = in_options.get(BOOTSTRAP_SETTING)
    from_file = in_file.get(BOOTSTRAP_SETTING)
    if is_explicit("bootstrap"):
        if from_option not in (None, bootstrap):
            raise click.UsageError(
                f"--bootstrap is {bootstrap}, -X {BOOTSTRAP_SETTING} is {from_option}: leave one "
                "of them out"
            )
        ranked = [bootstrap]
    elif is_explicit("command_config"):
        ranked = [from_option, from_file, bootstrap]
    else:
        ranked = [from_option, bootstrap, from_file]
    address = next((address for address in ranked if address), DEFAULT_BOOTSTRAP)
    _check_address(address)
    return {**in_file, **in_options, BOOTSTRAP_SETTING: address}
