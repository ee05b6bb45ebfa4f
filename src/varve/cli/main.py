"""The `varve` command: its table of commands, and how every failure becomes a message and a code.

A command's module is imported when the command is used, so that `varve --help` need not wait for
what the commands need. A module has either `command`, a function annotated for typer, or `app`, a
`typer.Typer` with commands of its own.

Exit codes  0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the reader of the output left.
"""

import importlib
import io
import logging
import os
import sys
from typing import Annotated, Any, NamedTuple

import typer
import typer.core
import typer.main

from varve.foundation.errors import Corrupt, StoreError

FAILED = 1
INTERRUPTED = 130
READER_LEFT = 141

_PACKAGE = "varve.cli"
_REMEDIES = ("varve check", "put it back from a copy", "correct the registry")
_HINT = "; `varve check` on the directory tells what is broken and what can be mended"


class _Entry(NamedTuple):
    module: str
    summary: str


COMMANDS = {
    "serve": _Entry("serve", "Serve log directories to any client of Kafka."),
    "topic": _Entry("topic", "Make, show and change the topics of a broker, varve's or any Kafka."),
    "produce": _Entry("produce", "Write lines or files to a topic of a broker."),
    "consume": _Entry("consume", "Print the records of a topic of a broker."),
    "group": _Entry("group", "Show and move the consumer groups of a broker."),
    "acl": _Entry("acl", "Show, grant and withdraw rights at a broker."),
    "user": _Entry("kafka_user", "Show, add and remove the SCRAM users of a broker."),
    "log": _Entry("log", "Append to topics of a directory and read them from the shell."),
    "dump": _Entry("dump", "Show what the files of a log directory hold."),
    "check": _Entry("check", "Walk every invariant of a log directory; mend what can be mended."),
    "get": _Entry("get", "Print the latest value of a key."),
    "clean": _Entry("clean", "Compact and expire now what the policies of topics let go."),
    "explain": _Entry("explain", "Tell why a record or a segment is still here, and until when."),
    "forecast": _Entry("forecast", "Show what policies will delete and free, and when."),
    "metrics": _Entry("metrics", "Print the metrics of a log directory for Prometheus."),
    "audit": _Entry("audit", "Show every removal on record, and hold it against the disk."),
    "tier": _Entry("tier", "Copy segments to object storage, and account for what is there."),
    "dedup": _Entry("dedup", "Copy topics without their duplicates, exactly once."),
    "shape": _Entry("shape", "Serve filtered views of topics to apps over HTTP."),
    "job": _Entry("job", "Query and rework the cold tier on Spark, here or on a cluster."),
    "demo": _Entry("demo", "Write a keyed stream, crash it, recover, compact, show the segments."),
}


class LazyGroup(typer.core.TyperGroup):
    """The commands of the table; each is a summary until it is used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in COMMANDS.items():
            self.commands[name] = typer.core.TyperCommand(name, help=entry.summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """What click asks for when a command is used, and not when it is listed."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = _load(args[0])
        return super().resolve_command(ctx, args)

    def load_all(self) -> None:
        """Imports every command, for those who want all of their help."""
        for name in COMMANDS:
            self.commands[name] = _load(name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Corrupt as error:
            _complain(f"{error}{'' if _has_remedy(str(error)) else _HINT}")
        except StoreError as error:
            _complain(str(error))
        except BrokenPipeError:
            # What is still buffered has nowhere to go; the interpreter must not try at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(READER_LEFT) from None
        except OSError as error:
            _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        raise typer.Exit(FAILED)


def _has_remedy(told: str) -> bool:
    """Whether it says what to do, as for what `varve check` does not look at."""
    return any(remedy in told for remedy in _REMEDIES)


def _load(name: str) -> Any:
    module = importlib.import_module(f"{_PACKAGE}.{COMMANDS[name].module}")
    application = getattr(module, "app", None)
    if application is None:
        application = typer.Typer(add_completion=False, rich_markup_mode=None)
        application.command(name)(module.command)
    command = typer.main.get_command(application)
    command.name = name
    return command


def _complain(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True)
    console.print(Text("error: ", style="bold red").append(message, style="red not bold"))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        import varve

        typer.echo(f"varve {varve.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="varve",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _varve(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """A log store that speaks Kafka's bytes."""
    # Commands say themselves what was recovered or failed.
    logging.getLogger("varve").addHandler(logging.NullHandler())


def main() -> None:
    """What the `varve` script runs."""
    # A terminal may lack a character, and a path be no text: neither may end a command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    app()
