"""The `varve` command: the table of all commands, and how errors become messages and exit codes.

A command's module is imported when the command is used, so that `varve --help` waits for nothing.

Exit codes  0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the reader of the output left.
"""

import io
import logging
import os
import sys
from collections.abc import Mapping
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


def _group(summary: str, entries: Mapping[str, Entry], **settings: Any) -> CommandGroup:
    return CommandGroup(entries, help=summary, no_args_is_help=True, **settings)


COMMANDS: Final[dict[str, Entry | CommandGroup]] = {
    "serve": Entry("serve:serve", "Serve log directories to Kafka clients."),
    "topic": _group(
        "Create, show and change topics of a directory or a broker.",
        {
            "list": Entry("topic:list_topics", "List topics with their partitions."),
            "describe": Entry("topic:describe", "Show a topic's partitions and settings."),
            "create": Entry("topic:create", "Create a topic."),
            "alter": Entry("topic:alter", "Change settings of a topic, or add partitions."),
            "delete": Entry("topic:delete", "Delete topics with all their records."),
            "delete-records": Entry(
                "topic:delete_records", "Delete the records of a partition before an offset."
            ),
        },
        synonyms={
            "remove": "varve topic delete",
            "configure": "varve topic alter",
            "add-partitions": "varve topic alter TOPIC --partitions N",
            "offsets": "varve topic describe",
            "show": "varve topic describe",
        },
    ),
    "produce": Entry("produce:produce", "Write records to a topic."),
    "consume": Entry("consume:consume", "Print the records of a topic."),
    "group": _group(
        "Show and move consumer groups of a broker.",
        {
            "list": Entry("group:list_groups", "List consumer groups with their state."),
            "describe": Entry(
                "group:describe", "Show a group's members, committed offsets and lag."
            ),
            "reset-offsets": Entry(
                "group:reset_offsets",
                "Move a group's committed offsets; its members must be stopped.",
            ),
            "delete": Entry(
                "group:delete",
                "Delete groups with their committed offsets; their members must be stopped.",
            ),
        },
        synonyms={
            "remove": "varve group delete",
            "lag": "varve group describe",
            "reset": "varve group reset-offsets",
        },
    ),
    "acl": _group(
        "Show, add and delete ACLs of a broker.",
        {
            "list": Entry(
                "security:list_acls", "List ACLs: all, or those of a principal or on a resource."
            ),
            "add": Entry("security:add_acl", "Allow or deny operations on a resource."),
            "delete": Entry(
                "security:delete_acl", "Delete the ACLs that match, permissions and denials alike."
            ),
        },
        synonyms={"remove": "varve acl delete", "create": "varve acl add"},
    ),
    "user": _group(
        "Show, add and delete SCRAM users of a broker.",
        {
            "list": Entry("security:list_users", "List SCRAM users with their mechanisms."),
            "add": Entry("security:add_user", "Add a user, or replace its password."),
            "delete": Entry(
                "security:delete_user",
                "Delete a user's login with one mechanism; open connections stay.",
            ),
        },
        synonyms={"remove": "varve user delete", "create": "varve user add"},
    ),
    "dump": Entry(
        "dump.command:dump", "Print the contents of the files of a partition or log directory."
    ),
    "check": Entry(
        "check:check", "Check every invariant of log directories or partitions, and repair them."
    ),
    "get": Entry("consume:get", "Print the latest value of a key."),
    "clean": Entry("clean:clean", "Compact topics and delete expired segments now."),
    "explain": Entry("explain:explain", "Show why a record or a segment is still here."),
    "forecast": Entry("forecast:forecast", "Show what retention will delete and when."),
    "metrics": Entry(
        "metrics:metrics", "Print the metrics of a log directory in Prometheus' format."
    ),
    "audit": Entry("audit:audit", "List every recorded removal and verify it against the files."),
    "tier": _group(
        "Show, copy, restore and check the remote tier of log directories.",
        {
            "status": Entry(
                "tier:status", "Show what each topic has on the local disk and in the object store."
            ),
            "copy": Entry("tier:copy", "Copy closed segments to the object store."),
            "restore": Entry(
                "tier:restore", "Restore partitions from the object store, byte for byte."
            ),
            "fsck": Entry(
                "tier_objects:fsck", "Account for every object of a cluster, in bytes and money."
            ),
            "mirror": Entry(
                "tier_objects:mirror",
                "Compare the second object store of a remote tier with the first, and repair it.",
            ),
        },
        synonyms={"check": "varve tier fsck", "list": "varve tier status"},
    ),
    "dedup": _group(
        "Copy topics without their duplicates, exactly once.",
        {
            "run": Entry(
                "dedup:run", "Copy a topic without its duplicates to another topic, exactly once."
            ),
            "status": Entry(
                "dedup:status", "Show how far a deduplication is, and the size of its ids."
            ),
            "explain": Entry(
                "dedup:explain", "Explain why a record of the input was kept or dropped."
            ),
        },
        synonyms={"stats": "varve dedup status"},
    ),
    "shape": _group(
        "Serve filtered views of topics to applications over HTTP.",
        {
            "serve": Entry(
                "shape:serve",
                "Serve shapes of topics to applications: a snapshot, then changes.",
            ),
            "create": Entry(
                "shape:create", "Create a shape before its first client, and print its handle."
            ),
            "list": Entry("shape:list_shapes", "List the shapes of a server, or of one topic."),
            "show": Entry("shape:show", "Show the definition and the state of a shape."),
            "tail": Entry(
                "shape:tail", "Print the rows of a shape, then its changes, until Ctrl-C."
            ),
            "compact": Entry("shape:compact", "Compact the log of a shape now."),
            "delete": Entry("shape:delete", "Delete a shape and its files; the topic stays."),
        },
        synonyms={"remove": "varve shape delete", "describe": "varve shape show"},
    ),
    "job": _group(
        "Query and maintain topics in object storage on Spark, here or on a cluster.",
        {
            "query": Entry(
                "job_query:query", "Show a topic as rows: its records, filtered and joined by SQL."
            ),
            "compact": Entry(
                "job:compact",
                "Compact topics in object storage: the latest record of each key remains.",
            ),
            "verify": Entry(
                "job:verify",
                "Verify topics in object storage: every byte, index, key and manifest.",
            ),
            "snapshot": Entry(
                "job_outputs:snapshot",
                "Take a snapshot: the latest record of each key as Parquet.",
            ),
            "table": Entry(
                "job_outputs:table",
                "Write a topic to an Iceberg table, or bring its table up to date.",
            ),
            "dedup": Entry(
                "job_outputs:dedup",
                "Copy a topic without its duplicates, to another topic or to a table.",
            ),
            "erase": Entry(
                "job_erase:erase",
                "Erase records from topics and all their copies, and issue a receipt.",
            ),
            "due": Entry(
                "job:due", "List the scheduled jobs of topics, or run those that are due."
            ),
            "report": Entry(
                "job:report", "Show the report of a job: its steps and stages with time and bytes."
            ),
            "package": Entry(
                "job:package",
                "Pack what executors need: varve and all its packages, as installed here.",
            ),
            "demo": Entry(
                "job_demo:demo", "Write changes of a table, and take them through every job."
            ),
        },
        synonyms={
            "outputs": "varve output list",
            "ship": "varve job package",
            "list": "varve job due",
        },
    ),
    "snapshot": _group(
        "List, verify and prune snapshots of topics.",
        {
            "list": Entry("derived:list_snapshots", "List the snapshots of a place."),
            "verify": Entry(
                "derived:verify_snapshots", "Compare all files of a place with their digests."
            ),
            "prune": Entry(
                "derived:prune_snapshots", "Delete all but the newest snapshots of a place."
            ),
        },
        synonyms={"take": "varve job snapshot", "create": "varve job snapshot"},
    ),
    "table": _group(
        "Maintain Iceberg tables of topics.",
        {
            "expire": Entry(
                "derived:expire_table", "Delete old snapshots of a table and their files."
            ),
        },
        synonyms={"create": "varve job table", "sync": "varve job table"},
    ),
    "output": _group(
        "Show what jobs wrote from a topic, and where erasures look for its records.",
        {
            "list": Entry(
                "derived:list_outputs", "List the snapshots, tables, topics and files of a topic."
            ),
            "forget": Entry("derived:forget_output", "Forget an output that no longer exists."),
        },
        synonyms={"delete": "varve output forget", "remove": "varve output forget"},
    ),
    "receipt": _group(
        "Verify receipts of erasures.",
        {"verify": Entry("derived:verify_receipt", "Verify the signature of a receipt.")},
    ),
    "demo": Entry(
        "demo:demo",
        "Write records, kill the writer, recover, compact, and move a topic to object storage.",
    ),
}

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
            _print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
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
