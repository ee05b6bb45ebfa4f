"""The clients of a soak, each with its part of the model."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.support.kafka_clients import GroupProtocol
from tools.soak.clients import Doors, Way
from tools.soak.link import Link, Stage
from tools.soak.member import Member
from tools.soak.model import GroupModel, Keys, Sequence, Transactions
from tools.soak.resilient import Resilient
from tools.soak.topics import (
    COMPACTED,
    KEY_PARTITIONS,
    PARTITIONS,
    PLAIN,
    SEQUENCES,
    STAGES,
    transaction_partitions,
)
from tools.soak.transactor import Transactor
from tools.soak.writers import KeyWriter, Writer

_QUIET_SECONDS: Final = 10.0
"""Longer than a member that is gone holds its partitions."""
_DRAIN_SECONDS: Final = 180.0
_MADE: Final = Stage(STAGES[0], STAGES[1], "soak-making", "consumer")
_MADE_AGAIN: Final = Stage(STAGES[1], STAGES[2], "soak-making-again", "classic")


@dataclass(slots=True)
class Group:
    """Readers of `plain`; one more of them comes and goes, by one of `ways`."""

    name: str
    protocol: GroupProtocol
    ways: list[Way]
    model: GroupModel = field(default_factory=GroupModel)
    extra: Member | None = None


class Crew:
    """All who work; the driver starts and finishes them."""

    def __init__(self, doors: Doors, source: random.Random) -> None:
        self._doors = doors
        self._source = source
        self.sequences = {
            (topic, number): Sequence() for topic in SEQUENCES for number in range(PARTITIONS)
        }
        self.keys = {
            (topic, number): Keys() for topic in COMPACTED for number in range(KEY_PARTITIONS)
        }
        self.outcomes: dict[str, Transactions] = {}
        self.groups = [
            Group("soak-readers", "classic", [doors.confluent, doors.python]),
            Group("soak-new-readers", "consumer", [doors.confluent_tls, doors.confluent]),
        ]
        self.links = [
            Link(doors.steady_tls, _MADE, 0, self._random()),
            Link(doors.steady, _MADE, 1, self._random()),
            Link(doors.aio_tls, _MADE_AGAIN, 0, self._random()),
        ]
        self._workers = [*self._writers(), *self._transactors(), *self._members()]

    def _random(self) -> random.Random:
        return random.Random(self._source.getrandbits(64))

    def _writers(self) -> Iterator[Resilient]:
        doors = self._doors
        ways = [
            (doors.confluent, "zstd"),
            (doors.python_tls, "gzip"),
            (doors.aio, "lz4"),
            (doors.confluent_tls, "snappy"),
        ]
        for number, (way, codec) in enumerate(ways):
            mine = {one: found for one, found in self.sequences.items() if one[1] == number}
            yield Writer(way, codec, mine, self._random())
        for number, (way, codec) in enumerate([(doors.confluent, "none"), (doors.aio_tls, "gzip")]):
            keys = {one: found for one, found in self.keys.items() if one[1] == number}
            yield KeyWriter(way, codec, keys, self._random())

    def _transactors(self) -> Iterator[Resilient]:
        doors = self._doors
        ways = [(doors.confluent, "lz4"), (doors.aio, "none"), (doors.forgetful, "gzip")]
        for way, codec in ways:
            model = Transactions()
            made = Transactor(
                way,
                codec,
                transaction_partitions(),
                model,
                self._random(),
                commits_in_part=way is doors.forgetful,
            )
            self.outcomes[made.id] = model
            yield made

    def _members(self) -> Iterator[Resilient]:
        for group in self.groups:
            for way in group.ways:
                yield self._member(group, way)

    def _member(self, group: Group, way: Way) -> Member:
        return Member(way, PLAIN, group.name, group.protocol, group.model, self._random())

    def start(self) -> None:
        for worker in (*self._workers, *self.links):
            worker.start()

    def change_members(self) -> Resilient | None:
        """One more in a group, or one less: the one that is to be finished."""
        group = self._source.choice(self.groups)
        if group.extra is not None:
            gone, group.extra = group.extra, None
            return gone
        group.extra = self._member(group, self._source.choice(group.ways))
        group.extra.start()
        return None

    def leave(self) -> Iterator[Resilient]:
        """Those to be finished: first who gives others work, and the links when all is made."""
        yield from self._workers
        yield from (group.extra for group in self.groups if group.extra is not None)
        self._drain()
        yield from self.links

    def _drain(self) -> None:
        deadline = time.monotonic() + _DRAIN_SECONDS
        while (now := time.monotonic()) < deadline:
            if all(now - link.busy_at > _QUIET_SECONDS for link in self.links):
                return
            time.sleep(0.5)  # noqa: TID251, real processes in real time

    def sent_count(self) -> int:
        return sum(one.sent for one in self.sequences.values()) + sum(
            one.sent for one in self.keys.values()
        )

    def ended_count(self) -> int:
        """Transactions, those of the links with them."""
        told = sum(len(one.committed) + len(one.aborted) for one in self.outcomes.values())
        return told + sum(one.committed_count + one.aborted_count for one in self.links)

    def read_count(self) -> int:
        return sum(one.model.read_count for one in self.groups)

    def figures(self) -> dict[str, int | float]:
        outcomes = self.outcomes.values()
        classic, new = self.groups
        return {
            "records sent": self.sent_count(),
            "records that clients gave up on": sum(
                len(one.uncertain) for one in self.sequences.values()
            ),
            "records sent to compacted topics": sum(one.sent for one in self.keys.values()),
            "transactions committed": sum(len(one.committed) for one in outcomes),
            "transactions aborted": sum(len(one.aborted) for one in outcomes),
            "transactions committed in part by kafka-python": sum(
                len(one.partial) for one in outcomes
            ),
            "transactions with unknown end": sum(len(one.uncertain) for one in outcomes),
            "transactions of the chain committed": sum(one.committed_count for one in self.links),
            "transactions of the chain aborted": sum(one.aborted_count for one in self.links),
            "records read by the classic group": classic.model.read_count,
            "records read by the consumer group": new.model.read_count,
        }
