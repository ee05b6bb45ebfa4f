"""`varve shape tail`: the rows of a shape and what happens to them, line by line."""

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from varve.cli.shape_options import (
    DEFAULT_URL,
    Columns,
    IsChangesOnly,
    IsFull,
    Params,
    Table,
    Token,
    Url,
    Where,
    make_query,
)
from varve.foundation.errors import Unavailable

if TYPE_CHECKING:
    from varve.cli.shape_client import ShapeClient

_SIGNS: Final = {"insert": "+", "update": "~", "delete": "-"}
_RETRIES_MAX: Final = 10
_RETRY_S_MAX: Final = 10

Message = dict[str, Any]


class _Digits(str):
    """A number as it is written: reading it would lose digits, or refuse too many of them."""

    __slots__ = ()


def command(
    table: Table,
    where: Where = None,
    params: Params = [],  # noqa: B006, typer reads it once
    columns: Columns = None,
    full: IsFull = False,
    changes_only: IsChangesOnly = False,
    now: Annotated[
        bool, typer.Option("--now", help="Begin with what happens from now on.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="End when all that is there now was printed.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, metavar="COUNT", help="End after so many lines."),
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Each message as it came, control messages too.")
    ] = False,
) -> None:
    """Print the rows of a shape, then its changes as they happen, until Ctrl-C.

    A line has + for an insert, ~ for an update or - for a delete, the key, and the columns told.

    \b
    Examples:
      varve shape tail orders --once
      varve shape tail orders --where "status = 'open'" --now
    """
    from varve.cli.shape_client import ShapeClient

    query = make_query(table, where, params, columns, is_full=full, is_changes_only=changes_only)
    count = 0
    with ShapeClient(url, token) as client:
        for message in follow(client, query, start="now" if now else "-1", is_once=once):
            line = _show(message) if as_json else _line(message)
            if line is None:
                continue
            # ChunkEdge a character, which JSON may hold, is told by its number.
            typer.echo(line.encode(errors="backslashreplace").decode())
            count += 1
            if count == limit:
                return


def follow(
    client: "ShapeClient", query: dict[str, str], *, start: str, is_once: bool
) -> Iterator[Message]:
    """Messages in order; after a 409 those of the shape that took its place."""
    place = {"offset": start}
    failures = 0
    while True:
        try:
            reply = client.ask("GET", "/v1/shape", {**query, **place})
        except Unavailable as error:
            failures += 1
            if (failures == 1 and place["offset"] == start) or failures > _RETRIES_MAX:
                raise
            _tell_trouble(str(error), failures)
            time.sleep(min(_RETRY_S_MAX, 0.1 * 2**failures))  # noqa: TID251, a command may wait
            continue
        if reply.status == 409 and failures < _RETRIES_MAX:
            failures += 1
            typer.secho("the shape was dropped: beginning anew", fg="yellow", err=True)
            # The handle is for caches: without it they may have the rows of the shape before.
            place = {"offset": "-1", "handle": reply.headers.get("electric-handle", "")}
            continue
        if reply.status in (429, 503) and failures < _RETRIES_MAX:
            failures += 1
            _tell_trouble(reply.told, failures)
            time.sleep(_retry_seconds(reply.headers.get("retry-after", "")))  # noqa: TID251
            continue
        client.check(reply)
        failures = 0
        yield from json.loads(reply.body, parse_int=_Digits, parse_float=_Digits)
        place = {
            "offset": reply.headers["electric-offset"],
            "handle": reply.headers["electric-handle"],
        }
        if "electric-up-to-date" in reply.headers:
            if is_once:
                return
            place["live"] = "true"
            place["cursor"] = reply.headers.get("electric-cursor", "")


def _tell_trouble(text: str, failures: int) -> None:
    """Once, however often it is tried."""
    if failures == 1:
        typer.secho(f"{text}; trying again", fg="yellow", err=True)


def _retry_seconds(told: str) -> int:
    """As many as it says; a proxy may name a date instead."""
    is_number = told.isascii() and told.isdigit() and len(told) < 10
    return min(_RETRY_S_MAX, int(told)) if is_number else 1


def _line(message: Message) -> str | None:
    """A change for people; None for what is no change."""
    operation = message["headers"].get("operation")
    if operation is None:
        return None
    return f"{_SIGNS.get(operation, operation)} {message['key']} {_show(message.get('value'))}"


def _show(value: Any) -> str:
    """A value as JSON, its numbers as they came."""
    if isinstance(value, _Digits):
        return value
    if isinstance(value, dict):
        members = [f"{_show(name)}: {_show(one)}" for name, one in value.items()]
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_show, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
