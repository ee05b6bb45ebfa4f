"""Clients of shapes over hours: the broker and the server of shapes are killed and restarted.

python -m tools.soak.shapes [--minutes 30] [--seed N] [--dir DIR] [--json]

Invariant  at every look, and at the end, each client has exactly the rows of its topic that pass
           its filter; and the topic has what its writers were told. No shape goes because of a
           crash alone.
Threads    each topic has a writer of its own; the driver alone starts and ends servers.
"""

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.support.npm_clients import NpmClients
from tests.support.shape_audience import Audience
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import Row, ShapeTopic
from tests.support.soak_server import ServedProcess
from tests.support.web_setup import find_missing
from tools.soak.checks import gather, read_partition
from tools.soak.command import run_soak
from tools.soak.run import Result
from tools.soak.shape_lives import ShapeLives
from tools.soak.shape_plan import Action, Deed, make_plan
from tools.soak.shape_writer import ShapeWriter

_WHERE: Final = "state <> 'arrived' AND grams >= 5000"
_COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(64 << 10),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "5000",
    "file.delete.delay.ms": "1000",
}
_TOPICS: Final[dict[str, tuple[int, dict[str, str]]]] = {
    "one": (1, {}),
    "three": (3, {}),
    "latest": (2, _COMPACTED),
}
_SETTINGS: Final = {"auto.create.topics.enable": "false", "log.cleaner.backoff.ms": "2000"}
_JOIN_COUNT_MAX: Final = 12
_LOOK_SECONDS: Final = 120.0
_WORK_SECONDS: Final = 1.0
"""What the clients have at least between two actions."""


def _is_wanted(row: Row) -> bool:
    return bool(row["state"] != "arrived" and row["grams"] >= 5000)


