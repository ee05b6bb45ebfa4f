"""`varve log`: append to topics and read them from the shell."""

import os
import sys
from enum import StrEnum
from typing import Annotated

import typer

import varve
from varve.cli.log_topics import configure, create, delete, topics
from varve.cli.store_access import (
    DEFAULT_DIRECTORY,
    AsJson,
    Directories,
    TopicName,
    check_exist,
    find_topic,
    open_existing,
    tell_recovery,
)
from varve.cli.tier_access import StoreSettings, is_place_open, tier_settings

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Append to topics and read them from the shell.",
)
for subcommand in (create, topics, configure, delete):
    app.command()(subcommand)

PartitionNumber = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")
]
KeySeparator = Annotated[
    str | None,
    typer.Option("--key-separator", "-K", help=r"What stands between key and value; \t is a tab."),
]


class CodecName(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class IsolationName(StrEnum):
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@app.command()
def offsets(
    topic: TopicName,
    directories: Directories = [DEFAULT_DIRECTORY],  # noqa: B006, typer copies it
    partition: PartitionNumber = None,
    time: Annotated[
        str | None,
        typer.Option(help="Also the first offset not older than this: @milliseconds or a time."),
    ] = None,
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    as_json: AsJson = False,
) -> None:
    """Show where the records of each partition begin and end.

    Records before the local start are in the cold tier only.

    \b
    Examples:
      varve log offsets orders
      varve log offsets orders --partition 0 --time 2026-03-01T12:00:00
    """
    from varve.cli.log_output import print_rows
    from varve.cli.log_start import StartKind, parse_start

    moment = None if time is None else parse_start(time)
    if moment is not None and moment.kind is not StartKind.TIME:
        raise typer.BadParameter(f"{time!r} is no time; write @milliseconds or 2026-03-01T12:00:00")
    rows: list[list[object]] = []
    settings = tier_settings("", store_settings)
    with open_existing(directories, maintain=False, settings=settings) as store:
        found = find_topic(store, topic)
        chosen = found.partitions if partition is None else [found.partition(partition)]
        for one in chosen:
            marks = one.offsets()
            ends = [marks.last_stable, marks.high_watermark, marks.end]
            row = [one.number, marks.log_start, marks.local_start, *ends]
            rows.append([*row, *([] if moment is None else [one.offset_for_time(moment.number)])])
    columns = ["partition", "log start", "local start", "last stable", "high watermark", "end"]
    print_rows([*columns, *([] if moment is None else ["for time"])], rows, as_json=as_json)


@app.command()
def append(
    topic: TopicName,
    directories: Directories = [DEFAULT_DIRECTORY],  # noqa: B006, typer copies it
    partition: PartitionNumber = None,
    key_separator: KeySeparator = None,
    as_json: AsJson = False,
    codec: Annotated[CodecName, typer.Option(help="How batches are compressed.")] = CodecName.LZ4,
    create: Annotated[bool, typer.Option("--create", help="Make a missing topic first.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing at the end.")] = False,
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
) -> None:
    """Append the lines of standard input, a record each.

    A line is a value; with --key-separator a key and a value; with --json an object with key,
    value, headers and timestamp (milliseconds since 1970), where bytes that are no text are
    written as {"base64": "..."}; partition and offset are passed over, so that the output of
    `varve log read --json` can be appended again, to another directory or by way of a file. A
    line ends with a newline, or with a carriage return and a newline. Keyed records go where
    Kafka's default partitioner puts them. A line that cannot be read ends it: what came before is
    appended.

    \b
    Examples:
      echo hello | varve log append greetings --create
      printf 'alice=3\\nbob=4\\n' | varve log append scores --create --key-separator =
      echo '{"key": "alice", "value": "5", "headers": {"by": "shell"}}' | \\
        varve log append scores --json
    """
    from varve.cli import log_append, log_input

    if as_json and key_separator is not None:
        raise typer.BadParameter("--json and --key-separator exclude each other")
    parse: log_input.ParseLine = log_input.parse_value
    if as_json:
        parse = log_input.parse_json
    elif key_separator is not None:
        parse = log_input.key_value_parser(_separator(key_separator))
    settings = tier_settings("", store_settings)
    open_store = varve.open if create else open_existing
    is_waiting = is_place_open(directories)
    with open_store(directories, settings=settings, maintain=not is_waiting) as store:
        if create:
            tell_recovery(store)
            store.create_topic(topic, exist_ok=True)
        found = find_topic(store, topic, "append with --create")
        stream = sys.stdin.buffer
        count = log_append.append_lines(
            found, stream, parse, partition=partition, codec=codec.value
        )
    if not quiet:
        typer.echo(f"appended {count} record{'' if count == 1 else 's'} to {topic}", err=True)
        if is_waiting and found.settings.copies_to_tier:
            typer.echo(
                f"{topic} is not copied yet: `varve tier copy {directories[0]} --store URL` tells "
                "where to, once",
                err=True,
            )


@app.command()
def read(
    topic: TopicName,
    directories: Directories = [DEFAULT_DIRECTORY],  # noqa: B006, typer copies it
    partition: PartitionNumber = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-f",
            help="beginning, end, an offset, @milliseconds, or a time such as 2026-03-01T12:00:00.",
        ),
    ] = "beginning",
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=0, help="At most so many records.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-F",
            help="Wait for more; works while another process has the directory open.",
        ),
    ] = False,
    isolation: Annotated[
        IsolationName,
        typer.Option(help="Whether records of open and aborted transactions are shown."),
    ] = IsolationName.READ_UNCOMMITTED,
    key_separator: KeySeparator = None,
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    as_json: AsJson = False,
) -> None:
    """Print records: values, with --key-separator keys too, or --json with everything.

    Without --partition all partitions follow one another. Null shows as `null`. What has left the
    local disk is read from the cold tier.

    \b
    Examples:
      varve log read orders
      varve log read orders --partition 2 --from 1000 --count 10 --json
      varve log read orders --from 2026-03-01T12:00:00 --key-separator '\\t'
      varve log read orders --follow --from end
    """
    from varve.cli import log_output
    from varve.cli.log_read import ReadRequest, follow_records, read_records
    from varve.cli.log_start import parse_start
    from varve.commit_log import Isolation
    from varve.disk import RealFileSystem

    if follow and isolation is IsolationName.READ_COMMITTED:
        raise typer.BadParameter("--follow shows records before their transaction has ended")
    request = ReadRequest(
        topic, partition, parse_start(start), count, Isolation(isolation.value), store_settings
    )
    format: log_output.FormatRecord = log_output.json_format
    if not as_json:
        format = log_output.text_format(
            None if key_separator is None else _separator(key_separator),
            is_terminal=sys.stdout.isatty(),
        )
    out = sys.stdout.buffer
    if follow:
        check_exist(directories)
        roots = [os.fspath(path) for path in directories]
        for record in follow_records(RealFileSystem(), roots, request, out.flush):
            out.write(format(record))
    else:
        settings = tier_settings("", store_settings)
        with open_existing(directories, maintain=False, settings=settings) as store:
            for record in read_records(find_topic(store, topic), request):
                out.write(format(record))
    out.flush()


@app.command("delete-records")
def delete_records(
    topic: TopicName,
    before: Annotated[
        int,
        typer.Option(help="The first offset to keep; -1 drops all there are.", min=-1),
    ],
    directories: Directories = [DEFAULT_DIRECTORY],  # noqa: B006, typer copies it
    partition: PartitionNumber = None,
) -> None:
    """Drop the records of a partition before an offset; this cannot be undone.

    \b
    Examples:
      varve log delete-records orders --partition 0 --before 1000
    """
    with open_existing(directories, maintain=False) as store:
        log_start = find_topic(store, topic).delete_records(before, partition)
    typer.echo(f"{topic}-{partition or 0} now begins at offset {log_start}")


def _separator(text: str) -> str:
    if not text:
        raise typer.BadParameter("--key-separator is empty")
    return text.replace("\\t", "\t")
