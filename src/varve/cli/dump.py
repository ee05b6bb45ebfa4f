"""`varve dump`: the files of a partition or log directory as text or JSON.

Invariant  reads only; a broken file is named and the next one follows.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Final

import typer

from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE
from varve.cli.byte_progress import byte_progress
from varve.cli.dump_data import dump_data
from varve.cli.dump_entry import DumpOptions, Entry, Source, problem
from varve.cli.dump_formats import DumpFormat, JsonFormat, TextFormat
from varve.cli.dump_indexes import dump_offset_index, dump_time_index, dump_txn_index
from varve.cli.dump_keys import dump_key_index
from varve.cli.dump_state import (
    dump_append_times,
    dump_clean_shutdown,
    dump_directory_metadata,
    dump_leader_epochs,
    dump_offset_checkpoint,
    dump_partition_metadata,
    dump_snapshot,
    dump_topics,
)
from varve.cli.record_decoders import Decoder
from varve.commit_log.names import (
    APPEND_TIMES_FILE,
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    INDEX,
    KEYS,
    LEADER_EPOCH_FILE,
    LOCK_FILE,
    LOG,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_file_name,
)
from varve.disk import FileSystem, RealFileSystem
from varve.embedded.topic_table import TOPICS_FILE
from varve.foundation.errors import StoreError

Reader = Callable[[Source, DumpOptions], Iterator[Entry]]

_BY_KIND: Final[dict[str, Reader]] = {
    LOG: dump_data,
    INDEX: dump_offset_index,
    TIME_INDEX: dump_time_index,
    TXN_INDEX: dump_txn_index,
    SNAPSHOT: dump_snapshot,
    KEYS: dump_key_index,
}
_BY_NAME: Final[dict[str, Reader]] = {
    LEADER_EPOCH_FILE: dump_leader_epochs,
    PARTITION_METADATA_FILE: dump_partition_metadata,
    META_PROPERTIES_FILE: dump_directory_metadata,
    CLEAN_SHUTDOWN_FILE: dump_clean_shutdown,
    RECOVERY_POINT_FILE: dump_offset_checkpoint,
    LOG_START_OFFSET_FILE: dump_offset_checkpoint,
    HIGH_WATERMARK_FILE: dump_offset_checkpoint,
    CLEANER_OFFSET_FILE: dump_offset_checkpoint,
    TOPICS_FILE: dump_topics,
    APPEND_TIMES_FILE: dump_append_times,
}
_METADATA_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_BOOTSTRAP_SNAPSHOT: Final = "bootstrap.checkpoint"
_INT_MAX: Final = 2**31 - 1


def dump_paths(
    fs: FileSystem,
    paths: Sequence[str],
    options: DumpOptions,
    format: DumpFormat,
    report_unknown: Callable[[str], None],
) -> bool:
    """Dumps files, and the files of directories; False when one of them is broken."""
    is_whole = True
    for path in paths:
        try:
            files = list(find_files(fs, path))
        except OSError as error:
            format.write(path, problem(error.strerror or str(error)))
            is_whole = False
            continue
        for file in files:
            is_whole = _dump_file(fs, file, options, format, report_unknown) and is_whole
    format.finish()
    return is_whole


def find_files(fs: FileSystem, path: str) -> Iterator[str]:
    """The path itself, or the files of a directory and of the directories in it."""
    if not fs.info(path).is_directory:
        yield path
        return
    directory = path.rstrip("/") or "/"
    for entry in fs.scan(directory):
        child = f"{directory}/{entry.name}"
        if entry.is_directory:
            yield from (f"{child}/{e.name}" for e in fs.scan(child) if not e.is_directory)
        elif entry.name != LOCK_FILE:
            yield child


def _dump_file(
    fs: FileSystem,
    path: str,
    options: DumpOptions,
    format: DumpFormat,
    report_unknown: Callable[[str], None],
) -> bool:
    plan = _plan(path)
    if plan is None:
        report_unknown(path)
        return True
    reader, offset, heading = plan
    is_whole = True
    format.begin(path)
    if heading is not None:
        format.write(path, heading)
    for entry in _entries(reader, Source(fs, path, offset), options):
        is_whole = is_whole and entry.kind != "problem"
        format.write(path, entry)
    return is_whole


def _entries(reader: Reader, source: Source, options: DumpOptions) -> Iterator[Entry]:
    """What the reader finds; a failure of the file, not of the output, ends it as a problem."""
    try:
        yield from reader(source, options)
    except (StoreError, OSError) as error:
        yield problem(str(error))


def _plan(path: str) -> tuple[Reader, int, Entry | None] | None:
    """How to read a file, by its name; None when the name says nothing."""
    name = path.rpartition("/")[2]
    segment = parse_file_name(name)
    if segment is not None:
        heading = Entry("logStart", {"offset": segment.offset}) if segment.kind == LOG else None
        reader = _BY_KIND.get(segment.kind)
        return None if reader is None else (reader, segment.offset, heading)
    snapshot = _METADATA_SNAPSHOT.fullmatch(name)
    if snapshot is not None:
        end = {"offset": int(snapshot[1]), "epoch": int(snapshot[2])}
        return dump_data, 0, Entry("snapshotEnd", end)
    if name == _BOOTSTRAP_SNAPSHOT:
        return dump_data, 0, Entry("bootstrapSnapshot", {})
    reader = _BY_NAME.get(name)
    return None if reader is None else (reader, 0, None)


def _ignore(path: str) -> None:
    if path.rpartition("/")[2] == REMOVAL_LOG_FILE:
        sys.stderr.write(f"Passing over {path}: evidence of removals, `varve audit` reads it\n")
    else:
        sys.stderr.write(f"Ignoring unknown file {path}\n")


def _total_bytes(fs: FileSystem, paths: Sequence[str]) -> int:
    total = 0
    for path in paths:
        try:
            total += sum(fs.info(f).size for f in find_files(fs, path) if LOG in f)
        except OSError:
            continue  # named when its turn comes
    return total


def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE_OR_DIRECTORY", help="What to dump.", show_default=False),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option("--files", help="More of them, separated by commas, as Kafka's tool has it."),
    ] = None,
    print_data_log: Annotated[
        bool, typer.Option("--print-data-log", help="Print keys and values; implies records.")
    ] = False,
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", help="List the records of every batch.")
    ] = False,
    skip_record_metadata: Annotated[
        bool,
        typer.Option("--skip-record-metadata", help="Of records print keys and values only."),
    ] = False,
    max_bytes: Annotated[
        int | None,
        typer.Option("--max-bytes", min=0, help="Read only so many bytes of each data file."),
    ] = None,
    verify_index_only: Annotated[
        bool,
        typer.Option("--verify-index-only", help="Compare indexes with the data, list nothing."),
    ] = False,
    index_sanity_check: Annotated[
        bool,
        typer.Option("--index-sanity-check", help="Only tell whether an index must be rebuilt."),
    ] = False,
    key_decoder: Annotated[
        Decoder | None, typer.Option("--key-decoder", help="What keys are; implies printing.")
    ] = None,
    value_decoder: Annotated[
        Decoder | None, typer.Option("--value-decoder", help="What values are; implies printing.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line instead of text.")
    ] = False,
) -> None:
    """Print what the files of a partition or log directory hold.

    Lines are those of Kafka's dump tool. A directory stands for all files in it and in its
    partitions. With --json every line is an object with `kind` and `file`; batches, records and
    entries have Kafka's names for their fields (docs/dump-json.md). Damage is named on standard
    error, the next file follows, and the exit status is 1. Offsets that are not consecutive and
    index entries of appends of several batches are listed at the end: they may be harmless,
    `varve check` judges.

    \b
    Examples:
      varve dump data/orders-0
      varve dump --print-data-log --value-decoder json data/orders-0/00000000000000000000.log
      varve dump --json --deep-iteration data/orders-0 | jq 'select(.kind == "record")'
      varve dump --files 00000000000000000000.index,00000000000000000000.timeindex
    """
    named = [*(paths or []), *(name for names in files or [] for name in names.split(",") if name)]
    if not named:
        raise typer.BadParameter("name at least one file or directory to dump")
    print_data = print_data_log or key_decoder is not None or value_decoder is not None
    decoders = {
        "key_decoder": key_decoder or Decoder.UTF_8,
        "value_decoder": value_decoder or Decoder.UTF_8,
    }
    format: DumpFormat
    if as_json:
        format = JsonFormat(sys.stdout, **decoders)
    else:
        format = TextFormat(
            sys.stdout, sys.stderr, skip_record_metadata=skip_record_metadata, **decoders
        )
    fs = RealFileSystem()
    # On a terminal the lines themselves show the progress.
    is_watched = not sys.stdout.isatty()
    with byte_progress("Dumping", _total_bytes(fs, named), is_wanted=is_watched) as advance:
        options = DumpOptions(
            deep=deep_iteration or print_data,
            print_data=print_data,
            max_bytes=None if max_bytes == _INT_MAX else max_bytes,
            verify_index_only=verify_index_only,
            index_sanity_check=index_sanity_check,
            advance=advance,
        )
        is_whole = dump_paths(fs, named, options, format, _ignore)
    if not is_whole:
        raise typer.Exit(1)
