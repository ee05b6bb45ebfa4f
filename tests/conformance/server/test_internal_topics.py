"""The coordinators' topics hold what Apache Kafka's own tools and consumers understand."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.tools.kafka_tools import KafkaTools
from tests.conformance.tools.shell import JavaShell, to_text
from tests.conformance.tools.toolchain import Toolchain
from tests.support.kafka_server import ServerMaker, ServerProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

FORMATTERS = "org.apache.kafka.tools.consumer"
TOPIC = "letters"
RECORD = '{"key":'


@dataclass(frozen=True, slots=True)
class Used:
    """A server that had groups of both protocols and a transaction."""

    server: ServerProcess
    directory: Path


@pytest.fixture(scope="module")
def used(
    toolchain: Toolchain,
    tools: KafkaTools,
    server_maker: ServerMaker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Used]:
    directory = tmp_path_factory.mktemp("used")
    with server_maker.start(directory) as server:
        with JavaShell(toolchain, "varve.conformance.ClientShell", server.bootstrap) as clients:
            _fill(clients)
        for protocol in ("classic", "consumer"):
            tools.run(
                "kafka-console-consumer",
                *("--bootstrap-server", server.bootstrap, "--topic", TOPIC),
                *("--group", protocol, "--consumer-property", f"group.protocol={protocol}"),
                *("--from-beginning", "--max-messages", "3", "--timeout-ms", "20000"),
            )
        yield Used(server, directory)


def _fill(clients: JavaShell) -> None:
    clients.call("create_topic", topic=TOPIC)
    clients.call("open_producer", producer="p", configs={"transactional.id": "writer"})
    clients.call("begin", producer="p")
    records = [{"key": None, "value": to_text(letter)} for letter in (b"a", b"b", b"c")]
    clients.call("send", producer="p", topic=TOPIC, records=records)
    clients.call("commit", producer="p")
    clients.call("close_producer", producer="p")


def _read(tools: KafkaTools, address: str, topic: str, formatter: str) -> list[dict[str, object]]:
    """The records of a topic of the coordinators, as Kafka's formatter shows them."""
    printed = tools.run(
        "kafka-console-consumer",
        *("--bootstrap-server", address, "--topic", topic),
        *("--from-beginning", "--timeout-ms", "8000"),
        *("--formatter", f"{FORMATTERS}.{formatter}"),
    )
    decoder = json.JSONDecoder()
    found = []
    start = printed.find(RECORD)
    while start >= 0:
        record, end = decoder.raw_decode(printed, start)
        found.append(record)
        start = printed.find(RECORD, end)
    assert found, printed
    return found


def test_kafkas_consumer_reads_committed_offsets(tools: KafkaTools, used: Used) -> None:
    address = used.server.bootstrap
    records = _read(tools, address, "__consumer_offsets", "OffsetsMessageFormatter")
    committed = {
        one["key"]["data"]["group"]: one["value"]["data"]["offset"]  # type: ignore[index]
        for one in records
    }
    assert committed == {"classic": 4, "consumer": 4}


def test_kafkas_consumer_reads_groups(tools: KafkaTools, used: Used) -> None:
    address = used.server.bootstrap
    records = _read(tools, address, "__consumer_offsets", "GroupMetadataMessageFormatter")
    groups = {one["key"]["data"]["group"] for one in records}  # type: ignore[index]
    assert "classic" in groups


def test_kafkas_consumer_reads_transactions(tools: KafkaTools, used: Used) -> None:
    address = used.server.bootstrap
    records = _read(tools, address, "__transaction_state", "TransactionLogMessageFormatter")
    last = records[-1]
    assert last["key"]["data"]["transactionalId"] == "writer"  # type: ignore[index]
    complete_commit = 4
    assert last["value"]["data"]["transactionStatus"] == complete_commit  # type: ignore[index]


@pytest.mark.parametrize(
    ("topic", "decoder", "wanted"),
    [
        (
            "__consumer_offsets",
            "--offsets-decoder",
            [
                '{"type":"1","data":{"group":"classic","topic":"letters","partition":0}}',
                '{"type":"1","data":{"group":"consumer","topic":"letters","partition":0}}',
                '{"type":"2","data":{"group":"classic"}}',
                '{"type":"3","data":{"groupId":"consumer"}}',
                '{"type":"8","data":{"groupId":"consumer"',
            ],
        ),
        (
            "__transaction_state",
            "--transaction-log-decoder",
            ['"transactionalId":"writer"', '"transactionStatus":4'],
        ),
    ],
)
def test_kafkas_dump_tool_decodes_the_files(
    tools: KafkaTools, used: Used, topic: str, decoder: str, wanted: list[str]
) -> None:
    files = sorted(str(path) for path in used.directory.glob(f"{topic}-*/*.log"))
    printed = tools.run_alone("kafka-dump-log", "--files", ",".join(files), decoder)
    assert "isvalid: true" in printed
    assert "isvalid: false" not in printed
    assert "Failed" not in printed
    for text in wanted:
        assert text in printed
