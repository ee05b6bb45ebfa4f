"""The options of Kafka's tools, and what varve's commands have instead."""

from collections.abc import Collection, Mapping
from typing import Final

TOPIC: Final = "TOPIC"
GROUP: Final = "GROUP"
_CLIENT_SETTING: Final = ("-X NAME=VALUE",)

KAFKA_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "--add-config": ("--set NAME=VALUE",),
    "--bootstrap-server": ("--bootstrap HOST:PORT",),
    "--broker-list": ("--bootstrap HOST:PORT",),
    "--by-duration": ("--to -DURATION, such as --to -10m",),
    "--command-property": _CLIENT_SETTING,
    "--compression-codec": ("--codec NAME",),
    "--compression-type": ("--codec NAME",),
    "--config": ("--set NAME=VALUE", "--command-config FILE"),
    "--consumer-property": _CLIENT_SETTING,
    "--consumer.config": ("--command-config FILE",),
    "--delete-config": ("--unset NAME",),
    "--execute": ("--dry-run to try; without it the change is made",),
    "--from-beginning": ("--from POSITION; without it all records are read from the beginning",),
    "--group": (GROUP,),
    "--host": ("--listen HOST:PORT",),
    "--isolation-level": ("--isolation LEVEL",),
    "--max-messages": ("--limit N",),
    "--offset": ("--from OFFSET", "--before OFFSET"),
    "--offsets-decoder": ("--values, which prints records of internal topics as bytes",),
    "--override": ("--set NAME=VALUE",),
    "--port": ("--listen HOST:PORT",),
    "--producer-property": _CLIENT_SETTING,
    "--producer.config": ("--command-config FILE",),
    "--property": _CLIENT_SETTING,
    "--reader-property": ("--key-separator SEP",),
    "--replication-factor": ("--replicas N",),
    "--request-required-acks": ("--acks N",),
    "--to-datetime": ("--to TIME",),
    "--to-earliest": ("--to beginning",),
    "--to-latest": ("--to end",),
    "--to-offset": ("--to OFFSET",),
    "--topic": (TOPIC,),
    "--transaction-log-decoder": ("--values, which prints records of internal topics as bytes",),
    "--zookeeper": ("--bootstrap HOST:PORT",),
}
"""By option of Kafka: options of varve, of which the first that a command has is meant.

A word in capitals is an argument.
"""


def find_counterpart(option: str, known: Collection[str]) -> str | None:
    """What a command with the known options and arguments has for an option of Kafka."""
    for counterpart in KAFKA_OPTIONS.get(option, ()):
        if counterpart.split()[0].rstrip(",;") in known:
            is_argument = counterpart.isupper() and not counterpart.startswith("-")
            return f"the argument {counterpart}" if is_argument else counterpart
    return None
