"""`varve produce`: lines or files become records of a topic."""

import contextlib
import itertools
import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Output
from varve.cli.record_format import LineChunk, LineReader, choose_reader, read_chunks
from varve.cli.where import (
    Where,
    check_no_files,
    find_topic,
    note_unnamed_tier,
    open_existing,
    warn_of_recovery,
)
from varve.foundation.errors import InvalidRecord, NotFound, StoreError
from varve.foundation.topic_records import StoredRecord
from varve.foundation.units import format_count

if TYPE_CHECKING:
    from varve.brokers.client import BrokerClient
    from varve.brokers.producer import LineProducer
    from varve.embedded import Topic


@dataclass(frozen=True, slots=True)
class RecordInput:
    """A named stream of records: a line each, or one record as a whole."""

    name: str
    stream: BinaryIO
    reader: LineReader
    is_whole: bool

    def chunks(self) -> Iterator["InputChunk"]:
        if self.is_whole:
            data = self.stream.read()
            yield InputChunk(self, LineChunk(1, [data], len(data)))
            return
        for chunk in read_chunks(self.stream):
            yield InputChunk(self, chunk)


@dataclass(slots=True)
class InputChunk:
    """Records that arrived together; iteration stops before a bad line and keeps its error."""

    input: RecordInput
    lines: LineChunk
    error: InvalidRecord | None = None

    def __iter__(self) -> Iterator[StoredRecord]:
        for number, line in enumerate(self.lines.lines, start=self.lines.first):
            try:
                record = self.input.reader.read(line)
            except InvalidRecord as error:
                self.error = InvalidRecord(f"{self.input.name}, line {number}: {error}")
                return
            if record is not None:
                yield record


@command(
    "printf 'alice=3\\nbob=4\\n' | varve produce scores -K = --create",
    "varve consume scores --json | varve produce copies --input json -b kafka:9092",
)
@options.topic
@click.argument(
    "files",
    metavar="[FILE...]",
    nargs=-1,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
)
@click.option(
    "--input",
    default="lines",
    metavar="lines|json|files|TEMPLATE",
    help="A record is a line, a JSON object per line, a whole file, or a line such as '%k|%h|%v'.",
)
@click.option(
    "-K", "--key-separator", metavar="SEP", help=r"Text between key and value; \t is a tab."
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="For every record.")
@options.number("-p", "--partition", help="The partition of all records.")
@click.option("--empty-as-null", is_flag=True, help="An empty key or value is null: a tombstone.")
@click.option(
    "--codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Compression of batches; default lz4.",
)
@click.option("--acks", type=click.Choice(["0", "1", "all"]), help="With a broker; default all.")
@click.option("--no-idempotence", is_flag=True, help="With a broker: retries may duplicate.")
@click.option("--transactional-id", metavar="ID", help="With a broker: all records or none.")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@options.where
@options.quiet_output
def produce(
    topic: str,
    files: tuple[Path, ...],
    where: Where,
    output: Output,
    input: str,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    empty_as_null: bool,
    codec: str | None,
    acks: str | None,
    no_idempotence: bool,
    transactional_id: str | None,
    create: bool,
) -> None:
    """Write records to a topic.

    A record is a line of standard input or of the files, unless --input says otherwise. JSON
    objects have key, value, headers and timestamp in milliseconds; bytes that are not text are
    {"base64": "..."}. Templates have %k key, %v value, %h headers as name=value,name=value, %T
    timestamp, %p partition. Keys go to the partition of Kafka's default partitioner. A line that
    cannot be read ends it; the records before it are written, unless in a transaction.
    """
    reader = choose_reader(
        input=input,
        key_separator=key_separator,
        headers=headers,
        partition=partition,
        is_empty_null=empty_as_null,
    )
    if input == "files" and not files:
        raise click.UsageError("--input files needs the names of files")
    if transactional_id is not None and acks not in (None, "all"):
        raise click.UsageError("--transactional-id needs --acks all")
    if not where.is_broker and (acks or no_idempotence or transactional_id):
        raise click.UsageError(
            "--acks, --no-idempotence and --transactional-id are for a broker; leave them out "
            "with --dir"
        )
    with _open_inputs(files, reader, output, is_whole=input == "files") as inputs:
        if where.is_broker:
            from varve.brokers.producer import Delivery, LineProducer

            client = where.client()
            _check_topic(client, topic, partition, is_created=create)
            is_idempotent = False if no_idempotence else None
            delivery = Delivery(codec, acks, is_idempotent, transactional_id)
            count = _send(LineProducer(client, topic, delivery), inputs, output)
        else:
            count = _append(where, topic, inputs, output, codec or "lz4", is_created=create)
    if output.is_json:
        output.print_object("produced", {"topic": topic, "records": count})
    else:
        output.note(f"produced {format_count(count, 'record')} to {topic}")


