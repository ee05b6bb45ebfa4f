"""`varve dedup run` from topic to topic of Apache Kafka: killed, and exactly once all the same.

Records are written, and results read, by librdkafka. The model judges what a reader of committed
records finds in the input.
"""

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.conformance.tools.broker import Broker
from tests.conformance.tools.program import pause
from tests.conformance.tools.toolchain import Toolchain
from tests.support.dedup_cases import (
    NOW_MS,
    OUTPUT,
    SIDE,
    SOURCE,
    draw_records,
    model_of,
    rules_of,
)
from varve.foundation.clock import SystemClock
from varve.records import Record

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

PARTITIONS = 2
DOOR = "SAFE"
JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_dedup="of-the-broker";'
)
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "dedup",
    "sasl.password": "of-the-broker",
}
RULES = rules_of()
FLAGS = ("--by", "key", "--before", "1s", "--after", "500ms", "--lateness", "2s")
ROUND_RECORDS = 600
PATIENCE_SECONDS = 60.0
SHIFT_MS = SystemClock().now_ms() - NOW_MS
"""Stories happen at one moment; Kafka deletes what is older than its retention by the clock."""


@pytest.fixture(scope="module")
def broker(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{DOOR.lower()}.plain.sasl.jaas.config": JAAS,
    }
    home = tmp_path_factory.mktemp("kafka")
    with Broker(toolchain, home, settings, doors={DOOR: "SASL_PLAINTEXT"}) as made:
        made.format()
        made.start()
        yield made


class Stage:
    """The topics of a deduplication, and runs of it through the door that asks for a login."""

    def __init__(self, broker: Broker, state: Path, seed: int) -> None:
        self.state = state
        self._broker = broker
        self._random = random.Random(seed)
        self._count = 0
        self._own: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.address}
        self._plain = Producer({**self._own, "linger.ms": 5, "batch.num.messages": 9})
        self._looker = Consumer({**self._own, "group.id": "ends"})
        admin = AdminClient(self._own)
        made = admin.create_topics([NewTopic(SOURCE, PARTITIONS, 1)])
        made[SOURCE].result(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._looker.close()

    # The input

    def fill(self) -> None:
        """Records with copies, some of them in transactions that are committed or aborted."""
        transactions = self.begin("ended")
        for start in range(0, ROUND_RECORDS, 50):
            self.put(self._plain, 42)
            transactions.begin_transaction()
            self.put(transactions, 8)
            if start % 100:
                transactions.commit_transaction(PATIENCE_SECONDS)
            else:
                transactions.abort_transaction(PATIENCE_SECONDS)

    def begin(self, name: str) -> Producer:
        made = Producer({**self._own, "transactional.id": name, "transaction.timeout.ms": 600_000})
        made.init_transactions(PATIENCE_SECONDS)
        return made

    def put(self, producer: Producer, count: int, partition: int | None = None) -> None:
        drawn = draw_records(self._random, count, first=self._count)
        self._count += count
        for one in drawn:
            chosen = self._random.randrange(PARTITIONS) if partition is None else partition
            # librdkafka sends no record without a time.
            time_ms = NOW_MS - 10_000_000 if one.timestamp < 0 else one.timestamp
            producer.produce(SOURCE, one.value, one.key, chosen, timestamp=time_ms + SHIFT_MS)
        assert producer.flush(PATIENCE_SECONDS) == 0

    # Runs

    def run(self, *, kill_after: int | None = None, login: bool = True) -> int:
        """The exit code; killed once the output has grown by so many offsets."""
        settings = [f"-X{name}={value}" for name, value in LOGIN.items()] if login else []
        where = ("-b", self._broker.door(DOOR), "--state", str(self.state), "--chunk-bytes", "900")
        order = ("dedup", "run", SOURCE, "--to", OUTPUT, *FLAGS, "--late", f"side:{SIDE}", *where)
        goal = None if kill_after is None else self.output_end() + kill_after
        with subprocess.Popen(
            [sys.executable, "-m", "varve", *order, *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            deadline = monotonic() + PATIENCE_SECONDS
            while process.poll() is None and monotonic() < deadline:
                if goal is not None and self.output_end() >= goal:
                    break
                pause(0.01)
            process.kill()
            self.told = process.communicate()[1]
        return process.returncode

    def output_end(self) -> int:
        """All offsets of the output so far, whether committed or not."""
        if OUTPUT not in self._looker.list_topics(timeout=PATIENCE_SECONDS).topics:
            return 0
        places = [TopicPartition(OUTPUT, number) for number in range(PARTITIONS)]
        return sum(self._looker.get_watermark_offsets(one, PATIENCE_SECONDS)[1] for one in places)

    # What readers find

    def read(self, topic: str, partition: int) -> list[Record]:
        """What a reader of committed records finds."""
        consumer = Consumer(
            {
                **self._own,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        found: list[Record] = []
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(PATIENCE_SECONDS)) is not None:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return found
                assert error is None, error
                time_ms = message.timestamp()[1] - SHIFT_MS
                found.append(Record(message.key(), message.value(), timestamp=time_ms))
        finally:
            consumer.close()
        raise AssertionError(f"{topic}-{partition} did not end")

    def check(self) -> int:
        """Compares output and side topic with the model; gives how many records were judged."""
        count = 0
        for partition in range(PARTITIONS):
            records = self.read(SOURCE, partition)
            model = model_of(RULES, records)
            assert values(self.read(OUTPUT, partition)) == model.output
            assert values(self.read(SIDE, partition)) == model.side
            count += len(records)
        return count


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [one.value for one in records]


def test_killed_runs_write_what_the_model_does(broker: Broker, tmp_path: Path) -> None:
    with Stage(broker, tmp_path / "ids", seed=4) as stage:
        began = monotonic()
        assert stage.run(login=False) == 1
        assert "may require TLS or SASL: set security.protocol" in " ".join(stage.told.split())
        assert monotonic() - began < 20, "a door that wants a login is not waited for"

        stage.fill()
        for kill_after in (1, 15, 40):
            assert stage.run(kill_after=kill_after) == -9, stage.told
        assert stage.run() == 0, stage.told
        judged = stage.check()

        # What is open is waited for, and what lies behind it as well.
        left_open = stage.begin("open")
        left_open.begin_transaction()
        stage.put(left_open, 6, partition=0)
        stage.fill()
        assert stage.run(kill_after=15) == -9, stage.told
        assert stage.run() == 0, stage.told
        assert stage.check() > judged
        before = len(stage.read(SOURCE, 0))
        left_open.commit_transaction(PATIENCE_SECONDS)
        assert len(stage.read(SOURCE, 0)) > before + 6

        # On another machine: there is no directory of ids.
        shutil.rmtree(stage.state)
        assert stage.run(kill_after=15) == -9, stage.told
        stage.fill()
        assert stage.run() == 0, stage.told
        assert stage.check() > 2 * judged
