"""Compares what a reader finds in the log with the model; each finding is a sentence."""

from collections.abc import Callable, Iterator
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tools.soak.model import GroupModel, Keys, Partition, Sequence, number_of

_WAIT_SECONDS: Final = 60.0
_POLL_COUNT: Final = 2_000

Found = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


def read_partition(
    bootstrap: str, partition: Partition, start: int = OFFSET_BEGINNING
) -> Iterator[Found]:
    """Committed records, until the end of the partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "soak-judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(*partition, start)])
        while True:
            messages = consumer.consume(_POLL_COUNT, 0.2) or consumer.consume(1, _WAIT_SECONDS)
            if not messages:
                raise AssertionError(f"nothing of {partition} came for {_WAIT_SECONDS} s")
            for message in messages:
                error = message.error()
                if error is None:
                    offset = message.offset()
                    assert offset is not None
                    yield offset, message.key(), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
                elif not error.retriable():
                    raise AssertionError(f"{partition}: {error}")
    finally:
        consumer.close()


class SequenceCheck:
    """Goes through one partition as it grows; what it has seen need not be read again."""

    def __init__(self, partition: Partition, *, may_begin_late: bool) -> None:
        self._partition = partition
        self._may_begin_late = may_begin_late
        self._offset = OFFSET_BEGINNING
        self._next = 0
        self.begins_at = 0
        self.count = 0

    def advance(self, bootstrap: str, sequence: Sequence) -> list[str]:
        """Reads on to the end; all that was acknowledged before must be there, in order."""
        acknowledged = sequence.acknowledged
        findings = []
        for offset, _, value in read_partition(bootstrap, self._partition, self._offset):
            number = number_of(value)
            if self.count == 0 and self._may_begin_late:
                self.begins_at = self._next = number
            if number < self._next:
                findings.append(f"{self._at(offset)}: record {number} again, or out of order")
            findings += self._missing(number, sequence.uncertain, f"before {self._at(offset)}")
            self._next = max(self._next, number + 1)
            self._offset = offset + 1
            self.count += 1
        findings += self._missing(acknowledged, sequence.uncertain, "at the end")
        return findings[:10]

    def _at(self, offset: int) -> str:
        return f"{self._partition} at {offset}"

    def _missing(self, end: int, uncertain: set[int], where: str) -> list[str]:
        lost = [one for one in range(self._next, end) if one not in uncertain]
        if not lost:
            return []
        return [f"{self._partition}: {len(lost)} records from {lost[0]} on are lost {where}"]


def check_keys(bootstrap: str, partition: Partition, keys: Keys) -> tuple[list[str], int]:
    """The latest of each key is there; how many records there are."""
    latest: dict[bytes, int | None] = {}
    highest: dict[bytes, int] = {}
    findings, count = [], 0
    for offset, key, value in read_partition(bootstrap, partition):
        assert key is not None
        count += 1
        number = None if value is None else number_of(value)
        if number is not None:
            if number <= highest.get(key, -1):
                findings.append(f"{partition} at {offset}: {key!r} {number} again, or out of order")
            highest[key] = number
        latest[key] = number
    for key, number in keys.latest.items():
        allowed = {number, *keys.uncertain.get(key, ())}
        if latest.get(key) not in allowed:
            findings.append(f"{partition}: {key!r} is {latest.get(key)}, not one of {allowed}")
    for key in latest.keys() - keys.latest.keys() - keys.uncertain.keys():
        findings.append(f"{partition}: {key!r} was never written")
    return findings[:10], count


def check_group(
    committed: dict[Partition, int], topic: str, ends: dict[int, int], model: GroupModel
) -> list[str]:
    """Commits that were acknowledged are kept, and no record was passed over."""
    findings = []
    for number in ends:
        kept = committed.get((topic, number), 0)
        told = model.acknowledged.get(number, 0)
        if kept < told:
            findings.append(f"group at {topic}-{number}: {kept} is kept, {told} was acknowledged")
        if kept > ends[number]:
            findings.append(f"group at {topic}-{number}: {kept} is behind the end {ends[number]}")
        if model.has_skipped(number):
            end = model.read_end(number)
            findings.append(f"group at {topic}-{number}: nobody has read {end}, but later ones")
    return findings


def gather(checks: list[Callable[[], list[str]]]) -> list[str]:
    """All findings; a check that fails is one."""
    findings: list[str] = []
    for check in checks:
        try:
            findings += check()
        except Exception as error:
            findings.append(f"{type(error).__name__}: {error}")
    return findings
