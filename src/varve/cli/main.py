"""The `varve` command: the table of all commands, and how errors become messages and exit codes.

A command's module is imported when the command is used, so that `varve --help` waits for nothing.

Exit codes  0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the reader of the output left.
"""

import errno
import io
import logging
import os
import re
import sys
from typing import Any, Final

import click

from varve.cli.command import CommandGroup, Entry
from varve.foundation.errors import Corrupt, StoreError
from varve.foundation.extras import describe_missing_extra

FAILED: Final = 1
INTERRUPTED: Final = 130
READER_LEFT: Final = 141

_CHECK_HINT: Final = "; `varve check` on the directory finds what is damaged and can be repaired"
_OWN_REMEDIES: Final = ("varve check", "restore it from a copy", "correct the registry")
"""Words of messages that name a remedy already."""
_OS_REMEDIES: Final = {
    errno.ENOENT: "; correct the path",
    errno.EACCES: "; give this user access with chmod or chown, or name another path",
    errno.ENOTDIR: "; name a directory",
    errno.EISDIR: "; name a file",
    errno.ENOSPC: "; free space there, or name another path",
}


_SUMMARIES: Final = {
    "serve": "Serve log directories to Kafka clients.",
    "topic": "Create, show and change topics of a directory or a broker.",
    "topic list": "List topics with their partitions.",
    "topic describe": "Show a topic's partitions and settings.",
    "topic create": "Create a topic.",
    "topic alter": "Change settings of a topic, or add partitions.",
    "topic delete": "Delete topics with all their records.",
    "topic delete-records": "Delete the records of a partition before an offset.",
    "produce": "Write records to a topic.",
    "consume": "Print the records of a topic.",
    "group": "Show, reset and delete consumer groups of a broker.",
    "group list": "List consumer groups with their state.",
    "group describe": "Show a group's members, committed offsets and lag.",
    "group reset-offsets": "Move a group's committed offsets; its members must be stopped.",
    "group delete": "Delete groups with their committed offsets; their members must be stopped.",
    "acl": "Show, add and delete ACLs of a broker.",
    "acl list": "List ACLs: all, or those of a principal or on a resource.",
    "acl add": "Allow or deny operations on a resource.",
    "acl delete": "Delete the ACLs that match, permissions and denials alike.",
    "user": "Show, add and delete SCRAM users of a broker.",
    "user list": "List SCRAM users with their mechanisms.",
    "user add": "Add a user, or replace its password.",
    "user delete": "Delete a user's login with one mechanism; open connections stay.",
    "dump": "Print the contents of the files of a partition or log directory.",
    "check": "Check every invariant of log directories or partitions, and repair them.",
    "get": "Print the latest value of a key.",
    "clean": "Compact topics and delete expired segments now.",
    "explain": "Show why a record or a segment is still here.",
    "forecast": "Show what retention will delete and when.",
    "metrics": "Print the metrics of a log directory in Prometheus' format.",
    "audit": "List every recorded removal and verify it against the files.",
    "tier": "Show, copy, restore and check the remote tier of log directories.",
    "tier status": "Show what each topic has on the local disk and in the object store.",
    "tier copy": "Copy closed segments to the object store.",
    "tier restore": "Restore partitions from the object store, byte for byte.",
    "tier fsck": "Account for every object of a cluster, in bytes and money.",
    "tier mirror": "Compare the second object store of a tier with the first, and repair it.",
    "dedup": "Copy topics without their duplicates, exactly once.",
    "dedup run": "Copy a topic without its duplicates to another topic, exactly once.",
    "dedup status": "Show how far a deduplication is, and the size of its ids.",
    "dedup explain": "Explain why a record of the input was kept or dropped.",
    "shape": "Serve filtered views of topics to applications over HTTP.",
    "shape serve": "Serve shapes of topics to applications: a snapshot, then changes.",
    "shape create": "Create a shape before its first client, and print its handle.",
    "shape list": "List the shapes of a server, or of one topic.",
    "shape show": "Show the definition and the state of a shape.",
    "shape tail": "Print the rows of a shape, then its changes, until Ctrl-C.",
    "shape compact": "Compact the log of a shape now.",
    "shape delete": "Delete a shape and its files; the topic stays.",
    "job": "Query and maintain topics in object storage on Spark, here or on a cluster.",
    "job query": "Show a topic as rows: its records, filtered and joined by SQL.",
    "job compact": "Compact topics in object storage: the latest record of each key remains.",
    "job verify": "Verify topics in object storage: every byte, index, key and manifest.",
    "job snapshot": "Take a snapshot: the latest record of each key as Parquet.",
    "job table": "Write a topic to an Iceberg table, or bring its table up to date.",
    "job dedup": "Copy a topic without its duplicates, to another topic or to a table.",
    "job erase": "Erase records from topics and all their copies, and issue a receipt.",
    "job due": "List the scheduled jobs of topics, or run those that are due.",
    "job report": "Show the report of a job: its steps and stages with time and bytes.",
    "job package": "Pack what executors need: varve and all its packages, as installed here.",
    "job demo": "Write changes of a table, and take them through every job.",
    "snapshot": "List, verify and prune snapshots of topics.",
    "snapshot list": "List the snapshots of a place.",
    "snapshot verify": "Compare all files of a place with their digests.",
    "snapshot prune": "Delete all but the newest snapshots of a place.",
    "table": "Maintain Iceberg tables of topics.",
    "table expire": "Delete old snapshots of a table and their files.",
    "output": "Show what jobs wrote from a topic, and where erasures look for its records.",
    "output list": "List the snapshots, tables, topics and files of a topic.",
    "output forget": "Forget an output that no longer exists.",
    "receipt": "Verify receipts of erasures.",
    "receipt verify": "Verify the signature of a receipt.",
    "demo": "Write records, kill the writer, recover, compact, and move a topic to object storage.",
}
"""Every group and command, and its summary."""

