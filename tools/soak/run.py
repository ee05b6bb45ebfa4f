"""One soak: clients at work, a server that is killed and restarted, and the judgement.

Invariant  a finding ends nothing: the run goes on, and all findings are told at its end.
Threads    workers have their own; the driver alone starts and ends the server.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.soak.clients import Doors
from tools.soak.crew import Crew
from tools.soak.judgement import Judgement
from tools.soak.plan import Action, Deed
from tools.soak.resilient import Resilient
from tools.soak.topics import SETTINGS, create_topics

_WORK_SECONDS: Final = 3.0
"""What the clients have at least between two actions."""


@dataclass(slots=True)
class Result:
    """What a soak came to."""

    findings: list[str] = field(default_factory=list)
    figures: dict[str, int | float] = field(default_factory=dict)
    client_errors: dict[str, list[str]] = field(default_factory=dict)


class Soak:
    """`tell` gets a line of progress now and then."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._source = random.Random(seed)
        self._doors = Doors(folder, SETTINGS)
        self._server = self._doors.server
        self._peak_bytes = 0
        self._counts: dict[str, int] = dict.fromkeys(Deed, 0)
        self._client_errors: dict[str, list[str]] = {}

    def run(self, plan: list[Action], seconds: float) -> Result:
        with self._doors as doors:
            with doors.confluent.admin() as admin:
                create_topics(admin)
            self._crew = Crew(doors, self._source)
            self._judgement = Judgement(self._crew, doors.confluent, self._server.directory)
            self._work(plan, seconds)
            self._tell("all is read and compared")
            self._judgement.read_all()
        self._tell("the directory is checked")
        self._judgement.check_at_rest(self._server)
        figures = self._crew.figures() | self._figures() | self._judgement.figures
        return Result(self._judgement.findings, figures, self._client_errors)

    def _work(self, plan: list[Action], seconds: float) -> None:
        began = time.monotonic()
        self._crew.start()
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
            for worker in self._crew.leave():
                self._finish(worker)

    def _finish(self, worker: Resilient) -> None:
        findings = self._judgement.findings
        place = worker.finish()
        if place is not None:
            findings.append(f"{worker.name} hangs at\n{place}")
        if worker.errors:
            self._client_errors.setdefault(worker.name, []).extend(worker.errors)
        if worker.error is not None:
            findings.append(f"{worker.name} ended: {worker.error!r}")

    def _wait_until(self, began: float, at_seconds: float) -> None:
        while (left := began + at_seconds - time.monotonic()) > 0:
            self._peak_bytes = max(self._peak_bytes, self._server.rss_bytes())
            self._tell_progress(time.monotonic() - began)
            time.sleep(min(left, 1.0))  # noqa: TID251, real processes in real time

    def _tell_progress(self, seconds: float) -> None:
        crew = self._crew
        self._tell(
            f"{seconds:6.0f} s  {crew.sent_count():,} records, "
            f"{crew.ended_count():,} transactions, {crew.read_count():,} read, "
            f"{self._counts[Deed.KILL]} kills, {self._counts[Deed.RESTART]} restarts, "
            f"{self._server.rss_bytes() >> 20} MiB, {len(self._judgement.findings)} findings"
        )

    def _do(self, action: Action) -> None:
        self._counts[action.deed] += 1
        if action.deed is Deed.LOOK:
            self._judgement.look()
        elif action.deed is Deed.JOIN:
            gone = self._crew.change_members()
            if gone is not None:
                self._finish(gone)
        else:
            if action.deed is Deed.KILL:
                self._server.kill()
            else:
                self._server.stop()
            time.sleep(action.down_seconds)  # noqa: TID251
            self._server.start()

    def _figures(self) -> dict[str, int | float]:
        return {
            "kills": self._counts[Deed.KILL],
            "restarts": self._counts[Deed.RESTART],
            "members that joined or left": self._counts[Deed.JOIN],
            "looks on the way": self._counts[Deed.LOOK],
            "memory of the server at most, MiB": self._peak_bytes >> 20,
        }
