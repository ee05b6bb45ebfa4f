"""Copies a topic without its duplicates: all partitions of a deduplication, in a few threads.

    with varve.open("data") as store:
        rules = DedupRules(by=parse_id_source("key"), before_ms=…, after_ms=…, lateness_ms=…)
        with Deduplicator.open(store, "orders", "orders-once", rules) as dedup:
            dedup.run_once()

Invariant  partitions are independent: copies of an id are compared within one partition only. The
           number of workers, not of partitions, bounds threads and connections.
Crash      each partition commits separately and continues from its last commit.
Threads    `stop` may be called from any thread and from signal handlers, other methods from one
           thread. A worker is used by one thread at a time.
"""

import os
import random as random_module
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self

from varve.dedup.backend import DedupBackend
from varve.dedup.directories import state_root
from varve.dedup.metrics import DedupMetrics
from varve.dedup.rules import DedupRules, LatePolicy
from varve.dedup.task import OnProgress, Task, TaskContext, TaskSettings, TaskState
from varve.dedup.topics import DedupTopics, topic_settings
from varve.disk import FileSystem, RealFileSystem
from varve.embedded import Store
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, OffsetOutOfRange, StoreError, Unavailable
from varve.kafka_client.address import ClusterAddress
from varve.records import CommittedBatches
from varve.rocks.database import Databases, RocksDatabases
from varve.topics import open_cluster

_SIGNAL_CHECK_SECONDS: Final = 0.5
"""A wait without end would miss a signal that arrives just before it, or in another thread."""


def _ignore_progress(state: TaskState) -> None:
    return None


