"""Apache Kafka's command line tools do their work against the server."""

import json
from pathlib import Path

import pytest

from tests.conformance.tools.kafka_tools import KafkaTools, ToolFailed, rows
from tests.support.kafka_server import ServerProcess
from varve.wire.apis import APIS

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

PROTOCOLS = ["classic", "consumer"]
NO_PATIENCE = ["--timeout-ms", "20000"]


class Tools:
    """The tools, told of the server."""

    def __init__(self, tools: KafkaTools, address: str) -> None:
        self._tools = tools
        self.address = address

    def run(self, tool: str, *arguments: str, lines: str = "") -> str:
        return self._tools.run(tool, "--bootstrap-server", self.address, *arguments, lines=lines)

    def run_bare(self, tool: str, *arguments: str) -> str:
        return self._tools.run(tool, *arguments)

    def run_alone(self, tool: str, *arguments: str) -> str:
        return self._tools.run_alone(tool, "--bootstrap-server", self.address, *arguments)

    def create(self, topic: str, partitions: int = 1, *arguments: str) -> None:
        self.run(
            "kafka-topics",
            "--create",
            *("--topic", topic),
            *("--partitions", str(partitions)),
            *arguments,
        )

    def produce(self, topic: str, *lines: str) -> None:
        self.run(
            "kafka-console-producer",
            *("--topic", topic),
            "--sync",
            *("--property", "parse.key=true"),
            *("--property", "key.separator=="),
            lines="\n".join(lines),
        )

    def consume(self, topic: str, count: int, *arguments: str) -> list[str]:
        """The values, sorted."""
        output = self.run(
            "kafka-console-consumer",
            *("--topic", topic),
            "--from-beginning",
            *("--max-messages", str(count)),
            *NO_PATIENCE,
            *arguments,
        )
        *values, last = [line for line in output.splitlines() if line]
        assert last == f"Processed a total of {count} messages"
        return sorted(values)

    def offsets(self, topic: str, time: str = "latest") -> list[str]:
        return self.run("kafka-get-offsets", "--topic", topic, "--time", time).split()


@pytest.fixture
def kafka(tools: KafkaTools, server: ServerProcess) -> Tools:
    return Tools(tools, server.bootstrap)


