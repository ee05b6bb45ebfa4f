"""`varve user`: who logs in to a broker by SCRAM."""

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from varve.cli.kafka_client import (
    BrokerAddress,
    ClientFile,
    ClientSettings,
    KafkaClient,
    admin_api,
    make_client,
)
from varve.cli.store_access import AsJson, named_directories
from varve.foundation.errors import InvalidRequest

PASSWORD_VARIABLE: Final = "VARVE_USER_PASSWORD"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Show, add and remove the SCRAM users of a broker, varve's or any Kafka.",
)

UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]


class Mechanism(StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


@app.command("list")
def list_users(
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    as_json: AsJson = False,
) -> None:
    """List the users with their mechanisms; nobody is told a password.

    \b
    Examples:
      varve user list --json
    """
    from varve.cli.log_output import print_rows

    client = make_client(broker, settings, file)
    client.check_may_describe("the users")
    asked: Any = client.admin().describe_user_scram_credentials()
    found = client.result(asked, "the users")
    rows = [
        [name, _mechanism_text(info.mechanism), info.iterations]
        for name, user in sorted(found.items())
        for info in user.scram_credential_infos
    ]
    print_rows(["user", "mechanism", "iterations"], rows, as_json=as_json)


@app.command()
def add(
    context: typer.Context,
    user: UserName,
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    mechanism: Annotated[Mechanism, typer.Option(help="How it logs in.")] = Mechanism.SHA_512,
    iterations: Annotated[
        int, typer.Option(min=4096, max=16_384, help="Work that a guess costs.")
    ] = 8192,
    directories: Annotated[
        list[Path],
        typer.Option(
            "--directory",
            "-d",
            path_type=str,
            callback=named_directories,
            metavar="DIR",
            help="A log directory that nobody serves now, instead of a broker; repeat it for "
            "every one of the store.",
        ),
    ] = [],  # noqa: B006, typer copies it
    as_json: AsJson = False,
) -> None:
    """Add a user, or give one another password.

    The first user of a broker at which everybody must log in is added to its directories, while
    it is stopped.

    The password is asked for on a terminal; else it is the first line of standard input, or
    VARVE_USER_PASSWORD.

    \b
    Examples:
      varve user add alice
      varve user add alice --mechanism SCRAM-SHA-256 < password.txt
      varve user add admin --directory data
    """
    if directories:
        source = context.get_parameter_source("broker")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter("--broker and --directory exclude each other")
        missing = [directory for directory in directories if not directory.exists()]
        _add_to_directories(directories, user, mechanism, iterations)
        for path in missing:
            typer.echo(f"made {path}, which was not there", err=True)
    else:
        client = make_client(broker, settings, file)
        _add_at_broker(client, user, mechanism, iterations)
    row = {"user": user, "mechanism": mechanism.value, "iterations": iterations}
    typer.echo(json.dumps(row) if as_json else f"{user} logs in by {mechanism}")


@app.command()
def remove(
    user: UserName,
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    mechanism: Annotated[Mechanism, typer.Option(help="Which login goes.")] = Mechanism.SHA_512,
    as_json: AsJson = False,
) -> None:
    """Remove a user's login by one mechanism; connections that are open stay.

    \b
    Examples:
      varve user remove alice
      varve user remove alice --mechanism SCRAM-SHA-256
    """
    api = admin_api()
    client = make_client(broker, settings, file)
    change = api.UserScramCredentialDeletion(user, _mechanism(mechanism))
    [asked] = client.admin().alter_user_scram_credentials([change]).values()
    client.result(asked, f"user {user}")
    row = {"user": user, "mechanism": mechanism.value}
    typer.echo(json.dumps(row) if as_json else f"{user} no longer logs in by {mechanism}")


def _add_at_broker(client: KafkaClient, user: str, mechanism: Mechanism, iterations: int) -> None:
    api = admin_api()
    password = _read_password(user)
    info = api.ScramCredentialInfo(_mechanism(mechanism), iterations)
    change = api.UserScramCredentialUpsertion(user, info, password.encode())
    [asked] = client.admin().alter_user_scram_credentials([change]).values()
    client.result(asked, f"user {user}")


def _add_to_directories(
    directories: list[Path], user: str, mechanism: Mechanism, iterations: int
) -> None:
    from varve.broker.security.credentials import add_credential
    from varve.disk import RealFileSystem
    from varve.foundation.scram import BY_SASL_NAME

    add_credential(
        [str(path) for path in directories],
        fs=RealFileSystem(),
        user=user,
        password=_read_password(user),
        mechanism=BY_SASL_NAME[mechanism.value],
        iterations=iterations,
    )


def _mechanism(mechanism: Mechanism) -> Any:
    return admin_api().ScramMechanism[mechanism.value.replace("-", "_")]


def _mechanism_text(mechanism: Any) -> str:
    return str(mechanism.name).replace("_", "-")


def _read_password(user: str) -> str:
    told = os.environ.get(PASSWORD_VARIABLE)
    if told is None and sys.stdin.isatty():
        told = typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True)
    elif told is None:
        told = sys.stdin.readline().rstrip("\r\n")
    if not told:
        raise InvalidRequest(
            f"no password for {user}: write it on standard input or set {PASSWORD_VARIABLE}"
        )
    return told