class Deduplicator:
    """A running deduplication; created by `open`, and closed as a context manager."""

    def __init__(self, context: TaskContext, thread_count: int | None = None) -> None:
        self.topics = context.backend.topics
        self.metrics = DedupMetrics(self.topics)
        self._backend = context.backend
        self._on_progress = context.on_progress
        self._thread_count = thread_count or os.cpu_count() or 1
        self._context = replace(context, on_progress=self._report)
        self._workers: list[DedupWorker] = []
        self._stopping = threading.Event()
        self._report_lock = threading.Lock()
        self._has_failed = False

    @classmethod
    def open(
        cls,
        cluster: Store | ClusterAddress,
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
        """Opens a deduplication in an open store, or through a server.

        `name` identifies its progress and its ids; the default is the output topic. `state` is the
        directory of the ids; the default for a store is its directory with the suffix `.dedup`. A
        lost directory is restored. Missing topics are created.

        Raises InvalidRequest if an earlier run of the name had other rules.
        """
        check_side(rules, side)
        topics = DedupTopics(input=input, output=output, side=side, name=name or output)
        clock = clock or SystemClock()
        settings_by_topic = topic_settings(
            topics, retention_ms=rules.retention_ms, segment_ms=rules.segment_ms
        )
        if state is None:
            if not isinstance(cluster, Store):
                raise InvalidRequest(
                    "a deduplication through a server needs a state directory (--state)"
                )
            state = state_root(cluster.directories[0].path)
        connected = open_cluster(cluster, wait=wait)
        context = TaskContext(
            backend=DedupBackend(connected, topics, settings=settings_by_topic, clock=clock),
            rules=rules,
            settings=settings or TaskSettings(),
            state_directory=f"{state}/{topics.name}",
            databases=databases or RocksDatabases(),
            file_system=file_system or RealFileSystem(),
            clock=clock,
            random=random or random_module.SystemRandom(),
            on_progress=on_progress or _ignore_progress,
        )
        opened = cls(context, thread_count)
        try:
            opened.start()
        except BaseException:
            opened._has_failed = True
            opened.close()
            raise
        return opened

    def start(self) -> None:
        """Creates topics and opens every partition; ids that are missing are restored."""
        count = self._backend.prepare()
        self._backend.register_outputs(self._context.state_directory, self._context.rules.by)
        thread_count = min(self._thread_count, count)
        self._workers = [
            DedupWorker(self._context, range(number, count, thread_count), self._stopping)
            for number in range(thread_count)
        ]
        self._run_in_threads([worker.open for worker in self._workers])

    def run_once(self) -> None:
        """Processes the records that the input has now, and returns."""
        self._run_in_threads([worker.catch_up for worker in self._workers])

    def run(self, stop: threading.Event | None = None) -> None:
        """Follows the input until it is stopped; raises the first error of a partition."""
        stop_event = stop or self._stopping
        self._run_in_threads([partial(worker.follow, stop_event) for worker in self._workers])

    def stop(self) -> None:
        """Ends `run` and `run_once` after the chunks in progress."""
        self._stopping.set()

    def states(self) -> list[TaskState]:
        """The state of each partition, by number."""
        tasks = (task for worker in self._workers for task in worker.tasks)
        return [task.state() for task in sorted(tasks, key=lambda task: task.partition)]

    def close(self) -> None:
        """Checkpoints the ids and closes everything; closing twice is harmless."""
        workers, self._workers = self._workers, []
        errors = []
        for worker in workers:
            errors += worker.close(is_clean=not self._has_failed)
        self._backend.close()
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

    def _run_in_threads(self, tasks: list[Callable[[], None]]) -> None:
        """Runs all in parallel and raises the first error, after which the others stop early."""
        errors: list[BaseException] = []

        def run_guarded(task: Callable[[], None]) -> None:
            try:
                task()
            except BaseException as error:
                errors.append(error)
                self._stopping.set()

        with ThreadPoolExecutor(len(tasks), thread_name_prefix="varve-dedup") as pool:
            running = [pool.submit(run_guarded, task) for task in tasks]
            try:
                while wait(running, timeout=_SIGNAL_CHECK_SECONDS).not_done:
                    continue
            except BaseException:
                self._stopping.set()
                raise
        if errors:
            self._has_failed = True
            raise errors[0]

    def _report(self, state: TaskState) -> None:
        with self._report_lock:
            self.metrics.update(state)
            self._on_progress(state)


def check_side(rules: DedupRules, side: str | None) -> None:
    """Raises InvalidRequest unless a side topic is given exactly if a policy needs one."""
    needs_side = LatePolicy.SIDE in (rules.late, rules.future, rules.missing)
    if needs_side != (side is not None):
        raise InvalidRequest(
            "a side topic requires a policy that sends records to it, and vice versa: give both"
        )


# The workers


_FETCH_WAIT_MS: Final = 500
"""Kafka's default of fetch.max.wait.ms."""
_IDLE_SECONDS: Final = 0.05
"""Pause after an empty fetch, which may return without waiting, as after a recovered position."""
_EMPTY_FETCHES_MAX: Final = 60
"""With the wait, half a minute without data below the end of the log."""
_FETCH_BYTES: Final = 16 << 20
"""About the size of one fetch for all partitions of a worker."""
_PARTITION_BYTES_MIN: Final = 256 << 10
"""Share of each partition in a fetch, however many partitions there are."""


class DedupWorker:
    """Runs the tasks of a group of partitions in one thread."""

    def __init__(
        self, context: TaskContext, partitions: Iterable[int], stopping: threading.Event
    ) -> None:
        self._backend = context.backend.new_session()
        self._stopping = stopping
        worker_context = replace(context, backend=self._backend)
        self.tasks = [Task(worker_context, partition) for partition in partitions]
        partition_bytes = max(_PARTITION_BYTES_MIN, _FETCH_BYTES // len(self.tasks))
        self._max_bytes = min(context.settings.chunk_bytes, partition_bytes)

    def open(self) -> None:
        for task in self.tasks:
            task.open()

    def catch_up(self) -> None:
        """Processes the records that the input has now, one partition after the other."""
        for task in self.tasks:
            self._catch_up(task, end=task.refresh_end_offset())

    def _catch_up(self, task: Task, *, end: int) -> None:
        empty_fetches = 0
        while (offset := task.position.offset) < end and not self._stopping.is_set():
            task.run_once(wait_ms=_FETCH_WAIT_MS)
            empty_fetches = 0 if task.position.offset > offset else empty_fetches + 1
            if empty_fetches > _EMPTY_FETCHES_MAX:
                raise Unavailable(
                    f"{self._backend.name}: {self._backend.topics.input}-{task.partition} returns "
                    f"nothing at offset {offset}, but ends at {end}: try again"
                )

    def follow(self, stop: threading.Event) -> None:
        """Processes new records until one of the events is set."""
        while not (stop.is_set() or self._stopping.is_set()):
            fetched = self._fetch()
            for task in self.tasks:
                if not task.process(fetched.get(task.partition)):
                    task.maintain_if_due()
            if not fetched:
                stop.wait(_IDLE_SECONDS)

    def _fetch(self) -> Mapping[int, CommittedBatches]:
        positions = {task.partition: task.position for task in self.tasks}
        try:
            return self._backend.input.fetch(
                positions, max_bytes=self._max_bytes, wait_ms=_FETCH_WAIT_MS
            )
        except OffsetOutOfRange as error:
            self._recover_positions(error)
            return {}

    def _recover_positions(self, error: OffsetOutOfRange) -> None:
        """Recovers each partition: the error of a fetch does not name the one that failed."""
        has_moved = False
        for task in self.tasks:
            before = task.position
            try:
                task.recover_position(error)
            except OffsetOutOfRange as raised:
                if raised is not error:
                    raise
            has_moved |= task.position != before
        if not has_moved:
            raise error

    def close(self, *, is_clean: bool) -> list[StoreError]:
        """Closes every task, with a checkpoint unless something failed; returns the errors."""
        errors = []
        for task in self.tasks:
            try:
                task.close(is_clean=is_clean)
            except StoreError as error:
                errors.append(error)
        self._backend.close()
        return errors
