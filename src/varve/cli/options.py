"""Every option that several commands take, declared once.

A short flag has one meaning in all commands.
"""

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

from varve.cli.command import COMMON_SECTION, SharedOption
from varve.cli.output import Output
from varve.cli.where import (
    DEFAULT_BOOTSTRAP,
    build_bucket,
    build_directory,
    build_tier,
    build_unless_paths,
    build_where,
)
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest, StoreError
from varve.foundation.position import END, PositionKind, ReadPosition, parse_position
from varve.foundation.settings import expand_unit
from varve.foundation.units import parse_duration, parse_size, parse_time

_ANSWER_SECONDS: Final = 1.0
"""Longest wait for a broker while the shell completes a name."""

WHERE_SECTION: Final = "Location"

Function = TypeVar("Function", bound=Callable[..., Any])


# Values


class TopicPartitionName(NamedTuple):
    """`TOPIC` or `TOPIC:PARTITION`."""

    topic: str
    partition: int | None


class Number(click.ParamType[Any]):
    """A whole number within limits."""

    name = "N"

    def __init__(self, min: int, max: int | None = None) -> None:
        self.min = min
        self.max = max

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = int(value) if re.fullmatch(r"-?[0-9]{1,19}", str(value)) else None
        if number is None or number < self.min or (self.max is not None and number > self.max):
            limits = f"from {self.min}" + ("" if self.max is None else f" to {self.max}")
            self.fail(f"{str(value)!r:.40} is not a whole number {limits}", param, ctx)
        return number


class ParsedType(click.ParamType[Any]):
    """Text that a function of varve's parses; its errors become errors of usage."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except InvalidRequest as error:
            self.fail(str(error).strip(), param, ctx)


def parse_topic_partition(text: str) -> TopicPartitionName:
    topic, colon, number = text.partition(":")
    if not colon:
        return TopicPartitionName(topic, None)
    if not re.fullmatch(r"[0-9]{1,10}", number):
        raise InvalidRequest(
            f"{text!r:.280}: {number!r:.40} is not a partition; write TOPIC:PARTITION"
        )
    return TopicPartitionName(topic, int(number))


def parse_pair(text: str) -> tuple[str, str]:
    """`name=value`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InvalidRequest(f"{text!r:.120} is not a setting; write NAME=VALUE")
    return name.strip(), value


def parse_setting(text: str) -> tuple[str, str]:
    """`name=value`; durations and sizes may have units: `retention.ms=7d`."""
    name, value = parse_pair(text)
    return name, expand_unit(name, value.strip())


def parse_positions(text: str) -> ReadPosition | Mapping[int, int]:
    """A position of all partitions, or the offset of each: `{"0": 5, "1": 7}`."""
    if not text.lstrip().startswith("{"):
        return parse_position(text, SystemClock())
    from varve.jobs.data_source_options import parse_by_partition

    try:
        offsets = parse_by_partition(text)
    except (ValueError, AttributeError) as error:
        raise InvalidRequest(
            f"{text!r:.120} is not a table of offsets by partition: {error}"
        ) from None
    assert not isinstance(offsets, int)
    return offsets


def _parse_point_in_time(text: str) -> int:
    """Milliseconds since 1970 of a position that is a time."""
    try:
        position = parse_position(text, SystemClock())
    except InvalidRequest:
        position = END
    if position.kind is not PositionKind.TIME:
        raise InvalidRequest(
            f"{text!r:.80} is not a time: write a time such as 2026-03-01T12:00:00 (UTC), "
            "@milliseconds, or a duration ago such as -10m"
        )
    return position.number


def _parse_directory(text: str) -> Path:
    if not text:
        raise InvalidRequest("the directory name is empty; is a variable unset?")
    return Path(text)


_PAIR: Final = ParsedType("NAME=VALUE", parse_pair)
SETTING: Final = ParsedType("NAME=VALUE", parse_setting)
POSITION: Final = ParsedType("POS", lambda text: parse_position(text, SystemClock()))
POINT_IN_TIME: Final = ParsedType("TIME", _parse_point_in_time)
POSITIONS: Final = ParsedType("POS", parse_positions)
TOPIC_PARTITION: Final = ParsedType("TOPIC[:PARTITION]", parse_topic_partition)
DURATION: Final = ParsedType("DURATION", lambda text: parse_duration(text, name=""))
SIZE: Final = ParsedType("SIZE", lambda text: parse_size(text, name=""))
TIME: Final = ParsedType("TIME", lambda text: parse_time(text, name=""))


