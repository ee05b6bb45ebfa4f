"""`varve shape serve`: shapes of topics, for apps, over HTTP."""

import gc
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from varve.cli.dedup_options import Broker, ClientFile, ClientSettings, Directories, make_place
from varve.cli.serve import Given
from varve.cli.store_access import parse_setting
from varve.foundation.errors import InvalidSetting
from varve.serving.log_output import LogFormat, LogLevel

if TYPE_CHECKING:
    from varve.shapes.feed.open_feed import TopicOptions

_TOKEN: Final = "VARVE_SHAPE_TOKEN"
_ADMIN_TOKEN: Final = "VARVE_SHAPE_ADMIN_TOKEN"

Data = Annotated[
    Path,
    typer.Option("--data", metavar="PATH", help="Where the shapes are kept; made if need be."),
]
Listen = Annotated[
    str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where apps connect to.")
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar=_TOKEN,
        metavar="TOKEN",
        help="What clients must send, as a bearer token or as `secret`; else all may read.",
        show_default=False,
    ),
]
AdminToken = Annotated[
    str | None,
    typer.Option(
        "--admin-token",
        envvar=_ADMIN_TOKEN,
        metavar="TOKEN",
        help="What list, show, compact, delete and metrics want instead.",
        show_default=False,
    ),
]
ShapesFile = Annotated[
    Path | None,
    typer.Option(
        "--shapes-file",
        metavar="FILE",
        help="JSON or TOML: the shapes that may be asked for, by name; else any.",
    ),
]
NoDelete = Annotated[bool, typer.Option("--no-delete", help="Nobody may delete a shape over HTTP.")]
KeyColumns = Annotated[
    list[str],
    typer.Option(
        "--key-column",
        metavar="TOPIC=NAME",
        help="The column of keys that are no JSON objects; at first `key`. Repeatable.",
    ),
]
Debezium = Annotated[
    list[str],
    typer.Option(
        "--debezium",
        metavar="TOPIC[=TRANSACTIONS]",
        help="A topic of change events as Debezium writes them, and that of its transactions "
        "if their changes are to be seen together. Repeatable.",
    ),
]
Snapshots = Annotated[
    list[str],
    typer.Option(
        "--snapshot",
        metavar="TOPIC=URL",
        help="A snapshot of `varve job snapshot` that a topic's rows begin with, in place of "
        "reading the topic. Repeatable.",
    ),
]
Beside = Annotated[
    list[Path],
    typer.Option(
        "--beside",
        metavar="PATH",
        exists=True,
        file_okay=False,
        help="With -b: a log directory of that broker on this machine; rows are then taken "
        "from its files at first, not from the broker. Repeatable.",
    ),
]


def command(
    directories: Directories = [],  # noqa: B006, typer reads it once
    broker: Broker = None,
    settings: ClientSettings = [],  # noqa: B006
    file: ClientFile = None,
    data: Data = Path("varve-shapes"),
    listen: Listen = "127.0.0.1:8080",
    token: Token = None,
    admin_token: AdminToken = None,
    shapes_file: ShapesFile = None,
    no_delete: NoDelete = False,
    key_columns: KeyColumns = [],  # noqa: B006
    debezium: Debezium = [],  # noqa: B006
    snapshots: Snapshots = [],  # noqa: B006
    beside: Beside = [],  # noqa: B006
    given: Given = [],  # noqa: B006
    log_format: Annotated[LogFormat, typer.Option(help="How the log looks.")] = LogFormat.TEXT,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged.")] = LogLevel.INFO,
) -> None:
    """Serve shapes of topics to apps over HTTP: a snapshot, then changes.

    Topics come from a broker, varve's or any Kafka, or from log directories that nobody else has
    open. Apps ask at http://HOST:PORT/v1/shape, for instance with the npm package
    @electric-sql/client; docs/shapes-http.md tells how. A stop by SIGTERM or Ctrl-C answers what
    was asked; a second one ends the process at once.

    \b
    Examples:
      varve shape serve -b localhost:9092 --data shapes
      varve shape serve --dir data --listen 0.0.0.0:8080 --token s3cret --shapes-file shapes.toml
      varve shape serve -b kafka:9092 --debezium db.public.orders=db.transaction
    """
    from varve.http.shapes.launch import check_data_directory, make_config, serve
    from varve.serving.log_output import set_up_logging

    # Imports make many objects and little garbage; it is switched on again when the server listens.
    gc.disable()
    try:
        for variable, found in ((_TOKEN, token), (_ADMIN_TOKEN, admin_token)):
            _check_variable(variable, found)
        if beside and broker is None:
            raise typer.BadParameter("--beside goes with --bootstrap-server")
        place = make_place(directories, broker, settings, file, data)
        config = make_config(
            listen=listen,
            data=data,
            token=token,
            admin_token=admin_token,
            shapes_file=shapes_file,
            can_delete=not no_delete,
            topics=parse_topics(key_columns, debezium, snapshots),
            beside=beside,
            settings=dict(map(parse_setting, given)),
        )
        check_data_directory(data, [*place.directories, *beside])
        set_up_logging(log_format, log_level)
        with place.open() as opened:
            serve(config, opened, typer.echo)
    finally:
        gc.enable()


def _check_variable(name: str, token: str | None) -> None:
    """Refuses an empty one, which counts as none: whoever set it wanted a token."""
    if token is None and os.environ.get(name) == "":
        raise InvalidSetting(f"{name} is empty: give it a value, or unset it to ask for no token")


def parse_topics(
    key_columns: Sequence[str], debezium: Sequence[str], snapshots: Sequence[str] = ()
) -> "dict[str, TopicOptions]":
    """The options of single topics; raises BadParameter."""
    from varve.shapes.feed.open_feed import TopicOptions

    topics: dict[str, TopicOptions] = {}

    def add(topic: str, **values: Any) -> None:
        topics[topic] = replace(topics.get(topic, TopicOptions()), **values)

    for topic, column in map(_parse_pair, key_columns):
        add(topic, key_column=column)
    for text in debezium:
        topic, has_more, transactions = text.partition("=")
        if not topic or (has_more and not transactions):
            raise typer.BadParameter(f"{text!r:.120} lacks one side; write TOPIC or TOPIC=...")
        add(topic, is_debezium=True, transactions=transactions or None)
    for topic, url in map(_parse_pair, snapshots):
        add(topic, snapshot=url)
    return topics


def _parse_pair(text: str) -> tuple[str, str]:
    topic, _, value = text.partition("=")
    if not topic or not value:
        raise typer.BadParameter(f"{text!r:.120} lacks one side; write TOPIC=...")
    return topic, value
