"""One soak: clients at work, a server that is killed and restarted, and the judgement.

Invariant  a finding ends nothing: the run goes on, and all findings are told at its end.
Threads    workers have their own; the driver alone starts and ends the server.
"""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.soak.checks import SequenceCheck, check_group, check_keys, check_transactions, gather
from tests.soak.model import GroupModel, Keys, Partition, Sequence, Transactions
from tests.soak.plan import Action, Deed
from tests.soak.tools import check_directory, check_tier
from tests.soak.workers import KeyWriter, Member, Resilient, Transactor, Writer
from tests.support.kafka_aio import AioClient
from tests.support.kafka_clients import KafkaClient
from tests.support.kafka_confluent import ConfluentClient
from tests.support.kafka_python import PythonClient
from tests.support.soak_server import ServedProcess

_WORK_SECONDS: Final = 3.0
"""What the clients have at least between two actions."""
GROUP: Final = "soak-readers"
PARTITIONS: Final = 4
_SMALL_SEGMENTS: Final = {"segment.bytes": str(64 << 10), "file.delete.delay.ms": "1000"}
_SEQUENCES: Final = {
    "plain": {},
    "tiered": {
        **_SMALL_SEGMENTS,
        "remote.storage.enable": "true",
        "local.retention.bytes": str(128 << 10),
        "retention.ms": "-1",
    },
    "short": {**_SMALL_SEGMENTS, "retention.bytes": str(128 << 10)},
}
_COMPACTED: Final = {
    **_SMALL_SEGMENTS,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "5000",
}
_KEYS: Final = {
    "latest": _COMPACTED,
    "latest-tiered": {**_COMPACTED, "remote.storage.enable": "true"},
}
_TRANSACTIONS: Final = "transactions"
_SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.segment.bytes": str(1 << 20),
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.segment.bytes": str(1 << 20),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.retention.check.interval.ms": "3000",
    "log.cleaner.backoff.ms": "2000",
    "remote.log.manager.task.interval.ms": "2000",
}


@dataclass(slots=True)
class Result:
    """What a soak came to."""

    findings: list[str] = field(default_factory=list)
    figures: dict[str, int | float] = field(default_factory=dict)
    client_errors: dict[str, list[str]] = field(default_factory=dict)