def test_topics_are_made_described_grown_and_deleted(kafka: Tools, name: str) -> None:
    kafka.create(name, 2, "--config", "retention.ms=86400000", "--replication-factor", "1")
    with pytest.raises(ToolFailed, match="TopicExistsException"):
        kafka.create(name)
    kafka.create(name, 2, "--if-not-exists")
    kafka.run("kafka-topics", "--alter", "--topic", name, "--partitions", "3")
    described = kafka.run("kafka-topics", "--describe", "--topic", name)
    assert "PartitionCount: 3\tReplicationFactor: 1\tConfigs: " in described
    assert "retention.ms=86400000" in described
    assert described.count("Leader: 1\tReplicas: 1\tIsr: 1") == 3
    assert kafka.run("kafka-topics", "--describe", "--under-replicated-partitions").strip() == ""
    assert name in kafka.run("kafka-topics", "--list").split()
    kafka.run("kafka-topics", "--delete", "--topic", name)
    assert name not in kafka.run("kafka-topics", "--list").split()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_is_listed_described_reset_and_deleted(
    kafka: Tools, name: str, protocol: str
) -> None:
    kafka.create(name, 2)
    kafka.produce(name, "a=1", "b=2", "c=3", "a=4")
    group = ["--group", name]
    consumer = [*group, "--consumer-property", f"group.protocol={protocol}"]
    assert kafka.consume(name, 4, *consumer) == ["1", "2", "3", "4"]

    listed = rows(kafka.run("kafka-consumer-groups", "--list", "--state", "--type"))
    assert [name, protocol.capitalize(), "Empty"] in listed
    assert name in kafka.run("kafka-groups", "--list")

    def committed() -> int:
        table = rows(kafka.run("kafka-consumer-groups", "--describe", *group))
        cells = [row for row in table if row[:2] == [name, name]]
        assert len(cells) == 2
        assert all(int(cell[3]) + int(cell[5]) == int(cell[4]) for cell in cells)
        return sum(int(row[3]) for row in cells)

    def reset(*arguments: str) -> None:
        kafka.run("kafka-consumer-groups", "--reset-offsets", *group, *arguments)

    assert committed() == 4
    reset("--topic", name, "--to-earliest", "--dry-run")
    assert committed() == 4
    reset("--topic", name, "--to-earliest", "--execute")
    assert committed() == 0
    reset("--all-topics", "--to-latest", "--execute")
    assert committed() == 4
    reset("--topic", f"{name}:0", "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    reset("--topic", f"{name}:1", "--to-offset", "0", "--execute")
    assert committed() == 0
    assert kafka.consume(name, 4, *consumer) == ["1", "2", "3", "4"]

    for details in (["--members", "--verbose"], ["--state"]):
        assert "no active members" in kafka.run(
            "kafka-consumer-groups", "--describe", *group, *details
        )
    deleted = kafka.run("kafka-consumer-groups", "--delete-offsets", *group, "--topic", name)
    assert deleted.count("Successful") == 2
    assert "successful" in kafka.run("kafka-consumer-groups", "--delete", *group)
    assert name not in kafka.run("kafka-consumer-groups", "--list").split()


def test_settings_of_topics_and_the_broker_are_altered(kafka: Tools, name: str) -> None:
    kafka.create(name, 1, "--config", "retention.ms=86400000")
    topic = ["--entity-type", "topics", "--entity-name", name]
    changes = ["--add-config", "cleanup.policy=compact", "--delete-config", "retention.ms"]
    kafka.run("kafka-configs", "--alter", *topic, *changes)
    described = kafka.run("kafka-configs", "--describe", *topic)
    assert "cleanup.policy=compact" in described
    assert "retention.ms" not in described
    assert "retention.ms=604800000" in kafka.run("kafka-configs", "--describe", *topic, "--all")
    with pytest.raises(ToolFailed, match="InvalidConfiguration"):
        kafka.run("kafka-configs", "--alter", *topic, "--add-config", "segment.bytes=never")

    defaults = ["--entity-type", "brokers", "--entity-default"]
    kafka.run("kafka-configs", "--alter", *defaults, "--add-config", "log.retention.ms=1000000")
    described = kafka.run("kafka-configs", "--describe", *defaults)
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=1000000" in described
    assert "retention.ms=1000000" in kafka.run("kafka-configs", "--describe", *topic, "--all")
    kafka.run("kafka-configs", "--alter", *defaults, "--delete-config", "log.retention.ms")
    broker = ["--entity-type", "brokers", "--entity-name", "1", "--all"]
    assert "offsets.topic.num.partitions=2" in kafka.run("kafka-configs", "--describe", *broker)


def test_users_and_quotas_are_kept(kafka: Tools, name: str) -> None:
    user = ["--entity-type", "users", "--entity-name", name]
    password = "SCRAM-SHA-256=[iterations=4096,password=secret]"
    kafka.run("kafka-configs", "--alter", *user, "--add-config", password)
    assert "SCRAM-SHA-256=iterations=4096" in kafka.run("kafka-configs", "--describe", *user)
    kafka.run("kafka-configs", "--alter", *user, "--delete-config", "SCRAM-SHA-256")
    assert "SCRAM" not in kafka.run("kafka-configs", "--describe", *user)

    client = ["--entity-type", "clients", "--entity-name", name]
    kafka.run("kafka-configs", "--alter", *client, "--add-config", "producer_byte_rate=1048576")
    assert "producer_byte_rate=1048576.0" in kafka.run("kafka-configs", "--describe", *client)
    kafka.run("kafka-configs", "--alter", *client, "--delete-config", "producer_byte_rate")
    assert "producer_byte_rate" not in kafka.run("kafka-configs", "--describe", *client)


def test_rights_are_added_listed_and_removed(kafka: Tools, name: str) -> None:
    who = ["--allow-principal", f"User:{name}"]
    kafka.run("kafka-acls", "--add", *who, "--operation", "Read", "--topic", name, "--group", name)
    prefixed = ["--resource-pattern-type", "prefixed"]
    kafka.run("kafka-acls", "--add", *who, "--producer", "--topic", f"{name}-", *prefixed)
    listed = kafka.run("kafka-acls", "--list", "--principal", f"User:{name}")
    assert listed.count("permissionType=ALLOW") == 5
    assert f"name={name}-, patternType=PREFIXED" in listed
    removed = [*who, "--operation", "Read", "--topic", name, "--force"]
    kafka.run("kafka-acls", "--remove", *removed)
    listed = kafka.run("kafka-acls", "--list", "--principal", f"User:{name}")
    assert listed.count("permissionType=ALLOW") == 4


def test_records_are_deleted_and_offsets_told(kafka: Tools, name: str, tmp_path: Path) -> None:
    kafka.create(name)
    kafka.produce(name, "a=1", "a=2", "a=3")
    assert kafka.offsets(name) == [f"{name}:0:3"]
    wanted = {"partitions": [{"topic": name, "partition": 0, "offset": 2}], "version": 1}
    file = tmp_path / "wanted.json"
    file.write_text(json.dumps(wanted))
    deleted = kafka.run("kafka-delete-records", "--offset-json-file", str(file))
    assert "low_watermark: 2" in deleted
    assert kafka.offsets(name, "earliest") == [f"{name}:0:2"]
    assert kafka.offsets(name, "max-timestamp") == [f"{name}:0:2"]
    assert kafka.offsets(name, "-4") == [f"{name}:0:2"]
    assert kafka.consume(name, 1) == ["3"]


def test_directories_of_logs_are_described(kafka: Tools, name: str) -> None:
    kafka.create(name, 2)
    kafka.produce(name, "a=1")
    output = kafka.run("kafka-log-dirs", "--describe", "--topic-list", name)
    (broker,) = json.loads(output.splitlines()[-1])["brokers"]
    (directory,) = broker["logDirs"]
    sizes = {one["partition"]: one["size"] for one in directory["partitions"]}
    assert set(sizes) == {f"{name}-0", f"{name}-1"}
    assert sum(sizes.values()) > 60


def test_the_versions_that_are_served_are_told(kafka: Tools) -> None:
    printed = kafka.run("kafka-broker-api-versions")
    served = [line for line in printed.splitlines() if "usable: " in line]
    assert len(served) == len(APIS)
    assert "[usable: UNSUPPORTED" not in printed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_verifiable_clients_agree(kafka: Tools, name: str, protocol: str) -> None:
    kafka.create(name, 2)
    sent = kafka.run_alone("kafka-verifiable-producer", "--topic", name, "--max-messages", "50")
    assert sent.count("producer_send_success") == 50
    read = kafka.run(
        "kafka-verifiable-consumer",
        *("--topic", name),
        *("--group-id", name),
        *("--group-protocol", protocol),
        *("--max-messages", "50"),
        *("--reset-policy", "earliest"),
    )
    events = [json.loads(line) for line in read.splitlines() if line.startswith("{")]
    assert sum(one["count"] for one in events if one["name"] == "records_consumed") == 50
    assert all(one["success"] for one in events if one["name"] == "offsets_committed")


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_perf_tests_come_to_an_end(
    kafka: Tools, name: str, codec: str, transactional: bool
) -> None:
    kafka.create(name, 2)
    transactions = ["--transactional-id", name, "--transaction-duration-ms", "20"]
    sent = kafka.run_bare(
        "kafka-producer-perf-test",
        *("--topic", name),
        *("--num-records", "1000"),
        *("--record-size", "100"),
        *("--throughput", "-1"),
        *(transactions if transactional else []),
        *("--producer-props", f"bootstrap.servers={kafka.address}", f"compression.type={codec}"),
    )
    assert "1000 records sent" in sent
    read = kafka.run(
        "kafka-consumer-perf-test",
        *("--topic", name),
        *("--messages", "1000"),
        *("--timeout", "20000"),
    )
    assert read.splitlines()[-1].split(", ")[4] == "1000"


def test_transactions_are_listed_and_none_hangs(kafka: Tools, name: str) -> None:
    kafka.create(name)
    kafka.create(f"{name}-copy")
    kafka.produce(name, *(f"k={number}" for number in range(40)))
    kafka.run_bare(
        "transactional-message-copier",
        *("--broker-list", kafka.address),
        *("--input-topic", name, "--input-partition", "0"),
        *("--output-topic", f"{name}-copy"),
        *("--max-messages", "40", "--transaction-size", "10"),
        *("--consumer-group", name, "--transactional-id", name),
    )
    committed = ["--isolation-level", "read_committed"]
    assert len(kafka.consume(f"{name}-copy", 40, *committed)) == 40
    listed = rows(kafka.run("kafka-transactions", "list"))
    (state,) = [row[3] for row in listed if row[0] == name]
    assert state == "CompleteCommit"
    described = kafka.run("kafka-transactions", "describe", "--transactional-id", name)
    assert "CompleteCommit" in described
    producers = ["describe-producers", "--topic", f"{name}-copy", "--partition", "0"]
    assert len(rows(kafka.run("kafka-transactions", *producers))) == 2
    for where in (["--broker-id", "1"], ["--topic", name]):
        assert len(rows(kafka.run("kafka-transactions", "find-hanging", *where))) == 1


def test_the_cluster_is_one_broker(kafka: Tools) -> None:
    assert "Cluster ID: " in kafka.run_bare(
        "kafka-cluster", "cluster-id", "--bootstrap-server", kafka.address
    )
    endpoints = ["list-endpoints", "--bootstrap-server", kafka.address]
    assert len(rows(kafka.run_bare("kafka-cluster", *endpoints))) == 2
    assert "No partition reassignments found" in kafka.run("kafka-reassign-partitions", "--list")
    kafka.run("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
    assert kafka.run("kafka-features", "describe").strip() == ""


def test_kafkas_own_test_of_compatibility_passes(kafka: Tools, name: str) -> None:
    kafka.create(name)
    supported = ["offsets-for-times", "cluster-id", "create-topics", "describe-acls"]
    supported += ["describe-configs", "idempotent-producer"]
    printed = kafka.run(
        "client-compatibility-test",
        *("--topic", name),
        *("--num-cluster-nodes", "1"),
        *("--expect-record-too-large-exception", "false"),
        *(argument for one in supported for argument in (f"--{one}-supported", "true")),
    )
    assert "SUCCESS" in printed


def test_a_record_comes_back_soon(kafka: Tools, name: str) -> None:
    kafka.create(name)
    printed = kafka.run_bare("end-to-end-latency", kafka.address, name, "20", "all", "100")
    assert "Avg latency" in printed


def test_the_quorum_and_client_metrics_are_told(kafka: Tools) -> None:
    status = kafka.run("kafka-metadata-quorum", "describe", "--status")
    assert "LeaderId:               1" in status
    assert "1" in kafka.run("kafka-metadata-quorum", "describe", "--replication")
    assert kafka.run("kafka-client-metrics", "--list").strip() == ""


def test_a_group_has_settings_of_its_own(kafka: Tools, name: str) -> None:
    group = ["--entity-type", "groups", "--entity-name", name]
    own = "consumer.session.timeout.ms=50000"
    kafka.run("kafka-configs", "--alter", *group, "--add-config", own)
    assert own in kafka.run("kafka-configs", "--describe", *group)
    assert name in kafka.run("kafka-configs", "--describe", "--entity-type", "groups")
    other = "share.session.timeout.ms=50000"
    with pytest.raises(ToolFailed, match="share groups"):
        kafka.run("kafka-configs", "--alter", *group, "--add-config", other)


def test_a_transaction_is_aborted_in_its_partition(kafka: Tools, name: str) -> None:
    kafka.create(name)
    at = ["--topic", name, "--partition", "0"]
    producer = ["--producer-id", "77", "--producer-epoch", "0", "--coordinator-epoch", "0"]
    kafka.run("kafka-transactions", "abort", *at, *producer)
    described = kafka.run("kafka-transactions", "describe-producers", *at)
    assert [row[0] for row in rows(described)[1:]] == ["77"]
