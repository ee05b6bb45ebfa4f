"""`varve get`: the latest value of a key, found through the key indexes."""

import base64
import binascii
import sys
from typing import Annotated

import typer

from varve.cli.log_output import FormatRecord, json_format, text_format
from varve.cli.moments import show_moment
from varve.cli.store_access import Directory, find_topic, open_existing, parse_wanted
from varve.cli.tier_access import StoreSettings, tier_settings
from varve.foundation.clock import SystemClock
from varve.foundation.errors import NotFound


def command(
    directory: Directory,
    wanted: Annotated[
        str,
        typer.Argument(metavar="TOPIC[:PARTITION]", help="The topic, or one of its partitions."),
    ],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key.")],
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            "-p",
            min=0,
            help="Look here; by default where Kafka's default partitioner puts the key.",
        ),
    ] = None,
    is_base64: Annotated[
        bool, typer.Option("--base64", help="The key is written in base64.")
    ] = False,
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    as_json: Annotated[
        bool, typer.Option("--json", help="The whole record, as `varve log read --json` has it.")
    ] = False,
) -> None:
    """Print the latest value of a key.

    Records of undecided and aborted transactions do not count. The exit status is 1 when the key
    was never there or is deleted; with --json a deleted one still shows its last record. Key
    indexes are built where they are missing, so that the first look into a directory takes longer.

    \b
    Examples:
      varve get data scores alice
      varve get data scores alice --json
      varve get data scores AAEC --base64
    """
    topic, named = parse_wanted(wanted)
    assert topic is not None
    if named is not None and partition not in (None, named):
        raise typer.BadParameter(f"{wanted!r} names partition {named}, --partition {partition}")
    partition = partition if named is None else named
    data = _decode(key) if is_base64 else key.encode(errors="surrogateescape")
    settings = tier_settings("", store_settings)
    with open_existing([directory], maintain=False, settings=settings) as store:
        record = find_topic(store, topic).get(data, partition)
    if record is None:
        raise NotFound(f"topic {topic} has no record of key {key!r}")
    format: FormatRecord = json_format
    if not as_json:
        format = text_format(None, is_terminal=sys.stdout.isatty())
    if as_json or record.value is not None:
        sys.stdout.buffer.write(format(record))
        sys.stdout.buffer.flush()
    if record.value is None:
        moment = show_moment(record.timestamp, SystemClock().now_ms())
        raise NotFound(
            f"key {key!r} of topic {topic} was deleted by offset {record.offset} of partition "
            f"{record.partition}, {moment}"
        )


def _decode(key: str) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError) as error:
        raise typer.BadParameter(f"{key!r} is no base64: {error}") from error
