"""Spark's own Kafka source and sink do their work against the server."""

import pytest

from tests.conformance.tools.shell import JavaShell, to_text
from tests.conformance.tools.spark_connector import run_connector
from tests.conformance.tools.toolchain import ToolchainMissing
from tests.support.kafka_server import ServerProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


def _fill_mixed(clients: JavaShell, topic: str) -> None:
    """A transaction that is committed, one that is aborted."""
    clients.call("create_topic", topic=topic)
    clients.call("open_producer", producer=topic, configs={"transactional.id": topic})
    for end in ("commit", "abort"):
        clients.call("begin", producer=topic)
        records = [{"key": None, "value": to_text(f"{end} {n}".encode())} for n in range(3)]
        clients.call("send", producer=topic, topic=topic, records=records)
        clients.call(end, producer=topic)
    clients.call("close_producer", producer=topic)


def test_spark_reads_writes_and_streams(
    clients: JavaShell, server: ServerProcess, name: str
) -> None:
    for topic in (name, f"{name}-copy"):
        clients.call("create_topic", topic=topic)
    _fill_mixed(clients, f"{name}-mixed")
    try:
        found = run_connector(server.bootstrap, name)
    except ToolchainMissing as missing:
        pytest.skip(f"not run with Spark's connector: {missing}")
    committed = [f"commit {n}" for n in range(3)]
    assert found == {
        "batch": sorted(f"value {n}" for n in range(100)),
        "headers": 100,
        "range": 15,
        "by_time": 100,
        "read_committed": committed,
        "read_uncommitted": [f"abort {n}" for n in range(3)] + committed,
        "first_stream": 100,
        "second_stream": 110,
    }
