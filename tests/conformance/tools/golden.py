"""Writes the golden directories: `python -m tests.conformance.tools.golden TARGET`.

Layout     TARGET/<name>/data       a broker's log directory, its partitions and checkpoints
           TARGET/<name>/dump       Apache Kafka's dump of every partition
           TARGET/<name>/manifest.json  what Apache Kafka's consumer and admin client saw
           TARGET/recovery.json     what Apache Kafka's loader made of the directories, damaged too
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.tools.broker import Broker
from tests.conformance.tools.dump import dump_partition
from tests.conformance.tools.golden_reader import fingerprint
from tests.conformance.tools.program import pause
from tests.conformance.tools.recovery import recovery_cases
from tests.conformance.tools.scenario import GIVEN_TIME_MS, Topic, Writer, topics
from tests.conformance.tools.shell import Answer, JavaShell, from_text
from tests.conformance.tools.toolchain import Toolchain, prepare_toolchain

TIMES = (0, GIVEN_TIME_MS, GIVEN_TIME_MS + 2, GIVEN_TIME_MS + 51, 1 << 50)
INTERNAL_TOPIC = "__transaction_state"
PRINTED = ("compacted-0", "purged-0", "transactions-0", "trimmed-0")


@dataclass(frozen=True, slots=True)
class Flavour:
    """How a golden directory comes about."""

    name: str
    clean: bool
    transaction_version: int
    file_delete_delay_ms: int
    settings: Mapping[str, str]


FLAVOURS = (
    Flavour("clean", True, 2, 0, {}),
    Flavour(
        "unclean",
        False,
        1,
        600_000,
        {
            "log.flush.offset.checkpoint.interval.ms": "500",
            "log.flush.start.offset.checkpoint.interval.ms": "500",
        },
    ),
)


def main(arguments: Sequence[str]) -> int:
    """Replaces the golden directories below the given folder."""
    target = Path(arguments[0])
    toolchain = prepare_toolchain()
    for flavour in FLAVOURS:
        shutil.rmtree(target / flavour.name, ignore_errors=True)
        with tempfile.TemporaryDirectory() as home:
            write_golden(toolchain, flavour, Path(home), target / flavour.name)
    write_json(target / "recovery.json", recovery_cases(toolchain, target))
    return 0


def write_golden(toolchain: Toolchain, flavour: Flavour, home: Path, target: Path) -> None:
    """Runs the scenario in two visits and keeps the directory, the dumps and the manifest."""
    chosen = list(topics(file_delete_delay_ms=flavour.file_delete_delay_ms))
    with Broker(toolchain, home, flavour.settings) as broker:
        broker.format({"transaction.version": flavour.transaction_version})
        broker.start()
        with broker.clients() as clients:
            topic_ids = [first_visit(clients, topic, broker.data) for topic in chosen]
        broker.stop()
        broker.start()
        with broker.clients() as clients:
            for topic in chosen:
                if topic.second_visit is not None:
                    topic.second_visit(Writer(clients, topic.name, broker.data))
            pause(1.5)
            partitions = {
                f"{topic.name}-0": {
                    "topic_id": topic_id,
                    "configs": dict(topic.configs),
                    **observe(clients, topic.name),
                }
                for topic, topic_id in zip(chosen, topic_ids, strict=True)
            }
            partitions[f"{INTERNAL_TOPIC}-0"] = observe(clients, INTERNAL_TOPIC)
            end(broker, flavour)
        shutil.copytree(broker.data, target / "data")
    manifest = {"clean": flavour.clean, "partitions": partitions}
    write_json(target / "manifest.json", manifest)
    write_dumps(toolchain, target, sorted(partitions))


def first_visit(clients: JavaShell, topic: Topic, data: Path) -> str:
    """Creates and fills a topic; returns its id."""
    created = clients.call("create_topic", topic=topic.name, configs=dict(topic.configs))
    topic.first_visit(Writer(clients, topic.name, data))
    return str(created["topic_id"])


def end(broker: Broker, flavour: Flavour) -> None:
    if flavour.clean:
        broker.stop()
    else:
        broker.kill()


def observe(clients: JavaShell, topic: str) -> dict[str, Any]:
    """What Apache Kafka's consumer and admin client see of a partition."""
    everything = clients.call("read", topic=topic, isolation="read_uncommitted")
    committed = clients.call("read", topic=topic, isolation="read_committed")
    stamps = sorted({record["timestamp"] for record in everything["records"]})
    probes = sorted({*TIMES, *stamps[:: max(1, len(stamps) // 8)], *(s + 1 for s in stamps[-1:])})
    offsets = clients.call("offsets", topic=topic, times=probes)
    return {
        **offsets,
        "producers": sorted(
            clients.call("producers", topic=topic)["producers"], key=lambda p: p["producer_id"]
        ),
        "records": [describe(record) for record in everything["records"]],
        "committed_offsets": [record["offset"] for record in committed["records"]],
    }


def describe(record: Answer) -> list[Any]:
    """A record as a row: offset, timestamp, type, leader epoch, key, value, headers."""
    return [
        record["offset"],
        record["timestamp"],
        record["timestamp_type"],
        record["leader_epoch"],
        fingerprint(from_text(record["key"])),
        fingerprint(from_text(record["value"])),
        [[name, fingerprint(from_text(value))] for name, value in record["headers"]],
    ]


def write_dumps(toolchain: Toolchain, target: Path, partitions: Sequence[str]) -> None:
    (target / "dump").mkdir()
    for partition in partitions:
        option = "--print-data-log" if partition in PRINTED else "--deep-iteration"
        dump = dump_partition(toolchain, target / "data" / partition, option)
        (target / "dump" / f"{partition}.txt").write_text(dump.output)
        if dump.errors:
            (target / "dump" / f"{partition}.errors.txt").write_text(dump.errors)


def write_json(path: Path, document: object) -> None:
    """Objects over several lines, the rows of a list on one each, so that differences read well."""
    path.write_text(_layout(document, "") + "\n")


def _layout(document: object, indent: str) -> str:
    inner = indent + " "
    if isinstance(document, dict) and document:
        items = [f"{inner}{_line(key)}: {_layout(value, inner)}" for key, value in document.items()]
        return "{\n" + ",\n".join(items) + "\n" + indent + "}"
    if isinstance(document, list) and any(isinstance(item, list | dict) for item in document):
        return "[\n" + ",\n".join(inner + _line(item) for item in document) + "\n" + indent + "]"
    return _line(document)


def _line(document: object) -> str:
    return json.dumps(document, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