_MODULES: Final = {
    "group": "broker",
    "acl": "broker",
    "user": "broker",
    "get": "consume",
    "dump": "dump.command",
    "explain": "retention",
    "forecast": "retention",
    "audit": "check",
    "tier fsck": "tier_objects",
    "tier mirror": "tier_objects",
    "job query": "job_query",
    "job erase": "job_erase",
    "job demo": "job_demo",
    "job snapshot": "job_outputs",
    "job table": "job_outputs",
    "job dedup": "job_outputs",
    "snapshot": "derived",
    "table": "derived",
    "output": "derived",
    "receipt": "derived",
}
"""The module of a command, or of the commands of a group, that does not have its name."""

_SYNONYMS: Final[dict[str, dict[str, str]]] = {
    "topic": {
        "remove": "varve topic delete",
        "configure": "varve topic alter",
        "add-partitions": "varve topic alter TOPIC --partitions N",
        "offsets": "varve topic describe",
        "show": "varve topic describe",
    },
    "group": {
        "remove": "varve group delete",
        "lag": "varve group describe",
        "reset": "varve group reset-offsets",
    },
    "acl": {"remove": "varve acl delete", "create": "varve acl add"},
    "user": {"remove": "varve user delete", "create": "varve user add"},
    "tier": {"check": "varve tier fsck", "list": "varve tier status"},
    "dedup": {"stats": "varve dedup status"},
    "shape": {"remove": "varve shape delete", "describe": "varve shape show"},
    "job": {"outputs": "varve output list", "ship": "varve job package", "list": "varve job due"},
    "snapshot": {"take": "varve job snapshot", "create": "varve job snapshot"},
    "table": {"create": "varve job table", "sync": "varve job table"},
    "output": {"delete": "varve output forget", "remove": "varve output forget"},
}
"""What is meant by other names of the commands of a group."""


def _build(words: str) -> Entry | CommandGroup:
    """A group, or a command: the function whose name is that of the command in its module."""
    group = words.partition(" ")[0]
    prefix = f"{words} "
    commands = [below for below in _SUMMARIES if below.startswith(prefix)]
    if commands:
        return CommandGroup(
            {command.removeprefix(prefix): _build(command) for command in commands},
            synonyms=_SYNONYMS.get(words),
            help=_SUMMARIES[words],
            no_args_is_help=True,
        )
    module = _MODULES.get(words) or _MODULES.get(group, group)
    return Entry(f"{module}:{re.sub('[ -]', '_', words)}", _SUMMARIES[words])


COMMANDS: Final = {words: _build(words) for words in _SUMMARIES if " " not in words}

_TRY: Final = """\
varve is a log store that speaks Kafka's protocol and stores Kafka's format. Try:

  varve demo                      kill a writer, recover every record, compact, use object storage
  varve serve --dir data          start a Kafka-compatible broker on localhost:9092
  varve topic list --dir data     list the topics of a directory

`varve --help` lists all commands.
"""


class VarveGroup(CommandGroup):
    """All commands; errors of varve become one sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        code = FAILED
        try:
            return super().invoke(ctx)
        except Corrupt as error:
            has_remedy = any(remedy in str(error) for remedy in _OWN_REMEDIES)
            _print_error(f"{error}{'' if has_remedy else _CHECK_HINT}")
        except StoreError as error:
            _print_error(str(error))
        except ModuleNotFoundError as error:
            if (sentence := describe_missing_extra(error)) is None:
                raise
            _print_error(sentence)
        except BrokenPipeError:
            # Buffered output has nowhere to go; the interpreter must not flush it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = READER_LEFT
        except OSError as error:
            remedy = _OS_REMEDIES.get(error.errno or 0, "")
            place = f"{error.filename}: " if error.filename else ""
            _print_error(f"{place}{error.strerror or error}{remedy}")
        except KeyboardInterrupt:
            code = INTERRUPTED
        except click.Abort as abort:
            # Raised by click for Ctrl-C at a prompt, for the end of the input, and for a "no".
            if not isinstance(abort.__context__, KeyboardInterrupt):
                raise
            code = INTERRUPTED
            click.echo(err=True)
        raise click.exceptions.Exit(code)


def _print_error(message: str) -> None:
    click.secho("error: ", fg="red", bold=True, err=True, nl=False)
    click.secho(message, fg="red", err=True)


def _print_version(ctx: click.Context, parameter: click.Parameter, is_requested: bool) -> None:
    if is_requested:
        import varve

        click.echo(f"varve {varve.__version__}")
        ctx.exit()


def _run(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(_TRY, nl=False)
    # Commands report themselves what was recovered or failed.
    logging.getLogger("varve").addHandler(logging.NullHandler())


app = VarveGroup(
    COMMANDS,
    name="varve",
    help="A log store that speaks Kafka's protocol and stores Kafka's format.",
    callback=click.pass_context(_run),
    invoke_without_command=True,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_print_version,
            help="Show the version and exit.",
        )
    ],
    synonyms={
        "help": "varve --help",
        "version": "varve --version",
        "status": "varve tier status",
        "lag": "varve group describe",
        "list": "varve topic list",
        "log": "varve topic, varve produce or varve consume with --dir",
        "append": "varve produce --dir",
        "read": "varve consume --dir",
    },
)


def main() -> None:
    """What the `varve` script runs."""
    # A terminal may lack a character, and a path may not be text: neither ends a command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    app(prog_name="varve")
