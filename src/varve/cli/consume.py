"""`varve consume` and `get`: the records of a topic, and the latest value of a key."""

import base64
import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Output
from varve.cli.record_format import choose_writer
from varve.cli.where import Where, find_topic
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.position import BEGINNING, END, PositionKind, ReadPosition
from varve.foundation.topic_records import StoredRecord
from varve.foundation.units import format_moment

if TYPE_CHECKING:
    from varve.embedded import Partition

_KEY_ENCODINGS: Final = ("utf8", "base64", "hex")
_ISOLATION: Final = ("read_uncommitted", "read_committed")


@command(
    "varve consume orders -d data --from 2026-03-01T12:00:00 --json",
    "varve consume orders --last 10 --template '%p:%o %k=%v\\n' -b kafka:9092",
)
@options.topic
@click.option(
    "--from",
    "start",
    type=options.POSITION,
    help="beginning, end, an offset, @milliseconds, a time (UTC), or -10m for ten minutes ago.",
)
@click.option("--to", "end", type=options.POSITION, help="Stop before this position.")
@options.number("--last", min=1, help="Start this many offsets before the end of each partition.")
@options.number("-n", "--limit", help="At most this many records.")
@options.partition
@click.option("-f", "--follow", is_flag=True, help="With a broker: wait for more, until Ctrl-C.")
@click.option(
    "-g",
    "--group",
    metavar="GROUP",
    help="With a broker: join this group, without committed offsets at the beginning, and commit "
    "what was read.",
)
@click.option(
    "--isolation",
    type=click.Choice(_ISOLATION),
    default=_ISOLATION[0],
    help="Whether open and aborted transactions are read.",
)
@click.option("--template", metavar="TEXT", help=r"The form of a record, such as '%p:%o %k=%v\n'.")
@click.option(
    "-K", "--key-separator", metavar="SEP", help=r"Print keys too, followed by this; \t is a tab."
)
@click.option("--headers", is_flag=True, help="Print headers too, before the rest.")
@options.where
@options.output
def consume(
    topic: str,
    where: Where,
    output: Output,
    start: ReadPosition | None,
    end: ReadPosition | None,
    last: int | None,
    limit: int | None,
    partition: int | None,
    follow: bool,
    group: str | None,
    isolation: str,
    template: str | None,
    key_separator: str | None,
    headers: bool,
) -> None:
    """Print the records of a topic.

    It exits at the end of the topic. Records of one partition keep their order; null is printed as
    `null`. Templates have %v value, %k key, %h headers as name=value,name=value, %T timestamp in
    milliseconds, %t topic, %p partition, %o offset, %S and %K the sizes of value and key, and \\n
    \\t \\xNN.
    """
    if group is not None and (start, end, last, partition) != (None, None, None, None):
        raise click.UsageError(
            "--group reads from the group's offsets: leave out --from, --to, --last and "
            "--partition (`varve group reset-offsets` moves a group)"
        )
    if start is not None and last is not None:
        raise click.UsageError("--from and --last exclude each other")
    if follow and end is not None:
        raise click.UsageError("--follow and --to exclude each other")
    if not where.is_broker and (follow or group is not None):
        raise click.UsageError(
            "--follow and --group need a broker: start one with `varve serve -d DIR`, and use "
            "--bootstrap instead of --dir"
        )
    writer = choose_writer(
        topic,
        template=template,
        key_separator=key_separator,
        has_headers=headers,
        is_json=output.is_json,
        is_terminal=sys.stdout.isatty(),
    )
    out = sys.stdout.buffer
    is_committed = isolation == "read_committed"
    if where.is_broker:
        from varve.brokers.consuming import ConsumeRequest, consume

        request = ConsumeRequest(
            topic,
            partition,
            start or BEGINNING,
            end or END,
            last,
            limit,
            follow,
            group,
            is_committed,
        )
        records = consume(where.client(), request, out.flush)
    else:
        records = itertools.islice(
            _read(where, topic, partition, start or BEGINNING, end or END, last, isolation), limit
        )
    for record in records:
        out.write(writer.write(record))
    out.flush()


def _read(
    where: Where,
    name: str,
    number: int | None,
    start: ReadPosition,
    end: ReadPosition,
    last: int | None,
    isolation: str,
) -> Iterator[StoredRecord]:
    """Records of a directory, one partition after the other."""
    from varve.commit_log import Isolation

    with where.open_store(maintain=False) as store:
        topic = find_topic(store, name)
        partitions = topic.partitions if number is None else [topic.partition(number)]
        if PositionKind.OFFSET in (start.kind, end.kind) and len(partitions) > 1:
            raise InvalidRequest(
                f"topic {name} has {len(partitions)} partitions, each with its own offsets; name "
                "one with --partition"
            )
        for partition in partitions:
            first = _resolve(partition, start)
            if last is not None:
                offsets = partition.offsets()
                first = max(offsets.log_start, offsets.end - last)
            yield from partition.read(
                start=first, end=_resolve(partition, end), isolation=Isolation(isolation)
            )


def _resolve(partition: "Partition", position: ReadPosition) -> int:
    """The offset of a position."""
    offsets, is_time = partition.offsets(), position.kind is PositionKind.TIME
    at_time = partition.offset_for_time(position.number) if is_time else None
    return position.resolve(first=offsets.log_start, end=offsets.end, at_time=at_time)


# get


@command(
    "varve get scores alice -d data", "varve get scores AAEC --key-encoding base64 -d data --json"
)
@options.topic
@click.argument("key", metavar="KEY")
@options.number(
    "-p",
    "--partition",
    help="The partition; default the one that Kafka's default partitioner chooses for the key.",
)
@click.option(
    "--key-encoding",
    type=click.Choice(_KEY_ENCODINGS),
    default="utf8",
    help="How KEY is written.",
)
@options.directory
@options.output
def get(
    topic: str, key: str, where: Where, output: Output, partition: int | None, key_encoding: str
) -> None:
    """Print the latest value of a key.

    Records of open and aborted transactions do not count. The exit status is 1 if the key has no
    record or is deleted; with --json a deleted key still shows its last record, in the format of
    `varve consume --json`. Missing key indexes are built, so the first lookup takes longer.
    """
    data = _decode_key(key, key_encoding)
    with where.open_store(maintain=False) as store:
        record = find_topic(store, topic).get(data, partition=partition)
    if record is None:
        raise NotFound(f"topic {topic} has no record with key {key!r}")
    if output.is_json or record.value is not None:
        writer = choose_writer(topic, is_json=output.is_json, is_terminal=sys.stdout.isatty())
        sys.stdout.buffer.write(writer.write(record))
        sys.stdout.buffer.flush()
    if record.value is None:
        time = format_moment(record.timestamp, SystemClock().now_ms())
        raise NotFound(
            f"key {key!r} of topic {topic} was deleted by offset {record.offset} of partition "
            f"{record.partition}, {time}"
        )


def _decode_key(key: str, encoding: str) -> bytes:
    try:
        if encoding == "base64":
            return base64.b64decode(key, validate=True)
        if encoding == "hex":
            return bytes.fromhex(key)
    except ValueError as error:
        raise click.BadParameter(
            f"{key!r:.80} is not {encoding}; --key-encoding says how it is written",
            param_hint="'KEY'",
        ) from error
    return key.encode(errors="surrogateescape")
