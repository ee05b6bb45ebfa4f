"""A topic without its duplicates: all partitions of a deduplication, each in a thread.

    with varve.open("data") as store:
        rules = DedupRules(by=parse_id_source("key"), before_ms=…, after_ms=…, lateness_ms=…)
        with Deduplicator.open(store, "orders", "orders-once", rules) as dedup:
            dedup.run_once()

Invariant  partitions do not know each other: copies of an id are compared within one.
Crash      each partition commits for itself and goes on from its last commit.
Threads    `stop` may be called from any thread, and by signal handlers; the rest by one.
"""

import os
import random as random_module
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from varve.dedup.embedded_ends import EmbeddedEnds
from varve.dedup.ends import DedupTopics, Ends, topic_settings
from varve.dedup.metrics import DedupMetrics
from varve.dedup.rules import DedupRules, LatePolicy
from varve.dedup.server_ends import ServerEnds
from varve.dedup.task import OnProgress, Task, TaskPlace, TaskSettings, TaskState
from varve.disk import FileSystem, RealFileSystem
from varve.embedded import Store
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, StoreError, Unavailable
from varve.kafka_client.address import ClusterAddress
from varve.rocks.database import Databases, RocksDatabases

STATE_SUFFIX: Final = ".dedup"
_READ_WAIT_MS: Final = 500
_REST_SECONDS: Final = 0.1
_EMPTY_READS_MAX: Final = 60


def _ignore(state: TaskState) -> None:
    return None


