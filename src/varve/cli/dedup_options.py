"""What the commands of `varve dedup` have in common: rules, and the way to a store or a server.

Invariant  a command works on a directory or through a server, never on both.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from varve.cli.kafka_client import (
    ClientFile,
    is_from_environment,
    mark_environment,
    read_client_file,
)
from varve.cli.store_access import DEFAULT_DIRECTORY, check_exist, open_existing, parse_setting
from varve.foundation.errors import InvalidRequest, InvalidSetting
from varve.foundation.units import parse_duration

if TYPE_CHECKING:
    from varve.dedup.rules import DedupRules
    from varve.embedded import Store
    from varve.kafka_client.address import ClusterAddress

DEFAULT_STATE: Final = Path("varve-dedup")
"""Where the ids of deduplications behind a server lie, unless told."""
_ALIASES: Final = {"sasl.mechanisms": "sasl.mechanism"}

Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="What its progress and its ids are kept under; at first the output's name.",
    ),
]
KnownName = Annotated[
    str, typer.Argument(metavar="NAME", help="The deduplication: its output, or its --name.")
]
By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="key|header:NAME|field:PATH",
        help="What copies have in common: the key, a header, or a field of JSON values.",
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="SPAN",
        help="How far apart in event time copies may be, either way: 10m, 1h30m, 7d. Both --before "
        "and --after may stand in its place.",
    ),
]
Before = Annotated[
    str | None,
    typer.Option("--before", metavar="SPAN", help="How far back, in place of --window."),
]
After = Annotated[
    str | None,
    typer.Option("--after", metavar="SPAN", help="How far ahead, in place of --window."),
]
Lateness = Annotated[
    str | None,
    typer.Option(
        "--lateness",
        metavar="SPAN",
        help="How far behind the newest record one may be and still be compared; at first the "
        "window.",
    ),
]
Refresh = Annotated[
    bool, typer.Option("--refresh", help="A duplicate begins the window of its id anew.")
]
Directories = Annotated[
    list[Path],
    typer.Option(
        "--dir",
        "-d",
        envvar="VARVE_DIR",
        callback=mark_environment,
        metavar="PATH",
        help="The log directory of the topics, which nobody else has open; repeatable.",
    ),
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "--broker",
        "-b",
        metavar="HOST:PORT",
        help="In place of --dir: where a broker listens, varve's or any Kafka.",
    ),
]
ClientSettings = Annotated[
    list[str],
    typer.Option(
        "-X",
        metavar="NAME=VALUE",
        help="A setting of the client by librdkafka's name, e.g. security.protocol=SASL_SSL; may "
        "be repeated.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="PATH",
        help="The directory of the ids; at first DIRECTORY.dedup, behind a broker varve-dedup. "
        "It may be lost: it is restored.",
    ),
]

__all__ = [
    "DEFAULT_STATE",
    "After",
    "Before",
    "Broker",
    "By",
    "ClientFile",
    "ClientSettings",
    "DedupPlace",
    "Directories",
    "KnownName",
    "Lateness",
    "Name",
    "Refresh",
    "State",
    "Window",
    "make_place",
    "make_rules",
]


@dataclass(frozen=True, slots=True)
class DedupPlace:
    """Where the topics are: log directories, or behind a server."""

    directories: tuple[Path, ...]
    address: "ClusterAddress | None"
    state: Path

    @contextlib.contextmanager
    def open(self) -> "Iterator[Store | ClusterAddress]":
        """The store, opened, or the server's address."""
        if self.address is not None:
            yield self.address
            return
        with open_existing(self.directories) as store:
            yield store


def make_place(
    directories: list[Path],
    broker: str | None,
    settings: list[str],
    file: Path | None,
    state: Path | None,
) -> DedupPlace:
    """Raises InvalidRequest where a directory and a broker are named."""
    from varve.dedup.processor import STATE_SUFFIX

    if broker is None:
        if settings or (file is not None and not is_from_environment(file)):
            raise InvalidRequest("-X and --client-config go with --bootstrap-server: name one")
        chosen = tuple(directories) or (DEFAULT_DIRECTORY,)
        check_exist(chosen)
        beside = Path(f"{chosen[0].absolute()}{STATE_SUFFIX}")
        return DedupPlace(chosen, None, state or beside)
    if directories and not is_from_environment(directories):
        raise InvalidRequest("give --dir or --bootstrap-server, not both")
    return DedupPlace((), _make_address(broker, settings, file), state or DEFAULT_STATE)


def _make_address(broker: str, settings: list[str], file: Path | None) -> "ClusterAddress":
    from varve.kafka_client.address import BOOTSTRAP, SERVER, SERVER_NAMES, parse_cluster_address

    client_file = read_client_file(file) if file else {}
    client_file.update(parse_setting(setting) for setting in settings)
    named = {_ALIASES.get(name, name): value for name, value in client_file.items()}
    # --bootstrap-server counts before what the file says.
    named.pop(SERVER, None)
    unknown = sorted(name for name in named if name not in SERVER_NAMES)
    if unknown:
        raise InvalidSetting(
            f"{', '.join(unknown)} is nothing that this client knows: {', '.join(SERVER_NAMES)}"
        )
    address = parse_cluster_address({**named, BOOTSTRAP: broker})
    assert address is not None
    return address


def make_rules(
    by: str,
    window: str | None,
    before: str | None,
    after: str | None,
    lateness: str | None,
    *,
    refresh: bool,
    late: str = "forward",
    null: str = "forward",
    max_future: str = "1h",
) -> "tuple[DedupRules, str | None]":
    """The rules, and the topic for what goes aside."""
    from varve.dedup.rules import (
        DedupRules,
        NullPolicy,
        parse_id_source,
        parse_late_policy,
    )

    if null not in list(NullPolicy):
        raise InvalidRequest(f"--null {null!r:.80} is no policy: write forward or drop")
    policy, side = parse_late_policy(late)
    before_ms, after_ms = _parse_sides(window, before, after)
    window_ms = (
        max(before_ms, after_ms) if window is None else parse_duration(window, name="--window")
    )
    rules = DedupRules(
        by=parse_id_source(by),
        before_ms=before_ms,
        after_ms=after_ms,
        lateness_ms=window_ms if lateness is None else parse_duration(lateness, name="--lateness"),
        late=policy,
        future=policy,
        missing=policy,
        null=NullPolicy(null),
        is_refreshing=refresh,
        max_future_ms=parse_duration(max_future, name="--max-future"),
    )
    return rules, side


def _parse_sides(window: str | None, before: str | None, after: str | None) -> tuple[int, int]:
    """How far a window reaches back and ahead."""
    if window is None and (before is None or after is None):
        raise InvalidRequest("--window is missing: give it, or both --before and --after")
    sides = (("--before", before), ("--after", after))
    before_ms, after_ms = (
        parse_duration(window or "", name="--window")
        if given is None
        else parse_duration(given, name=name)
        for name, given in sides
    )
    return before_ms, after_ms
