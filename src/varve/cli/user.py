"""`varve user`: the SCRAM users of a broker."""

import os
import sys
from pathlib import Path
from typing import Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Output
from varve.cli.where import Where
from varve.foundation.errors import InvalidRequest

PASSWORD_VARIABLE: Final = "VARVE_USER_PASSWORD"

_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")

_user = click.argument("user", metavar="USER")
_mechanism = click.option(
    "--mechanism",
    type=click.Choice(_MECHANISMS, case_sensitive=False),
    default=_MECHANISMS[1],
    help="The SASL mechanism of the login.",
)


@command(examples=("varve user list", "varve user list -b kafka:9092 --json"))
@options.broker
@options.output
def list_users(where: Where, output: Output) -> None:
    """List SCRAM users with their mechanisms."""
    from varve.brokers.users import list_users

    output.print_table("user", ["user", "mechanism", "iterations"], list_users(where.client()))


@command(
    examples=(
        "varve user add alice --mechanism SCRAM-SHA-256 < password.txt",
        "varve user add admin -d data",
    )
)
@_user
@_mechanism
@click.option(
    "--iterations",
    type=options.Number(4096, 16_384),
    default=8192,
    help="SCRAM iterations; more make guessing the password slower.",
)
@options.where
@options.output
def add(user: str, where: Where, output: Output, mechanism: str, iterations: int) -> None:
    """Add a user, or replace its password.

    The password is read from the terminal, else from the first line of standard input or from
    VARVE_USER_PASSWORD. Add the first user of a broker that requires a login with --dir, while the
    broker is stopped.
    """
    if where.is_broker:
        from varve.brokers.users import add_user

        add_user(
            where.client(),
            user,
            password=_read_password(user),
            mechanism=mechanism,
            iterations=iterations,
        )
    else:
        _add_to_directories(where.directories, output, user, mechanism, iterations)
    output.print_result(
        f"{user} logs in with {mechanism}",
        "user",
        user=user,
        mechanism=mechanism,
        iterations=iterations,
    )


def _add_to_directories(
    directories: tuple[Path, ...], output: Output, user: str, mechanism: str, iterations: int
) -> None:
    from varve.broker.security.credentials import add_credential
    from varve.disk import RealFileSystem
    from varve.foundation.scram import BY_SASL_NAME

    missing = [path for path in directories if not path.exists()]
    add_credential(
        [str(path) for path in directories],
        fs=RealFileSystem(),
        user=user,
        password=_read_password(user),
        mechanism=BY_SASL_NAME[mechanism],
        iterations=iterations,
    )
    for path in missing:
        output.note(f"created {path}, which did not exist")


def _read_password(user: str) -> str:
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None and sys.stdin.isatty():
        password = click.prompt(
            f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True
        )
    elif password is None:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidRequest(
            f"no password for {user}: write it on standard input or set {PASSWORD_VARIABLE}"
        )
    return str(password)


@command(
    examples=("varve user delete alice", "varve user delete alice --mechanism SCRAM-SHA-256 --yes")
)
@_user
@_mechanism
@options.yes
@options.broker
@options.output
def delete(user: str, where: Where, output: Output, mechanism: str, yes: bool) -> None:
    """Delete a user's login with one mechanism; open connections stay."""
    from varve.brokers.users import delete_user

    client = where.client()
    output.confirm(f"delete the {mechanism} login of {user}", is_confirmed=yes)
    delete_user(client, user, mechanism=mechanism)
    output.print_result(
        f"{user} no longer logs in with {mechanism}", "user", user=user, mechanism=mechanism
    )