class Deduplicator:
    """A deduplication at work; made by `open`, and a context manager that closes it."""

    def __init__(
        self,
        ends: Ends,
        rules: DedupRules,
        *,
        state_directory: str,
        databases: Databases,
        file_system: FileSystem,
        clock: Clock,
        random: random_module.Random,
        settings: TaskSettings | None = None,
        thread_count: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.topics = ends.topics
        self.metrics = DedupMetrics(ends.topics)
        self._ends = ends
        self._on_progress = on_progress or _ignore
        self._thread_count = thread_count or os.cpu_count() or 1
        self._place = TaskPlace(
            ends=ends,
            rules=rules,
            settings=settings or TaskSettings(),
            state_directory=state_directory,
            databases=databases,
            file_system=file_system,
            clock=clock,
            random=random,
            on_progress=self._tell,
        )
        self._tasks: list[Task] = []
        self._stopping = threading.Event()
        self._telling = threading.Lock()
        self._has_failed = False

    @classmethod
    def open(
        cls,
        place: Store | ClusterAddress,
        input: str,
        output: str,
        rules: DedupRules,
        *,
        side: str | None = None,
        name: str | None = None,
        state: str | None = None,
        settings: TaskSettings | None = None,
        databases: Databases | None = None,
        file_system: FileSystem | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        wait: Callable[[float], object] | None = None,
        thread_count: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Self:
        """Opens a deduplication in an open store, or behind a server.

        `name` stands for its progress and its ids, at first the output's. `state` is the directory
        of the ids, for a store at first beside its own with `.dedup` behind; it may be lost, and
        is restored then. Topics that are lacking are made.

        Raises InvalidRequest where an earlier run of the name had other rules.
        """
        check_side(rules, side)
        topics = DedupTopics(input=input, output=output, side=side, name=name or output)
        clock = clock or SystemClock()
        made = topic_settings(topics, retention_ms=rules.retention_ms, segment_ms=rules.segment_ms)
        if state is None:
            if not isinstance(place, Store):
                raise InvalidRequest("behind a server a deduplication needs a state directory")
            state = f"{place.directories[0].path}{STATE_SUFFIX}"
        ends = make_ends(place, topics, settings=made, clock=clock, wait=wait)
        opened = cls(
            ends,
            rules,
            state_directory=f"{state}/{topics.name}",
            databases=databases or RocksDatabases(),
            file_system=file_system or RealFileSystem(),
            clock=clock,
            random=random or random_module.SystemRandom(),
            settings=settings,
            thread_count=thread_count,
            on_progress=on_progress,
        )
        try:
            opened.start()
        except BaseException:
            opened._has_failed = True
            opened.close()
            raise
        return opened

    def start(self) -> None:
        """Makes topics and opens every partition; ids that lack are restored."""
        count = self._ends.prepare()
        tasks = [Task(self._place, partition) for partition in range(count)]
        self._tasks = tasks
        self._in_threads(min(self._thread_count, count), [task.open for task in tasks])

    def run_once(self) -> None:
        """Takes through what is there now, and returns."""
        works = [self._catching_up(task) for task in self._tasks]
        self._in_threads(min(self._thread_count, len(works)), works)

    def run(self, stop: threading.Event | None = None) -> None:
        """Follows the input until it is stopped; raises the first error of a partition."""
        works = [self._following(task, stop or self._stopping) for task in self._tasks]
        self._in_threads(len(works), works)

    def stop(self) -> None:
        """Lets `run` and `run_once` end behind the chunks that are under way."""
        self._stopping.set()

    def states(self) -> list[TaskState]:
        """How far each partition is."""
        return [task.state() for task in self._tasks]

    def close(self) -> None:
        """Brings the ids to the disk and gives everything back; closing twice is harmless."""
        tasks, self._tasks = self._tasks, []
        errors = []
        for task in tasks:
            try:
                task.close(is_clean=not self._has_failed)
            except StoreError as error:
                errors.append(error)
        self._ends.close()
        if errors and not self._has_failed:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._has_failed |= error is not None
        self.close()

    def _catching_up(self, task: Task) -> Callable[[], None]:
        def work() -> None:
            empty_reads = 0
            end = task.look()
            while (position := task.state().position) < end and not self._stopping.is_set():
                task.run_once(wait_ms=_READ_WAIT_MS)
                empty_reads = 0 if task.state().position > position else empty_reads + 1
                if empty_reads > _EMPTY_READS_MAX:
                    raise Unavailable(
                        f"{self._ends.place}: {self.topics.input}-{task.partition} gives nothing "
                        f"at offset {position}, though it has more: try again"
                    )

        return work

    def _following(self, task: Task, stop: threading.Event) -> Callable[[], None]:
        def work() -> None:
            while not (stop.is_set() or self._stopping.is_set()):
                if not task.run_once(wait_ms=_READ_WAIT_MS):
                    task.rest()
                    stop.wait(_REST_SECONDS)

        return work

    def _in_threads(self, thread_count: int, works: list[Callable[[], None]]) -> None:
        """Runs all, and raises the first error; the others end behind their chunks then."""
        errors: list[BaseException] = []

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
                self._stopping.set()

        with ThreadPoolExecutor(thread_count, thread_name_prefix="varve-dedup") as pool:
            try:
                list(pool.map(guarded, works))
            except BaseException:
                self._stopping.set()
                raise
        if errors:
            self._has_failed = True
            raise errors[0]

    def _tell(self, state: TaskState) -> None:
        with self._telling:
            self.metrics.note(state)
            self._on_progress(state)


def make_ends(
    place: Store | ClusterAddress,
    topics: DedupTopics,
    *,
    settings: Mapping[str, Mapping[str, str]],
    clock: Clock,
    wait: Callable[[float], object] | None = None,
) -> Ends:
    """The ends in a store, or behind a server."""
    if isinstance(place, Store):
        return EmbeddedEnds(place, topics, settings=settings, clock=clock)
    waits = wait or threading.Event().wait
    return ServerEnds(place, topics, settings=settings, clock=clock, wait=waits)


def check_side(rules: DedupRules, side: str | None) -> None:
    """Raises InvalidRequest unless a side topic is named exactly where records go there."""
    needs_side = LatePolicy.SIDE in (rules.late, rules.future, rules.missing)
    if needs_side != (side is not None):
        raise InvalidRequest(
            "a side topic goes with a policy that sends records there, and back: name both"
        )