class _Directory(ParsedType):
    """The shell completes names of directories."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="dir")]


class _DirectoryList(_Directory):
    """Directories of a variable are separated as in PATH."""

    envvar_list_splitter = os.pathsep


def _to_dictionary(
    context: click.Context, parameter: click.Parameter, pairs: Iterable[tuple[str, str]]
) -> dict[str, str]:
    return dict(pairs)


PAIRS: Final[Any] = {"multiple": True, "type": _PAIR, "callback": _to_dictionary}
"""What makes an option one of `NAME=VALUE…`, as a dictionary."""

DIRECTORY: Final = _Directory("DIR", _parse_directory)
DIRECTORIES: Final = _DirectoryList("DIR", _parse_directory)


# Options that become one argument of the command


def bundle(
    argument: str, build: Callable[..., Any], *options: Callable[[Callable[..., Any]], Any]
) -> Callable[[Function], Function]:
    """Options whose values `build` takes by their names and makes into one argument."""

    def declare(function: Callable[..., Any]) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    names = [parameter.name for parameter in declare(lambda: None).__click_params__]

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(**values: Any) -> Any:
            own = {name: values.pop(name) for name in names}
            return function(**{argument: build(**own)}, **values)

        return declare(call)  # type: ignore[no-any-return]  # click's decorators keep the type open

    return decorate


Decorator = Callable[[Function], Function]


def number(
    *spellings: str, min: int = 0, max: int | None = None, **settings: Any
) -> Decorator[Any]:
    """An option whose value is a whole number within limits."""
    return click.option(*spellings, type=Number(min, max), **settings)


def duration(*spellings: str, **settings: Any) -> Decorator[Any]:
    """An option whose value is a duration, as 10m, in milliseconds."""
    return click.option(*spellings, type=DURATION, **settings)


def size(*spellings: str, **settings: Any) -> Decorator[Any]:
    """An option whose value is a size, as 64MiB, in bytes."""
    return click.option(*spellings, type=SIZE, **settings)


def shared(section: str, *spellings: str, **settings: Any) -> Decorator[Any]:
    return click.option(*spellings, cls=SharedOption, section=section, **settings)


def dir_option(help: str) -> Decorator[Any]:
    return shared(
        WHERE_SECTION, "-d", "--dir", multiple=True, type=DIRECTORIES, envvar="VARVE_DIR", help=help
    )


_dir = dir_option("A log directory that no server has open; repeat it for several disks.")
_bootstrap = shared(
    WHERE_SECTION,
    "-b",
    "--bootstrap",
    envvar="VARVE_BOOTSTRAP",
    metavar="HOST:PORT",
    help=f"A broker, varve's or any Kafka; default {DEFAULT_BOOTSTRAP}.",
)
_client_settings = shared(
    WHERE_SECTION,
    "-X",
    "client_settings",
    **PAIRS,
    help="A client setting of librdkafka, such as security.protocol=SASL_SSL.",
)
_command_config = shared(
    WHERE_SECTION,
    "--command-config",
    envvar="VARVE_COMMAND_CONFIG",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file of client settings, a NAME=VALUE per line; for passwords.",
)

store_settings_option = shared(
    WHERE_SECTION,
    "--store-set",
    "store_settings",
    **PAIRS,
    envvar="VARVE_TIER_SETTINGS",
    help="A setting of the object store: region=eu-west-1, mirror.region=...",
)
store_url_option = shared(
    WHERE_SECTION,
    "--store",
    "store_url",
    envvar="VARVE_TIER_URL",
    default="",
    show_default=False,
    metavar="URL",
    help="file:/path, s3://..., gs://... or az://...; default DIR's, or DIR.cold.",
)
mirror_url_option = shared(
    WHERE_SECTION,
    "--mirror",
    "mirror_url",
    envvar="VARVE_TIER_MIRROR_URL",
    default="",
    show_default=False,
    metavar="URL",
    help="The object store that mirrors the first; default the one of DIR.",
)
cluster_option = shared(
    WHERE_SECTION, "--cluster", metavar="ID", help="The cluster, if the object store has several."
)

where = bundle(
    "where",
    build_where,
    _dir,
    store_settings_option,
    _bootstrap,
    _client_settings,
    _command_config,
)
"""`-d DIR…` or `-b HOST:PORT`."""

directory = bundle("where", build_directory, _dir, store_settings_option)
"""`-d DIR…`, for commands that only a directory can do."""

directory_unless_paths = bundle("where", build_unless_paths, _dir, store_settings_option)
"""`-d DIR…`, for a command whose argument `paths` may take its place."""


tier = bundle("where", build_tier, _dir, store_url_option, store_settings_option)
"""`-d DIR… --store URL`: a directory with a remote tier."""

mirrored_tier = bundle(
    "where", build_tier, _dir, store_url_option, mirror_url_option, store_settings_option
)
"""`-d DIR… --store URL --mirror URL`."""

restored_tier = bundle(
    "where", build_tier, _dir, store_url_option, cluster_option, store_settings_option
)
"""`-d DIR --store URL --cluster ID`: an object store, and a directory to restore into."""

bucket = bundle(
    "where", build_bucket, _dir, store_url_option, cluster_option, store_settings_option
)
"""`-d DIR…` or `--store URL --cluster ID`, for commands that read the object store alone."""

broker = bundle(
    "where",
    build_where,
    _bootstrap,
    _client_settings,
    _command_config,
)
"""`-b HOST:PORT`, for commands that only a broker can do."""

_json = shared(
    COMMON_SECTION, "--json", "is_json", is_flag=True, help="Print JSON lines with a `type`."
)
_quiet = shared(COMMON_SECTION, "-q", "--quiet", "is_quiet", is_flag=True, help="Print no notes.")

output = bundle("output", lambda is_json: Output(is_json=is_json), _json)
"""`--json`."""

quiet_output = bundle(
    "output",
    lambda is_json, is_quiet: Output(is_json=is_json, is_quiet=is_quiet),
    _json,
    _quiet,
)
"""`--json` and `--quiet`."""


def logging(function: Function) -> Function:
    """`--log-format` and `--log-level`, for servers."""
    format = click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="The format of the log.",
    )
    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        help="The lowest level that is logged.",
    )
    return format(level(function))


def list_rules(load: Callable[[], Mapping[str, str]]) -> Decorator[Any]:
    """`--list-rules`: print the rules that a command checks, and exit."""

    def print_rules(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
        if is_given:
            rules = load()
            width = max(map(len, rules))
            for rule, sentence in rules.items():
                click.echo(f"{rule:{width}}  {sentence}")
            context.exit()

    return click.option(
        "--list-rules",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_rules,
        help="List the rules that are checked, and exit.",
    )


yes = shared(
    COMMON_SECTION, "-y", "--yes", is_flag=True, help="Do not ask before a destructive step."
)
dry_run = shared(
    COMMON_SECTION, "--dry-run", is_flag=True, help="Show what would happen and change nothing."
)


def settings(help: str) -> Decorator[Any]:
    """`--set NAME=VALUE`, as a dictionary."""
    return click.option(
        "-s", "--set", "settings", multiple=True, type=SETTING, callback=_to_dictionary, help=help
    )


# Shell completion: it never fails, and waits at most a moment; without an answer it offers nothing


def complete_topics(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Topics of the directory or broker that the command line names so far."""
    directories = [Path(directory) for directory in context.params.get("dir") or ()]
    try:
        names = (
            _topics_in(directories)
            if directories
            else _admin(context.params).list_topics(timeout=_ANSWER_SECONDS).topics
        )
    except Exception:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def complete_groups(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    try:
        future = _admin(context.params).list_consumer_groups(request_timeout=_ANSWER_SECONDS)
        names = [group.group_id for group in future.result(timeout=_ANSWER_SECONDS).valid]
    except Exception:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


def _topics_in(directories: list[Path]) -> set[str]:
    from varve.disk import RealFileSystem
    from varve.embedded.topic_table import TOPICS_FILE, decode_topics

    names: set[str] = set()
    for directory in directories:
        path = f"{directory}/{TOPICS_FILE}"
        try:
            names |= decode_topics(RealFileSystem().read(path), path).topics.keys()
        except (StoreError, OSError):
            continue
    return names


def _admin(parameters: Mapping[str, Any]) -> Any:
    from confluent_kafka.admin import AdminClient

    from varve.brokers.client import BOOTSTRAP_SETTING, DEFAULT_BOOTSTRAP, read_client_file

    file = parameters.get("command_config")
    settings = {
        **(read_client_file(file) if file else {}),
        **(parameters.get("client_settings") or {}),
    }
    address = parameters.get("bootstrap") or settings.get(BOOTSTRAP_SETTING) or DEFAULT_BOOTSTRAP
    return AdminClient({**settings, BOOTSTRAP_SETTING: address, "log_level": 0})


# Arguments, and the partition


partition = number("-p", "--partition", help="Only this partition.")
topic = click.argument("topic", metavar="TOPIC", shell_complete=complete_topics)
topic_partition = click.argument(
    "topic_partition",
    metavar="TOPIC[:PARTITION]",
    type=TOPIC_PARTITION,
    shell_complete=complete_topics,
)
optional_topic_partition = click.argument(
    "topic_partition",
    metavar="[TOPIC[:PARTITION]]",
    type=TOPIC_PARTITION,
    required=False,
    shell_complete=complete_topics,
)
topics = click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics
)
group = click.argument("group", metavar="GROUP", shell_complete=complete_groups)
