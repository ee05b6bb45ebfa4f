"""`varve get`: the latest value of a key, found through the key indexes."""

import base64
import sys
from typing import Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Output
from varve.cli.record_format import choose_writer, from_stored
from varve.cli.where import Where, find_topic
from varve.foundation.clock import SystemClock
from varve.foundation.errors import NotFound
from varve.foundation.units import format_moment

_KEY_ENCODINGS: Final = ("utf8", "base64", "hex")


@command(
    examples=(
        "varve get scores alice -d data",
        "varve get scores AAEC --key-encoding base64 -d data --json",
    )
)
@options.topic
@click.argument("key", metavar="KEY")
@click.option(
    "-p",
    "--partition",
    type=options.Number(min=0),
    metavar="N",
    help="The partition; default the one that Kafka's default partitioner chooses for the key.",
)
@click.option(
    "--key-encoding",
    type=click.Choice(_KEY_ENCODINGS),
    default="utf8",
    show_default=True,
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
        writer = choose_writer(
            template=None,
            key_separator=None,
            has_headers=False,
            is_json=output.is_json,
            is_terminal=sys.stdout.isatty(),
        )
        sys.stdout.buffer.write(writer.write(from_stored(topic, record)))
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
