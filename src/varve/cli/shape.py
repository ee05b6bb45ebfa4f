"""`varve shape`: filtered views of topics for applications, over HTTP."""

import gc
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Output
from varve.cli.shape_client import Digits, ShapeClient, shape_path
from varve.cli.where import Where
from varve.foundation.errors import InvalidSetting

if TYPE_CHECKING:
    from varve.shapes.opening import TopicOptions

_TOKEN: Final = "VARVE_SHAPE_TOKEN"
_ADMIN_TOKEN: Final = "VARVE_SHAPE_ADMIN_TOKEN"
_COLUMNS: Final = ("handle", "topic", "snapshot", "replica", "log", "columns", "where")
_SIGNS: Final = {"insert": "+", "update": "~", "delete": "-"}

_handle = click.argument("handle", metavar="HANDLE")
_server = options.bundle(
    "client",
    ShapeClient,
    click.option(
        "-u",
        "--url",
        envvar="VARVE_SHAPE_URL",
        default="http://127.0.0.1:8080",
        metavar="URL",
        help="The shape server.",
    ),
    click.option(
        "--token",
        envvar=_TOKEN,
        metavar="TOKEN",
        help="The server's token; for list, show, compact and delete its admin token.",
    ),
)


def _build_query(
    table: str,
    where_sql: str | None,
    params: tuple[str, ...],
    columns: str | None,
    replica: str,
    changes_only: bool,
) -> dict[str, str]:
    """The request parameters that define a shape."""
    query = {"table": table}
    if where_sql is not None:
        query["where"] = where_sql
    query.update({f"params[{number}]": value for number, value in enumerate(params, 1)})
    if columns is not None:
        query["columns"] = columns
    if replica == "full":
        query["replica"] = "full"
    if changes_only:
        query["log"] = "changes_only"
    return query


_shape = options.bundle(
    "query",
    _build_query,
    click.argument("table", metavar="TOPIC"),
    click.option("--where", "where_sql", metavar="SQL", help='A condition, such as "a > 5".'),
    click.option(
        "--param", "params", multiple=True, metavar="VALUE", help="The values of $1, $2, …"
    ),
    click.option("--columns", metavar="A,B", help="Only these columns."),
    click.option(
        "--replica",
        type=click.Choice(["default", "full"]),
        default="default",
        help="full: updates have the whole row and its old values.",
    ),
    click.option("--changes-only", is_flag=True, help="No snapshot, only later changes."),
)


# The server


@command(
    "varve shape serve -b localhost:9092 --data shapes",
    "varve shape serve -d data --listen 0.0.0.0:8080 --definitions shapes.toml",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("varve-shapes"),
    metavar="DIR",
    help="The directory of the shapes; created if it does not exist.",
)
@click.option(
    "-l",
    "--listen",
    default="127.0.0.1:8080",
    metavar="HOST:PORT",
    help="The address for applications.",
)
@click.option("--token", envvar=_TOKEN, metavar="TOKEN", help="Clients must send it; default none.")
@click.option(
    "--admin-token",
    envvar=_ADMIN_TOKEN,
    metavar="TOKEN",
    help="For list, show, compact, delete and metrics instead.",
)
@click.option(
    "--definitions",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="JSON or TOML: the only shapes that clients may request, by name.",
)
@click.option("--no-delete", is_flag=True, help="Clients may not delete shapes.")
@click.option(
    "--key-column",
    "key_columns",
    multiple=True,
    metavar="TOPIC=NAME",
    help="The column of keys that are not JSON objects; default key.",
)
@click.option(
    "--debezium",
    multiple=True,
    metavar="TOPIC[=TRANSACTIONS]",
    help="A topic of Debezium change events, and its transaction topic.",
)
@click.option(
    "--snapshot",
    "snapshots",
    multiple=True,
    metavar="TOPIC=URL",
    help="Start a topic's rows from this snapshot of `varve job snapshot`.",
)
@click.option(
    "--broker-dir",
    "broker_directories",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="With --bootstrap: that broker's log directory on this machine, read at the start.",
)
@options.settings("A setting; docs/reference/configuration.md lists them.")
@options.logging
@options.where
def shape_serve(
    where: Where,
    data: Path,
    listen: str,
    token: str | None,
    admin_token: str | None,
    definitions: Path | None,
    no_delete: bool,
    key_columns: tuple[str, ...],
    debezium: tuple[str, ...],
    snapshots: tuple[str, ...],
    broker_directories: tuple[Path, ...],
    settings: dict[str, str],
    log_format: str,
    log_level: str,
) -> None:
    """Serve shapes of topics to applications: a snapshot, then changes.

    Applications read http://HOST:PORT/v1/shape, for example with the npm package
    @electric-sql/client. SIGTERM or Ctrl-C answers requests in flight and stops; a second one
    stops at once.
    """
    from varve.http.shapes.launch import check_data_directory, make_config, serve
    from varve.serving.process import LogFormat, LogLevel, set_up_logging

    # Imports create many objects and little garbage; the server enables it again when it listens.
    gc.disable()
    try:
        _check_variable(_TOKEN, token)
        _check_variable(_ADMIN_TOKEN, admin_token)
        if broker_directories and not where.is_broker:
            raise click.UsageError("--broker-dir needs --bootstrap")
        config = make_config(
            listen=listen,
            data=data,
            token=token,
            admin_token=admin_token,
            shapes_file=definitions,
            can_delete=not no_delete,
            topics=parse_topics(key_columns, debezium, snapshots),
            beside=broker_directories,
            settings=settings,
        )
        check_data_directory(data, [*where.directories, *broker_directories])
        set_up_logging(LogFormat(log_format), LogLevel(log_level))
        with where.open_topics() as source:
            serve(config, source, click.echo)
    finally:
        gc.enable()


