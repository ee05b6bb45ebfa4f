"""Appends to logs, off the loop: one thread writes, others sync.

Appends to a log that is synced for every append (`flush=ack`) share one sync: all that were written
before it starts.

Invariant  entries are appended in the order of submission. Entries of one submission fail
           independently: one that is rejected does not keep the others from being appended.
Threads    `submit` is called in the loop's thread; completions are called there. The append thread
           takes all that was submitted since its last pass and wakes the loop once for all of it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from varve.broker.data.parked_fetches import ParkedFetches
from varve.commit_log import Log, LogAppendResult, TopicPartition
from varve.commit_log.producer_state import AppendOrigin
from varve.disk import Buffer
from varve.foundation.errors import Closed, StoreError, Unavailable

logger = logging.getLogger(__name__)


_SECONDS_BETWEEN_LOGS: Final = 10.0
_SECONDS_KEPT: Final = 60.0


class RecentFailures:
    """The last append, or read, that failed through no fault of the client."""

    def __init__(self, message: str, seconds: Callable[[], float]) -> None:
        self._message = message
        self._seconds = seconds
        self._last: tuple[float, str] | None = None
        self._logged_at: float | None = None
        self._unlogged_count = 0

    def record(self, partition: TopicPartition, error: StoreError) -> None:
        now = self._seconds()
        self._last = (now, str(error))
        if self._logged_at is not None and now - self._logged_at < _SECONDS_BETWEEN_LOGS:
            self._unlogged_count += 1
            return
        logger.error(
            self._message,
            extra={
                "partition": str(partition),
                "error": str(error),
                "unlogged_before": self._unlogged_count,
            },
        )
        self._logged_at, self._unlogged_count = now, 0

    def find_recent(self) -> str | None:
        """The error of the last minute; None where there was none."""
        last = self._last
        if last is None or self._seconds() - last[0] >= _SECONDS_KEPT:
            return None
        return last[1]


@dataclass(slots=True)
class AppendEntry:
    """One batch for one log; has a result or an error when its submission completes."""

    log: Log
    batch: Buffer
    origin: AppendOrigin = AppendOrigin.CLIENT
    result: LogAppendResult | None = None
    error: Exception | None = None

    def append(self) -> LogAppendResult:
        """Appends the batch, in the append thread; raises what the log rejected it for."""
        waits = not self.log.settings.syncs_every_append
        return self.log.append(self.batch, origin=self.origin, waits=waits)


class _Submission:
    __slots__ = ("complete", "entries", "pending")

    def __init__(self, entries: Sequence[AppendEntry], complete: Callable[[], None]) -> None:
        self.entries = entries
        self.complete = complete
        self.pending = 1
        """Syncs that are awaited, and the append itself; changed in the loop's thread."""


class AppendScheduler:
    """Appends to all logs of a broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fetches: ParkedFetches,
        failures: RecentFailures,
        sync_pool: Executor,
        *,
        name: str = "appends",
    ) -> None:
        self._loop = loop
        self._fetches = fetches
        self._failures = failures
        # None wakes the append thread to its end.
        self._queue: SimpleQueue[_Submission | None] = SimpleQueue()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=f"varve-{name}", daemon=True)
        self._sync_pool = sync_pool

    def start(self) -> None:
        self._thread.start()

    def submit(self, entries: Sequence[AppendEntry]) -> "asyncio.Future[None]":
        """Done when every entry has its result or error, as durable as its topic promises."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.submit_then(entries, lambda: _set_done(future))
        return future

    def submit_then(self, entries: Sequence[AppendEntry], complete: Callable[[], None]) -> None:
        """Like `submit`, without a future: `complete` is called in the loop's thread."""
        if self._is_stopped:
            raise Closed("the broker is stopping")
        self._queue.put(_Submission(entries, complete))

    def stop(self) -> None:
        """Appends what was submitted, then ends the thread; to be called off the loop.

        Entries whose log is synced for every append complete when the pool has synced it.
        """
        self._is_stopped = True
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    # In the append thread

    def _run(self) -> None:
        submission = self._queue.get()
        while submission is not None:
            self._append([submission, *self._drain()])
            submission = self._queue.get()
        self.run_once()

    def run_once(self) -> bool:
        """Appends what was submitted so far; False where that is nothing."""
        submissions = self._drain()
        if submissions:
            self._append(submissions)
        return bool(submissions)

    def _drain(self) -> list[_Submission]:
        """What is queued, up to the end sign, which stays in the queue."""
        submissions: list[_Submission] = []
        for _ in range(self._queue.qsize()):
            submission = self._queue.get()
            if submission is None:
                self._queue.put(None)
                break
            submissions.append(submission)
        return submissions

    def _append(self, submissions: list[_Submission]) -> None:
        visible: set[TopicPartition] = set()
        unsynced: dict[Log, list[_Submission]] = {}
        for submission in submissions:
            for entry in submission.entries:
                _append_entry(entry)
                if entry.result is None:
                    if isinstance(entry.error, Unavailable):
                        self._failures.record(entry.log.topic_partition, entry.error)
                    continue
                if entry.log.settings.syncs_every_append:
                    waiting = unsynced.setdefault(entry.log, [])
                    if not waiting or waiting[-1] is not submission:
                        waiting.append(submission)
                        submission.pending += 1
                else:
                    visible.add(entry.log.topic_partition)
        self._loop.call_soon_threadsafe(self._complete, submissions, visible)
        for log, waiting in unsynced.items():
            self._sync_pool.submit(self._sync, log, waiting)

    def _sync(self, log: Log, waiting: list[_Submission]) -> None:
        error: Exception | None = None
        try:
            log.sync_appends()
        except Exception as failure:
            error = failure
        if error is not None:
            for submission in waiting:
                for entry in submission.entries:
                    if entry.log is log and entry.result is not None:
                        entry.error = error
        self._loop.call_soon_threadsafe(self._complete, waiting, {log.topic_partition})

    # In the loop's thread

    def _complete(self, submissions: list[_Submission], visible: set[TopicPartition]) -> None:
        for submission in submissions:
            submission.pending -= 1
            if submission.pending == 0:
                submission.complete()
        if visible:
            self._fetches.partitions_appended(visible)


def _set_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _append_entry(entry: AppendEntry) -> None:
    try:
        entry.result = entry.append()
    except StoreError as error:
        entry.error = _without_frames(error)
    except Exception as error:
        logger.exception("append failed", extra={"partition": str(entry.log.topic_partition)})
        entry.error = _without_frames(error)


def _without_frames(error: Exception) -> Exception:
    """The error without its tracebacks, whose frames hold the batch and its unpacked content."""
    part: BaseException | None = error
    while part is not None:
        part.__traceback__ = None
        part = part.__cause__ or part.__context__
    return error