class Soak:
    """`tell` gets a line of progress now and then."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._directory = folder / "data"
        self._tell = tell
        self._source = random.Random(seed)
        self._server = ServedProcess(self._directory, _SETTINGS, log=folder / "server.log")
        self._clients: list[KafkaClient] = [ConfluentClient(), PythonClient(), AioClient()]
        self._admin = self._clients[0]
        self._sequences = {
            (topic, number): Sequence() for topic in _SEQUENCES for number in range(PARTITIONS)
        }
        self._looks = {
            one: SequenceCheck(one, may_begin_late=one[0] == "short")
            for one in self._sequences
            if one[0] != "short"
        }
        self._keys = {(topic, number): Keys() for topic in _KEYS for number in range(2)}
        self._outcomes: dict[str, Transactions] = {}
        self._group = GroupModel()
        self._workers: list[Resilient] = []
        self._extra: Member | None = None
        self._peak_bytes = 0
        self._counts: dict[str, int] = dict.fromkeys(Deed, 0)
        self.result = Result()

    def run(self, plan: list[Action], seconds: float) -> Result:
        with ExitStack() as stack:
            stack.enter_context(self._server)
            for one in self._clients:
                stack.callback(one.close)
            self._create_topics()
            self._make_workers()
            self._work(plan, seconds)
            self._judge()
        self._check_at_rest()
        self._note_figures()
        return self.result

    def _create_topics(self) -> None:
        with self._admin.admin(self._server.bootstrap) as admin:
            for topic, configs in _SEQUENCES.items():
                admin.create(topic, PARTITIONS, configs)
            for topic, configs in _KEYS.items():
                admin.create(topic, 2, configs)
            admin.create(_TRANSACTIONS, 3, _SMALL_SEGMENTS)

    def _make_workers(self) -> None:
        confluent, python, aio = self._clients
        bootstrap = self._server.bootstrap
        writers = [(confluent, "zstd"), (python, "gzip"), (aio, "lz4"), (confluent, "snappy")]
        for number, (client, codec) in enumerate(writers):
            mine = {one: found for one, found in self._sequences.items() if one[1] == number}
            self._workers.append(Writer(client, bootstrap, codec, mine, self._random()))
        for number, (client, codec) in enumerate([(confluent, "none"), (aio, "gzip")]):
            keys = {one: found for one, found in self._keys.items() if one[1] == number}
            self._workers.append(KeyWriter(client, bootstrap, codec, keys, self._random()))
        # kafka-python may commit without records that it gave up on, and waits without a limit.
        for client, codec in ((confluent, "lz4"), (aio, "none")):
            model = Transactions()
            made = Transactor(
                client, bootstrap, codec, self._transaction_partitions(), model, self._random()
            )
            self._outcomes[made.id] = model
            self._workers.append(made)
        self._workers += [self._member(confluent), self._member(python)]

    def _random(self) -> random.Random:
        return random.Random(self._source.getrandbits(64))

    def _transaction_partitions(self) -> list[Partition]:
        return [(_TRANSACTIONS, number) for number in range(3)]

    def _member(self, client: KafkaClient) -> Member:
        bootstrap = self._server.bootstrap
        return Member(client, bootstrap, "plain", GROUP, self._group, self._random())

    def _work(self, plan: list[Action], seconds: float) -> None:
        began = time.monotonic()
        for worker in self._workers:
            worker.start()
        try:
            for action in plan:
                # A slow machine gets fewer actions, not a server that is always down.
                due = max(action.at_seconds, time.monotonic() - began + _WORK_SECONDS)
                if due >= seconds:
                    break
                self._wait_until(began, due)
                self._do(action)
            self._wait_until(began, seconds)
        finally:
            self._tell("the clients finish")
            for worker in self._workers:
                self._finish(worker)
            if self._extra is not None:
                self._change_members()

    def _finish(self, worker: Resilient) -> None:
        place = worker.finish()
        if place is not None:
            self.result.findings.append(f"{worker.name} hangs at\n{place}")
        self._note_errors(worker)
        if worker.error is not None:
            self.result.findings.append(f"{worker.name} ended: {worker.error!r}")

    def _wait_until(self, began: float, at_seconds: float) -> None:
        while (left := began + at_seconds - time.monotonic()) > 0:
            self._peak_bytes = max(self._peak_bytes, self._server.rss_bytes())
            self._tell_progress(time.monotonic() - began)
            time.sleep(min(left, 1.0))  # noqa: TID251, real processes in real time

    def _tell_progress(self, seconds: float) -> None:
        records = self._sent_count()
        ended = sum(len(one.committed) + len(one.aborted) for one in self._outcomes.values())
        self._tell(
            f"{seconds:6.0f} s  {records:,} records, {ended:,} transactions, "
            f"{self._group.read_count:,} read, {self._counts[Deed.KILL]} kills, "
            f"{self._counts[Deed.RESTART]} restarts, {self._server.rss_bytes() >> 20} MiB, "
            f"{len(self.result.findings)} findings"
        )

    def _sent_count(self) -> int:
        return sum(one.sent for one in self._sequences.values()) + sum(
            one.sent for one in self._keys.values()
        )

    def _do(self, action: Action) -> None:
        self._counts[action.deed] += 1
        if action.deed is Deed.LOOK:
            self._look()
        elif action.deed is Deed.JOIN:
            self._change_members()
        else:
            if action.deed is Deed.KILL:
                self._server.kill()
            else:
                self._server.stop()
            time.sleep(action.down_seconds)  # noqa: TID251
            self._server.start()

    def _change_members(self) -> None:
        """One more, or one less."""
        if self._extra is None:
            self._extra = self._member(self._source.choice(self._clients[:2]))  # of one assignor
            self._extra.start()
            return
        self._finish(self._extra)
        self._extra = None

    def _look(self) -> None:
        bootstrap = self._server.bootstrap
        self.result.findings += gather(
            [
                partial(check.advance, bootstrap, self._sequences[one])
                for one, check in self._looks.items()
            ]
        )

    def _judge(self) -> None:
        """Reads everything from the beginning, while the server serves."""
        self._tell("all is read and compared")
        self._look()
        result, bootstrap = self.result, self._server.bootstrap
        fresh = {
            one: SequenceCheck(one, may_begin_late=one[0] == "short") for one in self._sequences
        }
        result.findings += gather(
            [
                partial(check.advance, bootstrap, self._sequences[one])
                for one, check in fresh.items()
            ]
        )
        result.findings += gather([partial(self._check_keys, one) for one in self._keys])
        result.findings += gather(
            [
                partial(
                    check_transactions, bootstrap, self._transaction_partitions(), self._outcomes
                ),
                self._check_group,
            ]
        )
        removed = sum(one.begins_at for one in fresh.values())
        result.figures["records read again"] = sum(one.count for one in fresh.values())
        result.figures["records gone by retention"] = removed
        result.figures["records only in the tier"] = self._count_cold()

    def _check_keys(self, partition: Partition) -> list[str]:
        keys = self._keys[partition]
        findings, count = check_keys(self._server.bootstrap, partition, keys)
        figures = self.result.figures
        figures["records of compacted topics"] = (
            figures.get("records of compacted topics", 0) + count
        )
        return findings

    def _check_group(self) -> list[str]:
        with self._admin.admin(self._server.bootstrap) as admin:
            committed = admin.group_offsets(GROUP)
            ends = {number: admin.latest(("plain", number)) for number in range(PARTITIONS)}
        return check_group(committed, "plain", ends, self._group)

    def _count_cold(self) -> int:
        """Records of `tiered` below the first segment that is on the local disk."""
        count = 0
        for number in range(PARTITIONS):
            logs = sorted((self._directory / f"tiered-{number}").glob("*.log"))
            count += int(logs[0].stem) if logs else 0
        return count

    def _note_errors(self, worker: Resilient) -> None:
        if worker.errors:
            self.result.client_errors.setdefault(worker.name, []).extend(worker.errors)

    def _check_at_rest(self) -> None:
        self._tell("the directory is checked")
        result = self.result
        result.findings += [f"log of the server: {one}" for one in self._server.troubles()[:10]]
        result.findings += gather([partial(check_directory, self._directory)])
        result.findings += gather([self._check_tier])

    def _check_tier(self) -> list[str]:
        findings, orphans = check_tier(self._directory)
        self.result.figures["orphans of crashes, swept"] = orphans
        return findings

    def _note_figures(self) -> None:
        keys, sequences = self._keys.values(), self._sequences.values()
        outcomes = self._outcomes.values()
        own: dict[str, Any] = {
            "records sent": self._sent_count(),
            "records that clients gave up on": sum(len(one.uncertain) for one in sequences),
            "records sent to compacted topics": sum(one.sent for one in keys),
            "transactions committed": sum(len(one.committed) for one in outcomes),
            "transactions aborted": sum(len(one.aborted) for one in outcomes),
            "transactions with unknown end": sum(len(one.uncertain) for one in outcomes),
            "records read by the group": self._group.read_count,
            "kills": self._counts[Deed.KILL],
            "restarts": self._counts[Deed.RESTART],
            "members that joined or left": self._counts[Deed.JOIN],
            "looks on the way": self._counts[Deed.LOOK],
            "memory of the server at most, MiB": self._peak_bytes >> 20,
        }
        self.result.figures = own | self.result.figures