def _check_variable(name: str, token: str | None) -> None:
    """Refuses an empty variable, which click ignores: whoever set it wanted a token."""
    if token is None and os.environ.get(name) == "":
        raise InvalidSetting(f"{name} is empty: give it a value, or unset it to require no token")


def parse_topics(
    key_columns: Sequence[str], debezium: Sequence[str], snapshots: Sequence[str] = ()
) -> "dict[str, TopicOptions]":
    """The options of single topics."""
    from varve.shapes.opening import TopicOptions

    topics: dict[str, TopicOptions] = {}

    def add(topic: str, **values: Any) -> None:
        topics[topic] = replace(topics.get(topic, TopicOptions()), **values)

    for text in key_columns:
        topic, column = _parse_pair("--key-column", text, "TOPIC=NAME")
        add(topic, key_column=column)
    for text in debezium:
        topic, equals, transactions = text.partition("=")
        if not topic or (equals and not transactions):
            raise click.BadParameter(
                f"{text!r:.120} lacks one side; write TOPIC or TOPIC=TRANSACTIONS",
                param_hint="'--debezium'",
            )
        add(topic, is_debezium=True, transactions=transactions or None)
    for text in snapshots:
        topic, url = _parse_pair("--snapshot", text, "TOPIC=URL")
        add(topic, snapshot=url)
    return topics


def _parse_pair(option: str, text: str, form: str) -> tuple[str, str]:
    topic, _, value = text.partition("=")
    if not topic or not value:
        raise click.BadParameter(
            f"{text!r:.120} lacks one side; write {form}", param_hint=f"'{option}'"
        )
    return topic, value


# Its clients


@command(
    "varve shape create orders",
    "varve shape create orders --where 'tenant = $1' --param acme --columns id,status",
)
@_shape
@_server
@options.output
def shape_create(query: dict[str, str], client: ShapeClient, output: Output) -> None:
    """Create a shape before its first client, and print its handle.

    A client creates the shape it requests; the first one waits for the snapshot.
    """
    with client:
        reply = client.check(client.ask("GET", "/v1/shape", {**query, "offset": "now"}))
    handle = reply.headers["electric-handle"]
    offset = reply.headers["electric-offset"]
    output.print_result(handle, "shape", handle=handle, offset=offset)


@command("varve shape list", "varve shape list orders --json")
@click.argument("table", metavar="[TOPIC]", required=False)
@_server
@options.output
def shape_list(table: str | None, client: ShapeClient, output: Output) -> None:
    """List the shapes of a server, or of one topic."""
    with client:
        shapes = client.list_shapes(table)
    if output.is_json:
        for shape in shapes:
            output.print_object("shape", shape)
    elif not shapes:
        output.note("no shapes")
    else:
        output.print_table("shape", _COLUMNS, [_row(shape) for shape in shapes])


def _row(shape: dict[str, Any]) -> list[str]:
    columns = "all" if shape["columns"] is None else ", ".join(shape["columns"])
    cells = [shape[name] for name in ("table", "snapshot", "replica", "log")]
    return [shape["handle"], *cells, columns, shape["where"] or ""]


