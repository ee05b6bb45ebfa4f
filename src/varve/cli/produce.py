"""`varve produce`: lines and files to a topic of a broker."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from varve.cli.kafka_client import (
    BrokerAddress,
    ClientFile,
    ClientSettings,
    make_client,
)
from varve.cli.store_access import TopicName


class CodecName(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"


def command(
    topic: TopicName,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="Read these instead of standard input."),
    ] = None,
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-k", "-K", help=r"What stands between key and value; \t is a tab."
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", help=r"The form of a line, e.g. '%k|%h|%v'; see below."),
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option("--json", "-j", help="A line is an object, as `varve consume --json` writes."),
    ] = False,
    whole_files: Annotated[
        bool, typer.Option("--whole-files", "-w", help="Each file is the value of one record.")
    ] = False,
    headers: Annotated[
        list[str],
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="For every record; repeatable."),
    ] = [],  # noqa: B006, typer copies it
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="All go to this partition.")
    ] = None,
    empty_as_null: Annotated[
        bool, typer.Option("--null", "-Z", help="An empty key or value is null: a tombstone.")
    ] = False,
    codec: Annotated[
        CodecName | None, typer.Option(help="How batches are compressed; lz4 unless set.")
    ] = None,
    acks: Annotated[
        Acks | None,
        typer.Option(
            help="Who must have stored a record: nobody, the leader, all replicas; all unless set."
        ),
    ] = None,
    idempotent: Annotated[
        bool | None,
        typer.Option(
            help="Nothing twice and nothing out of order, whatever is retried; on unless set."
        ),
    ] = None,
    transaction: Annotated[
        str | None,
        typer.Option("--transaction", metavar="ID", help="All or nothing, under this id."),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make a missing topic first.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing at the end.")] = False,
) -> None:
    """Write records to a topic of a broker, varve's or any Kafka: a line of input is a record.

    A line is a value; with -k a key and a value; with --json an object with key, value, headers
    and timestamp. With --format the parts stand as it says: %k key, %v value, %h headers as
    name=value,name=value, %T timestamp in milliseconds, %p partition; %t and %o are passed over.
    Keys are spread as Kafka's own clients do. A line that cannot be read, or a record that is
    refused, ends it: what came before is told, and with --transaction nothing is kept.
    `varve log append` writes to a directory instead.

    \b
    Examples:
      echo hello | varve produce greetings
      printf 'alice=3\\nbob=4\\n' | varve produce scores -k = -H by=shell
      varve produce scores --format '%k|%v' --codec zstd scores.txt
      varve consume scores --json | varve produce copies --json --transaction copy-1
      varve produce pictures -w one.png two.png -b kafka.example.com:9092
    """
    from varve.cli import kafka_produce

    source = kafka_produce.choose_source(
        topic,
        key_separator=key_separator,
        format=format,
        json_lines=json_lines,
        whole_files=whole_files,
        empty_as_null=empty_as_null,
        headers=headers,
        partition=partition,
    )
    if whole_files and not files:
        raise typer.BadParameter("--whole-files needs the names of files")
    if acks not in (None, Acks.ALL) and transaction is not None:
        raise typer.BadParameter("--transaction needs --acks all")
    client = make_client(broker, settings, file)
    delivery = kafka_produce.Delivery(
        codec=None if codec is None else codec.value,
        acks=None if acks is None else acks.value,
        idempotent=idempotent,
        transaction=transaction,
    )
    with kafka_produce.open_inputs(files or [], sys.stdin.buffer) as inputs:
        count = kafka_produce.produce(client, topic, source, inputs, delivery, creates_topic=create)
    if not quiet:
        typer.echo(f"produced {count:,} record{'' if count == 1 else 's'} to {topic}", err=True)
