"""Apache Kafka's command line tools against a server, as its scripts run them.

Threads    one caller; the tools run one after the other in one virtual machine.
"""

from types import TracebackType
from typing import Final, Self

from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.toolchain import Toolchain

_PACKAGE: Final = "org.apache.kafka.tools"
MAIN_CLASSES: Final = {
    "kafka-acls": f"{_PACKAGE}.AclCommand",
    "kafka-broker-api-versions": f"{_PACKAGE}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{_PACKAGE}.ClientMetricsCommand",
    "kafka-cluster": f"{_PACKAGE}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{_PACKAGE}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{_PACKAGE}.ConsoleProducer",
    "kafka-consumer-groups": f"{_PACKAGE}.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": f"{_PACKAGE}.ConsumerPerformance",
    "kafka-delete-records": f"{_PACKAGE}.DeleteRecordsCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    "kafka-features": f"{_PACKAGE}.FeatureCommand",
    "kafka-get-offsets": f"{_PACKAGE}.GetOffsetShell",
    "kafka-groups": f"{_PACKAGE}.GroupsCommand",
    "kafka-leader-election": f"{_PACKAGE}.LeaderElectionCommand",
    "kafka-log-dirs": f"{_PACKAGE}.LogDirsCommand",
    "kafka-metadata-quorum": f"{_PACKAGE}.MetadataQuorumCommand",
    "kafka-producer-perf-test": f"{_PACKAGE}.ProducerPerformance",
    "kafka-reassign-partitions": f"{_PACKAGE}.reassign.ReassignPartitionsCommand",
    "kafka-topics": f"{_PACKAGE}.TopicCommand",
    "kafka-transactions": f"{_PACKAGE}.TransactionsCommand",
    "kafka-verifiable-consumer": f"{_PACKAGE}.VerifiableConsumer",
    "kafka-verifiable-producer": f"{_PACKAGE}.VerifiableProducer",
    "client-compatibility-test": f"{_PACKAGE}.ClientCompatibilityTest",
    "end-to-end-latency": f"{_PACKAGE}.EndToEndLatency",
    "transactional-message-copier": f"{_PACKAGE}.TransactionalMessageCopier",
}
_TOOL_SHELL: Final = "varve.conformance.ToolShell"


class ToolFailed(Exception):
    """A tool ended with another status than 0; the message is what it printed."""


class KafkaTools:
    """The tools, by the names of their scripts; a context manager that ends their process."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._toolchain = toolchain
        self._shell = JavaShell(toolchain, _TOOL_SHELL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shell.close()

    def run(self, tool: str, *arguments: str, lines: str = "") -> str:
        """What a tool printed that was given these lines to read; raises when it failed."""
        answer = self._shell.call(
            "run", tool=MAIN_CLASSES[tool], arguments=list(arguments), input=lines
        )
        if answer["status"] != 0:
            raise ToolFailed(f"{tool} {' '.join(arguments)}: {answer['output']}")
        output: str = answer["output"]
        return output

    def run_alone(self, tool: str, *arguments: str) -> str:
        """The same in a process of its own, for tools that need its end."""
        done = self._toolchain.run(MAIN_CLASSES[tool], *arguments)
        if done.returncode != 0:
            raise ToolFailed(f"{tool} {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout


def rows(table: str) -> list[list[str]]:
    """The cells of a printed table, its heads first; lines without any are left out."""
    return [line.split() for line in table.splitlines() if line.strip()]
