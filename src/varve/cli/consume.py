"""`varve consume`: the records of a topic of a broker."""

import sys
from typing import Annotated

import typer

from varve.cli.kafka_client import (
    BrokerAddress,
    ClientFile,
    ClientSettings,
    make_client,
)
from varve.cli.store_access import AsJson, TopicName


def command(
    topic: TopicName,
    broker: BrokerAddress = None,
    settings: ClientSettings = [],  # noqa: B006, typer copies it
    file: ClientFile = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            "-o",
            help="beginning, end, an offset, @milliseconds, or a time such as 2026-03-01T12:00:00.",
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option("--last", "-n", min=1, help="Begin so many offsets before each end."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=0, help="At most so many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more at the end, until Ctrl-C.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="Read as a member of this group, and commit what was read."
        ),
    ] = None,
    committed: Annotated[
        bool,
        typer.Option("--read-committed", help="Leave out open and aborted transactions."),
    ] = False,
    format: Annotated[
        str | None,
        typer.Option("--format", help=r"The form of a record, e.g. '%p:%o %k=%v\n'; see below."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-k", "-K", help=r"Print keys too, with this behind; \t is a tab."
        ),
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", "-H", help="Print headers too, in front, with a tab.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the records of a topic of a broker, varve's or any Kafka, and exit at the end.

    Without --from everything there is; with --group what the group has not read. Records of one
    partition keep their order. --format knows %v value, %k key, %h headers as
    name=value,name=value, %T timestamp in milliseconds, %t topic, %p partition, %o offset, %S and
    %K the bytes of value and key, and \\n \\t \\xNN. Null shows as `null`. With --json a line has
    everything, and `varve produce --json` takes it back. `varve log read` reads a directory
    instead.

    \b
    Examples:
      varve consume orders
      varve consume orders -n 10 --format '%p:%o %k=%v\\n'
      varve consume orders --from 2026-03-01T12:00:00 --json
      varve consume orders --partition 2 --from 1000 --count 5
      varve consume orders --follow --from end
      varve consume orders --group audit --read-committed -b kafka.example.com:9092
    """
    from varve.cli import kafka_consume

    if group is not None and (start is not None or last is not None or partition is not None):
        raise typer.BadParameter(
            "--group begins where the group is, with the partitions it gets: leave out --from, "
            "--last and --partition (`varve group reset-offsets` moves a group)"
        )
    if start is not None and last is not None:
        raise typer.BadParameter("--from and --last exclude each other")
    request = kafka_consume.ConsumeRequest(
        topic,
        partition=partition,
        start=start or "beginning",
        last=last,
        count=count,
        follow=follow,
        group=group,
        committed=committed,
    )
    write = kafka_consume.choose_writer(
        format=format,
        key_separator=key_separator,
        with_headers=headers,
        as_json=as_json,
        is_terminal=sys.stdout.isatty(),
    )
    client = make_client(broker, settings, file)
    out = sys.stdout.buffer
    for record in kafka_consume.consume(client, request, out.flush):
        out.write(write(record))
    out.flush()
