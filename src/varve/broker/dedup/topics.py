"""All deduplicated partitions of a broker: opened, waited for, and removed with their topics.

A batch whose partition is still restoring its ids waits up to the timeout of its request. A
partition whose ids failed is reported as failed and reopened until that succeeds.

Invariant  batches for one partition are appended in the order in which they arrived.
           Ids on disk of a partition that is no longer deduplicated are removed.
Threads    the loop's. Partitions are opened and closed in the blocking pool, a few at a time, and
           append in the append thread for deduplicated topics.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from varve.broker.append_scheduler import AppendEntry, AppendScheduler
from varve.broker.background import BackgroundTasks, BlockingPool, Timer, Timers, cancel_timer
from varve.broker.dedup.state import (
    DedupEnvironment,
    remove_unused_state,
    state_directory,
    state_name,
)
from varve.broker.topics import ServedTopic, Topics
from varve.commit_log import Log, LogAppendResult, LogSettings, TopicPartition
from varve.dedup.directories import remove_state, state_root
from varve.dedup.rules import DedupRules, parse_id_source
from varve.foundation.errors import Closed, StoreError

if TYPE_CHECKING:
    from varve.broker.dedup.partition import PartitionDedup

logger = logging.getLogger(__name__)

_CONCURRENT_OPENS: Final = 2
_RETRY_MS: Final = 1_000
"""Producers retry meanwhile; opening reads a checkpoint and the records after it."""
_CHECKPOINT_MS: Final = 60_000


def find_rules(topic: ServedTopic) -> DedupRules | None:
    """None for a topic that is not deduplicated, as internal topics never are."""
    settings = topic.settings
    return None if topic.is_internal or not settings.varve_dedup_by else make_rules(settings)


def make_rules(settings: LogSettings) -> DedupRules:
    """The rules of settings that name an id.

    Records further ahead of the server's clock than the lateness do not move the stream time: a
    record of the present is never late, whatever the clocks of other producers say.
    """
    window_ms, lateness_ms = settings.varve_dedup_window_ms, settings.varve_dedup_lateness_ms
    if lateness_ms < 0:
        lateness_ms = window_ms
    return DedupRules(
        by=parse_id_source(settings.varve_dedup_by),
        before_ms=window_ms,
        after_ms=window_ms,
        lateness_ms=lateness_ms,
        max_future_ms=lateness_ms,
    )


@dataclass(slots=True)
class DedupAppend(AppendEntry):
    """A batch for a deduplicated partition, which is set once it is open."""

    dedup: "PartitionDedup | None" = None

    def append(self) -> LogAppendResult:
        assert self.dedup is not None
        return self.dedup.append(self.batch)

    def append_if_quick(self) -> LogAppendResult:
        # Its partition unpacks it once more: a check before would save nothing.
        return self.append()


@dataclass(slots=True, eq=False)
class _WaitingAppend:
    entry: DedupAppend
    complete: Callable[[], None]
    timer: Timer | None = None


@dataclass(slots=True, eq=False)
class _DedupPartition:
    """A deduplicated partition; `dedup` is created when it is first opened."""

    log: Log
    rules: DedupRules
    directory: str
    dedup: "PartitionDedup | None" = None
    is_ready: bool = False
    is_ended: bool = False
    error: str | None = None
    opening: "asyncio.Task[None] | None" = None
    waiting: deque[_WaitingAppend] = field(default_factory=deque)

    @property
    def state(self) -> str:
        if self.error is not None:
            return "failed"
        return "open" if self.is_ready else "restoring"

    def end(self, error: StoreError) -> None:
        """Nothing is appended any more; what waits fails with the error."""
        self.is_ended, self.is_ready = True, False
        if self.dedup is not None:
            self.dedup.is_ended = True
        while self.waiting:
            waiting = self.waiting.popleft()
            cancel_timer(waiting.timer)
            waiting.entry.error = error
            waiting.complete()

    def time_out(self, waiting: _WaitingAppend) -> None:
        self.waiting.remove(waiting)
        waiting.complete()

    def counts(self) -> Counter[tuple[str, str]]:
        if self.dedup is None:
            return Counter()
        topic = self.log.topic_partition.topic
        return Counter({(topic, name): n for name, n in asdict(self.dedup.counts).items()})


class DedupTopics:
    """The deduplicated partitions of one broker."""

    def __init__(
        self,
        topics: Topics,
        appends: AppendScheduler,
        environment: DedupEnvironment,
        *,
        log_directories: list[str],
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        blocking: BlockingPool,
    ) -> None:
        self._topics = topics
        self._appends = appends
        self._environment = environment
        self._roots = [state_root(directory) for directory in log_directories]
        self._timers = timers
        self._blocking = blocking
        self._partitions: dict[TopicPartition, _DedupPartition] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._tasks = BackgroundTasks(loop)
        self._open_slots = asyncio.Semaphore(_CONCURRENT_OPENS)
        self._ended_counts: Counter[tuple[str, str]] = Counter()
        """Of partitions that have ended, by topic and verdict."""
        self._checkpoint_timer: Timer | None = None
        self._is_stopped = False

    def submit_then(
        self,
        topic: ServedTopic,
        entry: DedupAppend,
        complete: Callable[[], None],
        *,
        timeout_ms: int,
    ) -> None:
        """Appends an entry once its partition is open, and calls `complete` when that is done.

        An entry that has neither a result nor an error then has timed out.
        """
        if self._is_stopped:
            raise Closed("the broker is stopping")
        partition = self._get_partition(topic, entry.log)
        if partition.is_ready:
            self._submit(partition, entry, complete)
            return
        waiting = _WaitingAppend(entry, complete)
        partition.waiting.append(waiting)
        waiting.timer = self._timers.call_later(timeout_ms, partial(partition.time_out, waiting))

    def _submit(
        self, partition: _DedupPartition, entry: DedupAppend, complete: Callable[[], None]
    ) -> None:
        def appended() -> None:
            self._check_failure(partition)
            complete()

        entry.dedup = partition.dedup
        self._appends.submit_then([entry], appended)

    def _get_partition(self, topic: ServedTopic, log: Log) -> _DedupPartition:
        """The partition; a new one starts to open."""
        existing = self._partitions.get(log.topic_partition)
        if existing is not None and existing.log is log:
            return existing
        if existing is not None:
            self._end(log.topic_partition, existing)
        rules = find_rules(topic)
        assert rules is not None, "the topic is not deduplicated"
        partition = _DedupPartition(log, rules, state_directory(topic, log))
        self._partitions[log.topic_partition] = partition
        partition.opening = self._tasks.start(self._open(partition))
        return partition

    # Opening

    async def start(self) -> None:
        """Removes unused ids, and starts to open all deduplicated partitions."""
        deduplicated = [topic for topic in self._topics if find_rules(topic) is not None]
        used = {
            state_name(topic, number)
            for topic in deduplicated
            for number in range(topic.topic.partition_count)
        }
        file_system = self._environment.file_system
        await self._blocking.run(remove_unused_state, file_system, self._roots, used)
        for topic in deduplicated:
            for log in topic.logs:
                if log is not None:
                    self._get_partition(topic, log)
        self._schedule_checkpoint()

    async def _open(self, partition: _DedupPartition) -> None:
        removal = self._removals.get(partition.directory)
        if removal is not None:
            await asyncio.wait({removal})
        async with self._open_slots:
            if partition.is_ended:
                return
            try:
                await self._blocking.run(self._open_dedup, partition)
            except Exception as error:
                if not isinstance(error, StoreError):
                    name = str(partition.log.topic_partition)
                    logger.exception("opening dedup ids failed", extra={"partition": name})
                self._record_failure(partition, error)
                return
        if partition.is_ended:
            return
        partition.is_ready, partition.error = True, None
        while partition.waiting:
            waiting = partition.waiting.popleft()
            cancel_timer(waiting.timer)
            try:
                self._submit(partition, waiting.entry, waiting.complete)
            except Closed as error:
                waiting.entry.error = error
                waiting.complete()

    def _open_dedup(self, partition: _DedupPartition) -> None:
        # Imported here and off the loop: a server without deduplicated topics starts without it.
        from varve.broker.dedup.partition import PartitionDedup

        if partition.dedup is None:
            partition.dedup = PartitionDedup(
                partition.log, partition.rules, partition.directory, self._environment
            )
            partition.dedup.is_ended = partition.is_ended
        partition.dedup.open()

    def _check_failure(self, partition: _DedupPartition) -> None:
        """Reopens a partition whose ids have failed."""
        failure = None if partition.dedup is None else partition.dedup.failure
        if partition.is_ready and failure is not None:
            self._record_failure(partition, failure)

    def _record_failure(self, partition: _DedupPartition, error: Exception) -> None:
        if partition.is_ended:
            return
        if partition.error is None:
            logger.error(
                "deduplication state unavailable",
                extra={"partition": str(partition.log.topic_partition), "error": str(error)},
            )
        partition.is_ready, partition.error = False, str(error)
        self._timers.call_later(_RETRY_MS, lambda: self._reopen(partition))

    def _reopen(self, partition: _DedupPartition) -> None:
        is_opening = partition.opening is not None and not partition.opening.done()
        if not (partition.is_ended or partition.is_ready or is_opening):
            partition.opening = self._tasks.start(self._open(partition))

    # Maintenance

    def _schedule_checkpoint(self) -> None:
        self._checkpoint_timer = self._timers.call_later(
            _CHECKPOINT_MS, lambda: self._tasks.start(self._checkpoint_all())
        )

    async def _checkpoint_all(self) -> None:
        for partition in list(self._partitions.values()):
            if partition.is_ready and partition.dedup is not None:
                await self._blocking.run(partition.dedup.checkpoint)
                self._check_failure(partition)
        if not self._is_stopped:
            self._schedule_checkpoint()

    def failures(self) -> dict[str, str]:
        """The errors of failed partitions."""
        errors = ((str(name), partition.error) for name, partition in self._partitions.items())
        return {name: error for name, error in errors if error is not None}

    def counts(self) -> Counter[tuple[str, str]]:
        """Records by topic and verdict; in any thread."""
        counts = self._ended_counts.copy()
        for partition in list(self._partitions.values()):
            counts += partition.counts()
        return counts

    def states(self) -> Counter[str]:
        """Partitions by state: open, restoring, failed; in any thread."""
        return Counter(partition.state for partition in list(self._partitions.values()))

    # Ending

    def partition_changed(self, name: TopicPartition) -> None:
        """The topic's settings were altered, or it was deleted."""
        topic = self._topics.find(name.topic)
        log = None if topic is None else topic.find_log(name.partition)
        rules = None if topic is None else find_rules(topic)
        existing = self._partitions.get(name)
        if existing is not None and (existing.rules != rules or existing.log is not log):
            self._end(name, existing)
        if topic is not None and rules is not None and log is not None:
            self._get_partition(topic, log)

    def _end(self, name: TopicPartition, partition: _DedupPartition) -> None:
        """Ends deduplication of a partition for good and removes its ids."""
        del self._partitions[name]
        partition.end(Closed(f"{name}: its topic has changed: try again"))
        self._ended_counts += partition.counts()
        directory = partition.directory
        before = [task for task in (self._removals.get(directory), partition.opening) if task]
        task = self._removals[directory] = self._tasks.start(self._remove(partition, before))

        def removed(_: object) -> None:
            if self._removals.get(directory) is task:
                del self._removals[directory]

        task.add_done_callback(removed)

    async def _remove(self, partition: _DedupPartition, before: "list[asyncio.Task[None]]") -> None:
        if before:
            await asyncio.wait(before)
        remove = partial(remove_state, self._environment.file_system, partition.directory)
        if partition.dedup is not None:
            remove = partial(partition.dedup.remove)
        try:
            await self._blocking.run(remove)
        except OSError as error:
            logger.error(
                "unused dedup ids were not removed",
                extra={"directory": partition.directory, "error": str(error)},
            )

    async def stop(self) -> None:
        """Closes all partitions; called after the last append."""
        self._is_stopped = True
        cancel_timer(self._checkpoint_timer)
        for partition in self._partitions.values():
            partition.end(Closed("the broker is stopping"))
        await self._tasks.stop(cancels=False)
        for name, partition in self._partitions.items():
            if partition.dedup is None:
                continue
            try:
                await asyncio.get_running_loop().run_in_executor(None, partition.dedup.close)
            except (StoreError, OSError) as error:
                # The next start restores the ids from the log.
                extra = {"partition": str(name), "error": str(error)}
                logger.error("dedup ids were not closed", extra=extra)

    def abandon(self) -> None:
        """Stops without writing, as a crash does."""
        for partition in self._partitions.values():
            partition.is_ended = True
            if partition.dedup is not None:
                partition.dedup.abandon()