@command(
    "varve shape show 48203311-1760000000000000",
    "varve shape show 48203311-1760000000000000 --json",
)
@_handle
@_server
@options.output
def shape_show(handle: str, client: ShapeClient, output: Output) -> None:
    """Show the definition and the state of a shape."""
    with client:
        shape = client.get(shape_path(handle))
    if output.is_json:
        output.print_object("shape", shape)
    else:
        output.print_fields(
            "shape",
            {
                name: value if isinstance(value, str) else json.dumps(value)
                for name, value in shape.items()
                if value is not None
            },
        )


@command(
    "varve shape compact 48203311-1760000000000000",
    "varve shape compact 48203311-1760000000000000 --json",
)
@_handle
@_server
@options.output
def shape_compact(handle: str, client: ShapeClient, output: Output) -> None:
    """Compact the log of a shape now.

    The server compacts by itself. Handle and offsets stay, so that clients notice nothing. If most
    of the remaining log is about deleted keys, the shape is dropped and clients start again.
    """
    with client:
        report = client.check(client.ask("POST", shape_path(handle, "compact"))).json()
    output.print_result(_describe_compaction(report), "compaction", **report)


def _describe_compaction(report: dict[str, Any]) -> str:
    from varve.foundation.units import format_bytes
    from varve.shapes.compaction.compactor import CompactionOutcome

    balance = report["balance"]
    if report["outcome"] == CompactionOutcome.NOTHING:
        return f"nothing to compact: the log of {report['handle']} is empty or compacted already"
    dropped = "; the shape was dropped, because a new snapshot is smaller"
    return (
        f"compacted {report['handle']} up to {report['boundary']}: {balance['entries_out']:,} of "
        f"{balance['entries_in']:,} entries remain, {format_bytes(balance['bytes_in'])} became "
        f"{format_bytes(balance['bytes_out'])}; {balance['merged']:,} were merged into later "
        f"updates, {balance['superseded']:,} were superseded"
        f"{dropped if report['is_dropped'] else ''}"
    )


@command(
    "varve shape delete 48203311-1760000000000000",
    "varve shape delete 48203311-1760000000000000 --yes",
)
@_handle
@options.yes
@_server
@options.output
def shape_delete(handle: str, client: ShapeClient, output: Output, yes: bool) -> None:
    """Delete a shape and its files; the topic stays.

    Clients that follow it start again, with a new shape.
    """
    output.confirm(f"delete the shape {handle}", is_confirmed=yes)
    with client:
        client.check(client.ask("DELETE", "/v1/shape", {"handle": handle}))
    output.print_result(f"deleted {handle}", "shape", handle=handle)


@command(
    "varve shape tail orders --once",
    "varve shape tail orders --where \"status = 'open'\" --from now",
)
@_shape
@click.option(
    "--from",
    "start",
    type=click.Choice(["beginning", "now"]),
    default="beginning",
    help="now: only changes from now on.",
)
@click.option("--once", is_flag=True, help="Exit when all present rows and changes are printed.")
@options.number("-n", "--limit", min=1, help="Exit after this many lines.")
@_server
@options.output
def shape_tail(
    query: dict[str, str],
    client: ShapeClient,
    output: Output,
    start: str,
    once: bool,
    limit: int | None,
) -> None:
    """Print the rows of a shape, then its changes, until Ctrl-C.

    A line has + for an insert, ~ for an update or - for a delete, the key, and the columns sent.
    """
    count = 0
    offset = "now" if start == "now" else "-1"
    with client:
        for message in client.follow(query, start=offset, is_once=once, warn=output.warn):
            line = _format_message(message, is_json=output.is_json)
            if line is None:
                continue
            # JSON may have half a character; it is printed by its number.
            click.echo(line.encode(errors="backslashreplace").decode())
            count += 1
            if count == limit:
                return
    if not count and "where" in query:
        output.note("no row matches --where; a column that no row has matches nothing")


def _format_message(message: dict[str, Any], *, is_json: bool) -> str | None:
    """A change; None for a control message, except with JSON."""
    operation = message["headers"].get("operation")
    if is_json:
        kind = "control" if operation is None else "change"
        return _format_value({"type": kind, **message})
    if operation is None:
        return None
    value = _format_value(message.get("value"))
    return f"{_SIGNS.get(operation, operation)} {message['key']} {value}"


def _format_value(value: Any) -> str:
    """A value as JSON, its numbers as the server wrote them."""
    if isinstance(value, Digits):
        return value
    if isinstance(value, dict):
        members = [f"{_format_value(name)}: {_format_value(item)}" for name, item in value.items()]
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
