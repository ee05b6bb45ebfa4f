"""`varve dump`: the options of Kafka's DumpLogSegments."""

import sys
from collections.abc import Callable
from typing import Final

import click

from varve.cli import options
from varve.cli.command import AliasedOption, command
from varve.cli.output import Output

_DECODERS: Final = click.Choice(["utf-8", "hex", "base64", "json", "int", "long"])


def _flag(name: str, parameter: str, alias: str, help: str) -> Callable[..., Callable[..., None]]:
    """A flag that also has the name of Kafka's tool."""
    return click.option(
        name, parameter, cls=AliasedOption, aliases=[alias], is_flag=True, help=help
    )


@command(
    "varve dump data/orders-0 --values --value-decoder json",
    "varve dump data/orders-0 --records --json | jq 'select(.type == \"record\")'",
)
@click.argument("paths", metavar="PATH...", nargs=-1)
@click.option("--files", multiple=True, hidden=True)
@_flag("--records", "records", "--deep-iteration", "List the records of every batch.")
@_flag("--values", "values", "--print-data-log", "Print keys and values too.")
@click.option("--skip-record-metadata", is_flag=True, hidden=True)
@click.option(
    "--key-decoder", type=_DECODERS, help="How keys are encoded; default utf-8. Implies --values."
)
@click.option(
    "--value-decoder",
    type=_DECODERS,
    help="How values are encoded; default utf-8. Implies --values.",
)
@options.size("--max-bytes", help="Read only the beginning of each data file.")
@_flag("--verify-index", "verify_index", "--verify-index-only", "Only compare indexes with data.")
@_flag(
    "--sanity-check",
    "sanity_check",
    "--index-sanity-check",
    "Only report whether an index must be rebuilt.",
)
@options.output
def dump(
    paths: tuple[str, ...],
    output: Output,
    files: tuple[str, ...],
    records: bool,
    values: bool,
    skip_record_metadata: bool,
    key_decoder: str | None,
    value_decoder: str | None,
    max_bytes: int | None,
    verify_index: bool,
    sanity_check: bool,
) -> None:
    """Print the contents of the files of a partition or log directory.

    The lines are those of Kafka's DumpLogSegments, whose options --files, --print-data-log and
    --deep-iteration are accepted too; records of internal topics are not decoded. A directory
    stands for all files in it and in its partitions. docs/reference/dump-json.md lists the
    objects of --json.

    Damage is reported on standard error, the next file follows, and the exit status is 1. Gaps in
    offsets and index entries of appends of several batches are listed at the end: they may be
    harmless, `varve check` decides.
    """
    from varve.cli.dump.files import dump_paths, measure_paths
    from varve.cli.dump.records import DumpOptions
    from varve.cli.dump.text import DumpDecoder, DumpFormat, JsonFormat, TextFormat
    from varve.commit_log.offset_checkpoints import INT32_MAX
    from varve.disk import RealFileSystem

    chosen = [*paths, *(name for given in files for name in given.split(",") if name)]
    if not chosen:
        raise click.UsageError("name at least one file or directory to dump")
    has_values = values or key_decoder is not None or value_decoder is not None
    decoders = {
        "key_decoder": DumpDecoder(key_decoder or DumpDecoder.UTF_8),
        "value_decoder": DumpDecoder(value_decoder or DumpDecoder.UTF_8),
    }
    format: DumpFormat = JsonFormat(sys.stdout, sys.stderr, **decoders)
    if not output.is_json:
        format = TextFormat(
            sys.stdout, sys.stderr, skip_record_metadata=skip_record_metadata, **decoders
        )
    fs = RealFileSystem()
    # On a terminal the lines themselves show the progress.
    total_bytes = 0 if sys.stdout.isatty() else measure_paths(fs, chosen)
    with output.progress("Dumping", total_bytes) as bar:
        dump_options = DumpOptions(
            has_records=records or has_values,
            has_values=has_values,
            max_bytes=None if max_bytes == INT32_MAX else max_bytes,
            verify_index=verify_index,
            sanity_check=sanity_check,
            advance=bar.advance,
        )
        is_whole = dump_paths(fs, chosen, dump_options, format)
    if not is_whole:
        raise click.exceptions.Exit(1)