class ShapeSoak:
    """`tell` gets a line of progress now and then."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._source = random.Random(seed)
        log = folder / "broker.log"
        self._broker = ServedProcess(folder / "data", _SETTINGS, log=log)
        self._folder = folder
        self._counts: Counter[str] = Counter()
        self._findings: list[str] = []
        self._peak_bytes = 0

    def run(self, plan: list[Action], seconds: float) -> Result:
        with ExitStack() as stack:
            stack.enter_context(self._broker)
            self._server = stack.enter_context(ShapeServer(self._broker.bootstrap, self._folder))
            self._lives = ShapeLives(self._server, forgetful=["latest"])
            has_node = find_missing().get("node") is None
            npm = stack.enter_context(NpmClients()) if has_node else None
            self._audience = Audience(self._server.host, self._server.port, npm)
            stack.enter_context(self._audience)
            self._topics = [self._make_topic(name) for name in _TOPICS]
            self._writers = [ShapeWriter(one, self._source.getrandbits(32)) for one in self._topics]
            for topic in self._topics:
                self._join(topic)
            self._work(plan, seconds)
            self._findings += gather([self._check_end, self._check_topics, self._lives.look])
            figures = self._figures()
        self._findings += [f"log of the broker: {one}" for one in self._broker.troubles()[:10]]
        return Result(self._findings, figures, self._log_errors())

    def _make_topic(self, name: str) -> ShapeTopic:
        partition_count, configs = _TOPICS[name]
        return ShapeTopic(
            self._broker.bootstrap, name, partition_count=partition_count, configs=configs
        )

    def _join(self, topic: ShapeTopic) -> None:
        asked = {"table": topic.name}
        self._audience.join(asked, topic.rows)
        self._audience.join({**asked, "where": _WHERE}, lambda: topic.rows(_is_wanted))

    # Work

    def _work(self, plan: list[Action], seconds: float) -> None:
        began = time.monotonic()
        for writer in self._writers:
            writer.start()
        try:
            for action in plan:
                # A slow machine gets fewer actions, not servers that are always down.
                due = max(action.at_seconds, time.monotonic() - began + _WORK_SECONDS)
                if due >= seconds:
                    break
                self._wait_until(began, due)
                self._counts[action.deed] += 1
                self._findings += gather(
                    [
                        self._lives.look,
                        lambda one=action: self._do(one),  # type: ignore[misc]
                        self._lives.look,
                    ]
                )
            self._wait_until(began, seconds)
        finally:
            self._tell("the writers finish")
            for writer in self._writers:
                self._findings += writer.finish()

    def _wait_until(self, began: float, at_seconds: float) -> None:
        while (left := began + at_seconds - time.monotonic()) > 0:
            self._peak_bytes = max(self._peak_bytes, self._server.rss_bytes())
            changes = sum(writer.change_count for writer in self._writers)
            self._tell(
                f"{time.monotonic() - began:6.0f} s  {changes:,} changes, "
                f"{self._audience.client_count} clients, {self._counts.total()} deeds, "
                f"{self._server.rss_bytes() >> 20} MiB, {len(self._findings)} findings"
            )
            time.sleep(min(left, 1.0))  # noqa: TID251, real processes in real time

    def _do(self, action: Action) -> list[str]:
        match action.deed:
            case Deed.KILL_SHAPES:
                self._restart(self._server.kill, self._server.start, action)
            case Deed.STOP_SHAPES:
                self._restart(self._server.stop, self._server.start, action)
            case Deed.KILL_BROKER:
                self._restart(self._broker.kill, self._broker.start, action)
            case Deed.STOP_BROKER:
                self._restart(self._broker.stop, self._broker.start, action)
            case Deed.KILL_BOTH:
                self._broker.kill()
                self._restart(self._server.kill, self._broker.start, action)
                self._server.start()
            case Deed.COMPACT:
                self._server.compact(self._ask_handle())
            case Deed.ROTATE:
                self._server.rotate(self._ask_handle())
            case Deed.JOIN:
                if self._counts[Deed.JOIN] <= _JOIN_COUNT_MAX:
                    self._join(self._source.choice(self._topics))
            case Deed.LOOK:
                self._look()
        return []

    def _restart(
        self, end: Callable[[], object], start: Callable[[], object], action: Action
    ) -> None:
        end()
        time.sleep(action.down_seconds)  # noqa: TID251
        start()

    def _ask_handle(self) -> str:
        where = {"where": _WHERE} if self._source.random() < 0.5 else {}
        return self._server.ask_handle(table=self._source.choice(self._topics).name, **where)

    def _look(self) -> None:
        """Nobody writes until every client has all."""
        with ExitStack() as stack:
            for writer in self._writers:
                stack.enter_context(writer.at_rest())
            self._audience.settle(_LOOK_SECONDS)

    # The end

    def _check_end(self) -> list[str]:
        """Who was there all the time and who comes only now have the same, after a restart too."""
        self._tell("all clients are compared")
        self._audience.settle(_LOOK_SECONDS)
        for topic in self._topics:
            self._join(topic)
        self._server.stop()
        self._server.start()
        self._audience.settle(_LOOK_SECONDS)
        return [f"a client of npm was told: {error}" for error in self._audience.errors()]

    def _check_topics(self) -> list[str]:
        """The rows that clients were compared with are those of the topic."""
        findings = []
        for topic in self._topics:
            found: dict[str, bytes] = {}
            for number in range(_TOPICS[topic.name][0]):
                for _, key, value in read_partition(self._broker.bootstrap, (topic.name, number)):
                    assert key is not None
                    found.pop(key.decode(), None)
                    if value is not None:
                        found[key.decode()] = value
            if found.keys() != topic.state.keys():
                findings.append(f"{topic.name} has not the keys that its writer was told of")
        return findings

    def _log_errors(self) -> dict[str, list[str]]:
        """What the server of shapes logged as errors; a broker that is away is one."""
        lines = self._server.log.read_text().splitlines()
        told = [re.sub(r"^\S+ ", "", line) for line in lines if " ERROR " in line]
        return {"the log of shapes": told} if told else {}

    def _figures(self) -> dict[str, int | float]:
        counts = {f"deeds: {deed}": self._counts[deed] for deed in Deed}
        return {
            "changes written": sum(writer.change_count for writer in self._writers),
            "rows at the end": sum(len(topic.state) for topic in self._topics),
            "clients at the end": self._audience.client_count,
            "beginnings anew, all clients together": self._audience.refetch_count(),
            "memory of the server of shapes at most, MiB": self._peak_bytes >> 20,
            **counts,
        }


def _run(folder: Path, seed: int, seconds: float, tell: Callable[[str], None]) -> Result:
    return ShapeSoak(folder, seed, tell).run(make_plan(seed, seconds), seconds)


if __name__ == "__main__":
    sys.exit(run_soak("tools.soak.shapes", __doc__, _run))