@contextlib.contextmanager
def _open_inputs(
    files: Sequence[Path], reader: LineReader, output: Output, *, is_whole: bool
) -> Iterator[list[RecordInput]]:
    """The files, or standard input if there are none."""
    with contextlib.ExitStack() as stack:
        inputs = [
            RecordInput(str(path), stack.enter_context(path.open("rb")), reader, is_whole)
            for path in files
        ]
        if not inputs and sys.stdin.isatty():
            output.note("reading one record per line; Ctrl-D ends")
        yield inputs or [RecordInput("standard input", sys.stdin.buffer, reader, is_whole)]


# To a broker


def _check_topic(
    client: "BrokerClient", topic: str, partition: int | None, *, is_created: bool
) -> None:
    """A broker may create a topic on request; a mistyped name must not create one."""
    from varve.brokers.topics import create_topic, find_topic

    try:
        count = len(find_topic(client, topic).partitions)
    except NotFound as error:
        if not is_created:
            raise NotFound(f"{error}; add --create to create it") from error
        create_topic(client, topic)
        count = len(find_topic(client, topic).partitions)
    if partition is not None and partition >= count:
        raise NotFound(f"topic {topic} has no partition {partition}; it has 0 to {count - 1}")


def _send(producer: "LineProducer", inputs: Sequence[RecordInput], output: Output) -> int:
    """Delivers everything and returns the count; errors say how many were delivered."""
    try:
        producer.begin()
        streams = [input.stream for input in inputs]
        with output.record_progress("producing", streams) as progress:
            for input in inputs:
                for chunk in input.chunks():
                    for record in chunk:
                        producer.deliveries.send(record)
                    if chunk.error is not None:
                        raise chunk.error
                    progress.advance(chunk.lines.size, len(chunk.lines.lines))
                producer.poll()
        producer.finish()
    except InvalidRecord as error:
        producer.stop_reading()
        raise InvalidRecord(f"{error} ({producer.outcome()})") from error
    except StoreError as error:
        producer.abandon()
        raise type(error)(f"{error} ({producer.outcome()})") from error
    except KeyboardInterrupt:
        producer.abandon()
        output.warn(f"interrupted: {producer.outcome()}")
        raise
    return producer.deliveries.delivered_count


# To a directory


def _append(
    where: Where,
    name: str,
    inputs: Sequence[RecordInput],
    output: Output,
    codec: str,
    *,
    is_created: bool,
) -> int:
    import varve
    from varve.disk import RealFileSystem
    from varve.embedded.tier_location import awaits_location

    # The first copy decides where the tier is, so nothing is copied before it was named.
    is_tier_unnamed = awaits_location(RealFileSystem(), where.directories)
    check_no_files(where.directories)
    open_store = varve.open if is_created else open_existing
    with open_store(
        where.directories, settings=where.tier_settings(), maintain=not is_tier_unnamed
    ) as store:
        if is_created:
            warn_of_recovery(store)
            store.create_topic(name, exist_ok=True)
        topic = find_topic(store, name, "add --create to create it")
        count = append_records(topic, inputs, output, codec=codec)
        note_unnamed_tier(output, where, topic)
    return count


def append_records(
    topic: "Topic", inputs: Sequence[RecordInput], output: Output, *, codec: str
) -> int:
    """Appends everything and returns the count; errors say how many were appended."""
    # Taken once: a log that went offline still knows its end.
    logs = [partition.log for partition in topic.partitions]
    start = sum(log.end_offset for log in logs)

    def outcome() -> str:
        # No one else appends to a directory that is open here.
        count = sum(log.end_offset for log in logs) - start
        return f"{format_count(count, 'record')} {'was' if count == 1 else 'were'} appended"

    try:
        streams = [input.stream for input in inputs]
        with output.record_progress("appending", streams) as progress:
            for input in inputs:
                for chunk in input.chunks():
                    _append_chunk(topic, chunk, codec)
                    progress.advance(chunk.lines.size, len(chunk.lines.lines))
    except StoreError as error:
        raise type(error)(f"{error} ({outcome()} before it)") from error
    except KeyboardInterrupt:
        output.warn(f"interrupted: {outcome()}")
        raise
    return sum(log.end_offset for log in logs) - start


def _append_chunk(topic: "Topic", chunk: InputChunk, codec: str) -> None:
    """One append per run of records for the same partition."""
    for partition, records in itertools.groupby(chunk, key=operator.attrgetter("partition")):
        topic.append_many(records, partition=None if partition < 0 else partition, codec=codec)
    if chunk.error is not None:
        raise chunk.error
